"""Outputs of commands: a page, PNG files, and a console."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ratioscope.text import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

    from ratioscope.runs.timeline import Timeline


def check_outputs(arguments: argparse.Namespace) -> None:
    """Checks that outputs can be written and packages are installed, before a run is read.

    Raises:
        OSError: if an output cannot be written.
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
    """Returns a console for standard output; characters that its encoding lacks are replaced.

    A pipe or a file has at least 120 columns: its width is unknown, and wrapped tables are hard to read.
    """
    from rich.console import Console

    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    terminal = Console(highlight=False, markup=False, emoji=False)
    if terminal.is_terminal:
        return terminal
    return Console(highlight=False, markup=False, emoji=False, width=max(terminal.width, 120))


def write_outputs(arguments: argparse.Namespace, timelines: Sequence[Timeline], html: str | None) -> list[str]:
    """Writes the requested outputs.

    Args:
        arguments: with ``output`` and ``png``.
        timelines: the runs.
        html: the page; None for no page.

    Returns:
        A sentence about each written output.
    """
    written = []
    if html is not None and arguments.output is not None:
        from ratioscope.report.page.files import write_page

        write_page(arguments.output, html)
        written.append(f"Written: {plain(str(arguments.output))}")
    if arguments.png is not None:
        from ratioscope.report.figures.figures import panels
        from ratioscope.report.figures.png import write_png

        n = write_png(panels(timelines), arguments.png)
        written.append(f"Written: {n} PNG files in {plain(str(arguments.png))}")
    return written
