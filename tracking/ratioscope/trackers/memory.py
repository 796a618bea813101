"""A tracker that keeps what it receives: the fake for tests, ours and yours."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ratioscope.event import Event
    from ratioscope.trackers.base import Row, RunContext


class MemoryTracker:
    """Keeps every row in memory.

    Example:
        >>> tracker = MemoryTracker()
        >>> recorder = Recorder(report_to=[tracker])  # doctest: +SKIP

    Attributes:
        run: the context it was opened with; None before.
        rows: what was written, oldest first.
        events: what the diagnosis told, oldest first.
        closed: whether ``close`` was called.
    """

    name: ClassVar[str] = "memory"
    background: ClassVar[bool] = False

    def __init__(self) -> None:
        self.run: RunContext | None = None
        self.rows: list[Row] = []
        self.events: list[Event] = []
        self.closed = False

    def open(self, run: RunContext) -> bool:
        """Remembers the run."""
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
        """One line for a person."""
        return f"{len(self.rows)} rows in memory"
