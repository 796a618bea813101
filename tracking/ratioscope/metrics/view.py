"""View: a summary's state on the host, by name, and the few readings that every formula builds on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ratioscope.state import histogram
from ratioscope.state.length_histogram import quartile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ratioscope.correction.rule import Rule

QUANTILES = {
    "p001": 0.001,
    "p01": 0.01,
    "p05": 0.05,
    "p25": 0.25,
    "p50": 0.5,
    "p75": 0.75,
    "p95": 0.95,
    "p99": 0.99,
    "p999": 0.999,
}

_QS = tuple(QUANTILES.values())
_MAX_LOG = math.log(1.7976931348623157e308)


@dataclass(frozen=True)
class View:
    """A summary on the host, by name.

    Attributes:
        correction: the rule, or None.
        level: the level of the mode; ``"token"`` where there is no rule.
        trusted: False if the trainer's own weights differed from ours, which withholds all statistics of weights.
        sums: values of ``slots.SUMS``.
        maxima: values of ``slots.MAXIMA``.
        counts: values of ``slots.COUNTS``.
        histograms: bucket counts by ``slots.HISTOGRAMS``.
        lengths: counts by length of the row, by ``lengths.LENGTH_COUNTS``.
        top_log_ratios: the largest row log-ratios, descending.
    """

    correction: Rule | None
    level: str
    trusted: bool
    sums: Mapping[str, float]
    maxima: Mapping[str, float]
    counts: Mapping[str, int]
    histograms: Mapping[str, NDArray[np.int64]]
    lengths: Mapping[str, NDArray[np.int64]]
    top_log_ratios: NDArray[np.float64]
    _quantiles: dict[str, dict[str, float]] = field(default_factory=dict, repr=False)

    def mean(self, total: str, n: str, *, scale: float = 1.0) -> float | None:
        """A sum over its count."""
        return scale * self.sums[total] / self.counts[n] if self.counts[n] else None

    def fraction(self, part: str, n: str) -> float | None:
        """A count over another."""
        return self.counts[part] / self.counts[n] if self.counts[n] else None

    def count(self, name: str) -> float:
        """A count, 0 included."""
        return float(self.counts[name])

    def slot_max(self, name: str) -> float | None:
        """A maximum, None where nothing was seen."""
        value = self.maxima[name]
        return None if value == -math.inf else value

    def maximum(self, name: str) -> float | None:
        """Largest value seen."""
        return self.slot_max(f"{name}/max")

    def minimum(self, name: str) -> float | None:
        """Smallest value seen."""
        negated = self.slot_max(f"{name}/-min")
        return None if negated is None else -negated

    def exp(self, log: float | None) -> float | None:
        """Exponential, None where float64 cannot hold it."""
        return None if log is None or log > _MAX_LOG else math.exp(log)

    def ratio_min(self, level: str) -> float | None:
        """Smallest ratio of a level, exact."""
        return self.exp(self.minimum(level))

    def ratio_max(self, level: str) -> float | None:
        """Largest ratio of a level, exact."""
        return self.exp(self.maximum(level))

    def ratio_mean(self, level: str) -> float | None:
        """Mean ratio of a level, from the sum relative to the largest ratio."""
        largest, n = self.maximum(level), self.counts[f"{level}/n"]
        return None if largest is None else self.exp(largest + math.log(self.sums[f"{level}/w"] / n))

    def ratio_quantile(self, level: str, name: str) -> float | None:
        """Exponential of a quantile of the log-ratio."""
        low, high = self.minimum(level), self.maximum(level)
        if low is None or high is None:
            return None
        if level not in self._quantiles:
            counts = self.histograms[f"{level}_log_ratio"]
            found = histogram.quantiles(counts, _QS, minimum=low, maximum=high)
            self._quantiles[level] = dict(zip(QUANTILES, found, strict=False))
        return self.exp(self._quantiles[level].get(name))

    @cached_property
    def by_length(self) -> list[tuple[float, float]]:
        """Ratios and modified ones in the rows of each quartile of length."""
        quartiles = quartile(self.lengths["rows"])
        ratios, modified = (np.bincount(quartiles, self.lengths[name], 4).tolist() for name in ("ratios", "modified"))
        return list(zip(ratios, modified, strict=True))

    def corrected(self, value: float | None) -> float | None:
        """Returns the value; None if there is no rule or the weights are not trusted."""
        return value if self.trusted and self.correction is not None else None
