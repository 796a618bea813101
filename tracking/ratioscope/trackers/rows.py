"""RowMaker: makes the rows that trackers receive from records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.metrics import catalogue
from ratioscope.state.histogram import even_bins, view_exponent
from ratioscope.trackers.base import Row, prefix_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ratioscope.record import Record
    from ratioscope.state.histogram import Bins

SHOWN = ("token_log_ratio", "sequence_log_ratio", "corrected_log_ratio")
"""Histograms that trackers receive, under ``ratioscope/hist/``."""


class RowMaker:
    """Makes the rows of one run. Bin widths are chosen at a level's first record and kept, so that steps compare.

    Args:
        detail: which scalars are sent, as in :mod:`ratioscope.metrics.metric`.
        exponents: bin widths ``2**exponent`` by level, where they are not to be chosen here.

    Attributes:
        wanted: keys of the statistics that are sent.
        exponents: the widths chosen so far.
    """

    def __init__(self, detail: str = "standard", *, exponents: Mapping[str, int] | None = None) -> None:
        self.wanted, self._carried = catalogue.keys(detail), catalogue.keys("headline")
        self._complete = detail == "full"
        self.exponents: dict[str, int] = dict(exponents or {})

    def follow(self, records: Iterable[Record]) -> None:
        """Chooses the bin widths again that were chosen when the run's first records were sent."""
        for record in records:
            self.bins(record)

    def make(self, record: Record, *, reported: bool = False) -> Row:
        """One row.

        Args:
            record: the window.
            reported: that the trainer itself reports the headline to this tracker, which is then left out, as it
                is where the record's own ``logs`` carry it.
        """
        prefix = prefix_of(record.split)
        health = {
            key: value for key, value in record.health.items() if self._complete or key.startswith("ratioscope/events/")
        }
        wanted = self.wanted - self._carried if reported or record.logs else self.wanted
        scalars = {prefix + key: value for key, value in record.scalars.items() if key in wanted}
        scalars |= {prefix + key: value for key, value in health.items()}
        bins = self.bins(record, prefix)
        return Row(record.step, record.split, record.time, scalars, bins, record, record.logs)

    def bins(self, record: Record, prefix: str = "") -> dict[str, Bins]:
        """Returns the even bins of each histogram that has data, by key with the prefix in front."""
        rule = None if record.summary.count("disagreements") else record.correction
        bins: dict[str, Bins] = {}
        for name in SHOWN:
            level = name.split("_")[0]
            if level == "corrected":
                if rule is None:
                    continue
                level = rule.level
            counts = record.counts(name)
            if not counts.any():
                continue
            if level not in self.exponents:
                low, high = (record.scalars.get(f"ratioscope/{level}/log_ratio/{end}", 0.0) for end in ("min", "max"))
                self.exponents[level] = view_exponent(counts, minimum=low, maximum=high)
            bins[f"{prefix}ratioscope/hist/{name}"] = even_bins(counts, self.exponents[level])
        return bins
