"""From a record to what a tracker receives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope import metrics
from ratioscope.histogram import even_bins, view_exponent
from ratioscope.trackers.base import Row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratioscope.histogram import Bins
    from ratioscope.record import Record

SHOWN = ("token_log_ratio", "sequence_log_ratio", "corrected_log_ratio")
"""Histograms that trackers receive, under ``ratioscope/hist/``."""


class RowMaker:
    """Makes the rows of one run. Bin widths are chosen at a level's first record and kept, so that steps compare.

    Args:
        detail: which scalars are sent, as in :mod:`ratioscope.metrics`.
    """

    def __init__(self, detail: str = "standard") -> None:
        self._wanted, self._carried = metrics.keys(detail), metrics.keys("headline")
        self._complete = detail == "full"
        self._exponents: dict[str, int] = {}

    def follow(self, records: Iterable[Record]) -> None:
        """Chooses the widths that were chosen when these records, the run's first, were sent."""
        for record in records:
            self.bins(record)

    def make(self, record: Record, *, reported: bool = False) -> Row:
        """One row.

        Args:
            record: the window.
            reported: that the trainer itself reports the headline to this tracker, which is then left out, as it
                is where the record's own ``logs`` carry it.
        """
        prefix = "" if record.split == "train" else f"{record.split}/"
        health = record.health if self._complete else {}
        wanted = self._wanted - self._carried if reported or record.logs else self._wanted
        scalars = {prefix + key: value for key, value in record.scalars.items() if key in wanted}
        scalars |= {prefix + key: value for key, value in health.items()}
        bins = self.bins(record, prefix)
        return Row(record.step, record.split, record.time, scalars, bins, record, record.logs)

    def bins(self, record: Record, prefix: str = "") -> dict[str, Bins]:
        """Even bins of each histogram that has data."""
        shown: dict[str, Bins] = {}
        for name in SHOWN:
            counts = record.counts(name)
            level = name.split("_")[0]
            if level == "corrected":
                if record.correction is None or record.summary.count("disagreements"):
                    continue
                level = record.correction.level
            if not counts.any():
                continue
            if level not in self._exponents:
                low, high = (record.scalars.get(f"ratioscope/{level}/log_ratio/{end}", 0.0) for end in ("min", "max"))
                self._exponents[level] = view_exponent(counts, minimum=low, maximum=high)
            shown[f"{prefix}ratioscope/hist/{name}"] = even_bins(counts, self._exponents[level])
        return shown
