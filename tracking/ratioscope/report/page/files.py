"""Writes a page atomically, and overwrites nothing but an older page."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BEGINNINGS = (b"<!doctype html", b"<html")
"""Beginnings of an HTML file; a file with any other beginning is not overwritten."""


def check_target(path: Path) -> None:
    """Checks that a page can be written, before minutes are spent on it.

    Raises:
        FileNotFoundError: if the folder does not exist.
        FileExistsError: if the path is a folder, or a file that is not a page.
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
    """Writes a page at once or not at all, so that a browser never loads half of it.

    Raises:
        FileNotFoundError: if the folder does not exist.
        FileExistsError: if the path is a folder, or a file that is not a page.
    """
    check_target(path)
    target = path.resolve()  # keeps a symbolic link
    temporary = target.with_name(f".ratioscope-{secrets.token_hex(6)}.tmp")
    try:
        # Not tempfile, whose files only their owner may read, whatever the umask.
        with temporary.open("x", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(html)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
