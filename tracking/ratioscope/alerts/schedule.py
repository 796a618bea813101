"""Schedule: decides after which windows a run is diagnosed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratioscope.diagnosis import Run

FIRST_WINDOWS = 3
"""Windows before the first diagnosis: fewer may be an accident."""
GROWTH, MOST_BETWEEN = 0.1, 10
"""A diagnosis is due when the run has grown by this fraction, and after this number of windows at the latest."""

Seen = tuple[str, bool] | None


class Schedule:
    """Decides when a diagnosis is due.

    Beside the regular times, the trend of the mismatch is looked at in every window, which takes about a millisecond.
    If it changed, a diagnosis is due in that window and in the next one, which confirms it.
    """

    def __init__(self) -> None:
        self._next = FIRST_WINDOWS
        self._windows = 0
        self._seen: tuple[Seen, Seen] = (None, None)

    def is_due(self, run: Run) -> bool:
        """Checks whether the run has grown by enough windows."""
        return run.windows >= self._next

    def is_urgent(self, run: Run) -> bool:
        """Checks whether the trend of the mismatch differs from that of one of the last two diagnoses."""
        started = run.windows >= FIRST_WINDOWS and run.windows > self._windows
        return started and self._seen != (_trend(run),) * 2

    def done(self, run: Run) -> None:
        """Notes that the run was diagnosed."""
        self._windows = run.windows
        self._next = run.windows + min(max(1, int(GROWTH * run.windows)), MOST_BETWEEN)
        self._seen = (self._seen[1], _trend(run))


def _trend(run: Run) -> Seen:
    change = run.change
    return None if change is None or change.healthy else (change.kind, change.excluded)
