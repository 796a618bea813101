"""Supply: what a tracker still has to receive."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratioscope.journal.targets import Target
    from ratioscope.trackers.base import Row
    from ratioscope.trackers.rows import RowMaker


class Supply:
    """What a tracker still has to receive, as the journal knows it."""

    def __init__(self, target: Target, rows: RowMaker, *, reported: bool) -> None:
        self.target = target
        self._rows = rows
        self._reported = reported

    def take(self, limit: int) -> list[tuple[int, Row]]:
        """The oldest missing rows with their records' ids."""
        missing = self.target.missing(limit)
        return [(identifier, self._rows.make(record, reported=self._reported)) for identifier, record in missing]
