"""Tracker that keeps its rows in memory, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.trackers.base import Tracker

if TYPE_CHECKING:
    from ratioscope.event import Event
    from ratioscope.trackers.base import Row, RunContext


class MemoryTracker(Tracker):
    """Keeps all rows and events in memory.

    Example:
        >>> tracker = MemoryTracker()
        >>> recorder = Recorder(report_to=[tracker])  # doctest: +SKIP

    Attributes:
        run: the context of ``open``; None before.
        rows: the rows written so far, oldest first.
        events: the events of the diagnosis, oldest first.
        closed: whether ``close`` was called.
    """

    name = "memory"

    def __init__(self) -> None:
        self.run: RunContext | None = None
        self.rows: list[Row] = []
        self.events: list[Event] = []
        self.closed = False

    def open(self, run: RunContext) -> bool:
        """Stores the run's context."""
        self.run = run
        return True

    def write(self, row: Row) -> None:
        """Appends the row."""
        self.rows.append(row)

    def alert(self, event: Event) -> None:
        """Appends the event."""
        self.events.append(event)

    def close(self) -> None:
        """Marks the tracker as closed."""
        self.closed = True

    def where(self) -> str:
        """Returns the number of rows."""
        return f"{len(self.rows)} rows in memory"
