"""``ratioscope report``: reports on a run in the terminal, as a page and as pictures, once or with ``--watch``."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

from ratioscope.cli.arguments import PATH_HELP, add_outputs, sentence
from ratioscope.cli.outputs import check_outputs, console, write_outputs
from ratioscope.text import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ratioscope.runs.timeline import Timeline

WATCH_S = 10.0
"""Seconds between two readings of a watched run."""
_HINT = "Watching; Ctrl-C ends it."


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command."""
    text = "show what a run's numbers say, in the terminal and as a page"
    parser = commands.add_parser("report", help=text, description=sentence(text))
    parser.add_argument("path", help=PATH_HELP)
    add_outputs(parser, "report.html")
    watch = "look again every SECONDS (default: 10) until Ctrl-C, also where the run has not begun"
    parser.add_argument("--watch", type=float, nargs="?", const=WATCH_S, metavar="SECONDS", help=watch)
    parser.set_defaults(run_command=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    if arguments.watch is not None and not 0.1 <= arguments.watch < 1e6:
        arguments.parser.error(f"--watch: got {arguments.watch:g}; expected seconds from 0.1 on")
    if arguments.watch is not None and arguments.png is not None:
        arguments.parser.error("--png takes seconds for each figure and does not go with --watch; call it once more")
    check_outputs(arguments)
    if arguments.watch is not None:
        return watch(arguments)
    from ratioscope.report.terminal import render
    from ratioscope.runs.read import read

    with _uncollected():
        timeline = read(arguments.path)
        terminal = console()
        terminal.print(render(timeline))
        for line in _write(arguments, timeline) or ["Write an HTML page with: -o report.html"]:
            terminal.print(line, soft_wrap=True)
    return 0


def _write(arguments: argparse.Namespace, timeline: Timeline) -> list[str]:
    html = None
    if arguments.output is not None:
        from ratioscope.report.page.page import report_html

        html = report_html(timeline)
    return write_outputs(arguments, [timeline], html)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switches the garbage collector off: its walks through a long run's numbers take a tenth of a report's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def watch(arguments: argparse.Namespace) -> int:
    """Shows a run and writes its page, again after each change, until Ctrl-C.

    Waits for a run that has not begun, and for a journal that is locked or being created.

    Returns:
        0 if a report was displayed, else 1.

    Raises:
        JournalError: if the file is no journal, or of a newer version.
        ImportError: if a package is missing.
    """
    from ratioscope.journal.schema import JournalError

    watched = _WatchedRun(arguments)
    with ExitStack() as stack:
        screen = _Screen(stack)
        stack.enter_context(suppress(KeyboardInterrupt))
        while True:
            try:
                watched.refresh(screen)
            except (OSError, LookupError, sqlite3.OperationalError, JournalError) as error:
                # A locked database raises the same error as a foreign file; only the lock is temporary.
                if isinstance(error, JournalError) and not isinstance(error.__cause__, sqlite3.OperationalError):
                    raise
                watched.files = None
                reason = plain(" ".join(str(error).split()), 300)
                screen.set_status(f"Waiting, with a look every {arguments.watch:g} s: {reason}")
            sleep(arguments.watch)
    return 1 if watched.extent is None else 0


class _WatchedRun:
    """A run that is read again after each change of its files.

    Attributes:
        files: state of the journal's files at the last reading; None to read in any case.
        extent: extent of the last displayed run; None before the first.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.files: Any = None
        self.extent: Any = None

    def refresh(self, screen: _Screen) -> None:
        """Reads the run if its files changed, and displays and writes it if it has something new."""
        from ratioscope.report.terminal import render
        from ratioscope.runs.read import read

        before, self.files = self.files, _files(self._arguments.path)
        if self.files is not None and self.files == before:
            return
        timeline = read(self._arguments.path)
        if (extent := _extent(timeline)) == self.extent:
            screen.set_status(_HINT)
            return
        screen.show(render(timeline), " ".join([*_write(self._arguments, timeline), _HINT]))
        self.extent = extent


def _files(address: str) -> Any:
    """Returns a value that changes with a journal's files; None for a tracker's run, which has none."""
    from ratioscope.journal.schema import DIRECTORY, FILE
    from ratioscope.runs.read import tracker_of

    if tracker_of(address):
        return None
    states = []
    for path in (Path(address), Path(address, FILE), Path(address, DIRECTORY, FILE)):
        for file in (path, path.with_name(f"{path.name}-wal")):
            with suppress(OSError):
                state = file.stat()
                states.append((str(file), state.st_mtime_ns, state.st_size))
    return states or None


def _extent(timeline: Timeline) -> Any:
    """Returns a value that changes when a run has new windows, events or statistics."""
    steps = {key: (len(curve.steps), curve.steps[-1]) for key, curve in timeline.scalars.items() if curve.steps}
    return timeline.windows, len(timeline.events), steps


class _Screen:
    """Displays the newest report: in place on a terminal, one after the other elsewhere."""

    def __init__(self, stack: ExitStack) -> None:
        from rich.live import Live
        from rich.text import Text

        self._console = console()
        self._report: RenderableType = Text()
        self._status = ""
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)  # cut at the window's height until the end
            stack.enter_context(self._live)

    def show(self, report: RenderableType, status: str) -> None:
        """Displays a new report and its status line."""
        self._report, self._status = report, ""
        if self._live is None:
            self._console.print(report)
        self.set_status(status)

    def set_status(self, text: str) -> None:
        """Displays a status line if it differs from the last: above the report in place, below it elsewhere."""
        from rich.console import Group
        from rich.text import Text

        if text == self._status:
            return
        self._status = text
        if self._live is not None:
            self._live.update(Group(Text(text, "dim"), self._report), refresh=True)
        else:
            self._console.print(text, soft_wrap=True)
