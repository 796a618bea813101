"""Writing a page over its older self, and over nothing else."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BEGINNINGS = (b"<!doctype html", b"<html")
"""What a page begins with; a file that begins otherwise is somebody's."""


def check_target(path: Path) -> None:
    """Says at once, before minutes are spent, that a page cannot be written.

    Raises:
        FileNotFoundError: if the folder is not there.
        FileExistsError: if there is something else than a page.
    """
    if not path.parent.is_dir():
        msg = f"got {path} to write to; its folder {path.parent} does not exist: create it, or choose another"
        raise FileNotFoundError(msg)
    if path.is_dir():
        msg = f"got {path} to write to, which is a folder; expected the name of a file, such as {path / 'report.html'}"
        raise FileExistsError(msg)
    if path.exists() and not _is_page(path):
        msg = f"got {path} to write to, which is there and is no HTML; it is left as it is: choose another name"
        raise FileExistsError(msg)


def _is_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(1024)
    return not start or start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_BEGINNINGS)


def write_page(path: Path, html: str) -> None:
    """Writes a page at once or not at all, so that whoever has it open never loads a part.

    Raises:
        FileNotFoundError: if the folder is not there.
        FileExistsError: if there is something else than a page.
    """
    check_target(path)
    target = path.resolve()  # a link stays one
    beside = target.with_name(f".ratioscope-{secrets.token_hex(6)}.tmp")
    try:
        # Not tempfile: its files are for their owner alone, whatever the umask.
        with beside.open("x", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(html)
        os.replace(beside, target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
