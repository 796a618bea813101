"""Looking at a run again and again."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, suppress
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

from ratioscope.cli.outputs import console
from ratioscope.journal.schema import DIRECTORY, FILE, JournalError
from ratioscope.report.terminal import render
from ratioscope.runs.read import read, tracker_of
from ratioscope.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from ratioscope.runs.timeline import Timeline

_HINT = "Watching; Ctrl-C ends it."


def watch(address: str, seconds: float, write: Callable[[Timeline], list[str]]) -> int:
    """Shows a run and writes its page, again whenever there is something new, until Ctrl-C.

    A run that is not there yet is waited for, as is a journal that is locked or just being made.

    Args:
        address: as :func:`ratioscope.runs.read.read` takes it.
        seconds: between two looks.
        write: writes the outputs and says what it wrote.

    Returns:
        0 if anything was shown, else 1.

    Raises:
        JournalError: if the file is no journal, or of a newer version.
        ImportError: if a package is missing.
    """
    stamp: Any = None
    known: Any = None
    with ExitStack() as stack:
        screen = _Screen(stack)
        stack.enter_context(suppress(KeyboardInterrupt))
        while True:
            try:
                before, stamp = stamp, _stamp(address)
                if stamp is None or stamp != before:
                    timeline = read(address)
                    if (found := _extent(timeline)) != known:
                        screen.show(render(timeline), " ".join([*write(timeline), _HINT]))
                        known = found
                    else:
                        screen.say(_HINT)
            except (OSError, LookupError, sqlite3.OperationalError, JournalError) as error:
                # A locked journal cannot be told to be one, and that passes; what is another file stays another file.
                if isinstance(error, JournalError) and not isinstance(error.__cause__, sqlite3.OperationalError):
                    raise
                stamp = None
                reason = plain(" ".join(str(error).split()), 300)
                screen.say(f"Waiting, with a look every {seconds:g} s: {reason}")
            sleep(seconds)
    return 1 if known is None else 0


class _Screen:
    """Shows the newest report in place on a terminal, and one after the other elsewhere."""

    def __init__(self, stack: ExitStack) -> None:
        from rich.live import Live
        from rich.text import Text

        self._console = console()
        self._report: RenderableType = Text()
        self._said = ""
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)  # cut at the window's height until the end
            stack.enter_context(self._live)

    def show(self, report: RenderableType, text: str) -> None:
        """A new report, with a line beside it."""
        self._report, self._said = report, ""
        if self._live is None:
            self._console.print(report)
        self.say(text)

    def say(self, text: str) -> None:
        """The line beside the report: above it in place, below it elsewhere."""
        from rich.console import Group
        from rich.text import Text

        if text == self._said:
            return
        self._said = text
        if self._live is not None:
            self._live.update(Group(Text(text, "dim"), self._report), refresh=True)
        else:
            self._console.print(text, soft_wrap=True)


def _stamp(address: str) -> Any:
    """Changes when a journal's files do; None where there are none to look at."""
    if tracker_of(address):
        return None
    found = []
    for path in (Path(address), Path(address, FILE), Path(address, DIRECTORY, FILE)):
        for file in (path, path.with_name(f"{path.name}-wal")):
            with suppress(OSError):
                state = file.stat()
                found.append((str(file), state.st_mtime_ns, state.st_size))
    return found or None


def _extent(timeline: Timeline) -> Any:
    """Changes when a run has something new."""
    steps = {key: (len(curve.steps), curve.steps[-1]) for key, curve in timeline.scalars.items() if curve.steps}
    return timeline.windows, len(timeline.events), steps
