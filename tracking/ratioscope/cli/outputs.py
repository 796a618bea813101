"""What ``report`` and ``compare`` have in common: a page, PNG files, and a console."""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ratioscope.runs import ACCEPTED
from ratioscope.text import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from ratioscope.runs.timeline import Timeline

PATH_HELP = ACCEPTED
"""What commands take for a run."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Keeps the garbage collector from walking through the numbers of a long run: a tenth of a report's time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def add_outputs(parser: argparse.ArgumentParser, example: str) -> None:
    """Describes where the outputs go."""
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"write a page, such as {example}")
    parser.add_argument("--png", type=Path, metavar="FOLDER", help="write every figure as PNG")


def check_outputs(arguments: argparse.Namespace) -> None:
    """Says at once what cannot be written, or is not installed.

    Raises:
        OSError: if an output cannot be written there.
        ImportError: if a package is missing.
    """
    from ratioscope.extras import require
    from ratioscope.report.page.files import check_target

    require("rich")
    if arguments.output is not None:
        require("plotly")
        check_target(arguments.output)
    if arguments.png is not None:
        from ratioscope.report.figures.png import check_png

        check_png(arguments.png)


def console() -> Console:
    """The terminal, or what stands for it; what its encoding lacks is replaced, and a pipe is no narrow terminal."""
    from rich.console import Console

    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    found = Console(highlight=False, markup=False, emoji=False)
    return (
        found if found.is_terminal else Console(highlight=False, markup=False, emoji=False, width=max(found.width, 120))
    )


def write_outputs(arguments: argparse.Namespace, timelines: Sequence[Timeline], html: str | None) -> list[str]:
    """Writes what is asked for.

    Args:
        arguments: with ``output`` and ``png``.
        timelines: the runs.
        html: the page; None if none is asked for.

    Returns:
        What was written, one sentence each.
    """
    said = []
    if html is not None and arguments.output is not None:
        from ratioscope.report.page.files import write_page

        write_page(arguments.output, html)
        said.append(f"Written: {plain(str(arguments.output))}")
    if arguments.png is not None:
        from ratioscope.report.figures.figures import panels
        from ratioscope.report.figures.png import write_png

        written = write_png(panels(timelines), arguments.png)
        said.append(f"Written: {written} PNG files in {plain(str(arguments.png))}")
    return said
