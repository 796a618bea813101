"""HostSummary: the state of a window on the host, as numpy arrays; what a record holds and a journal stores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.metrics.catalogue import compute
from ratioscope.metrics.view import View
from ratioscope.state import histogram
from ratioscope.state.host_tables import SIZES, HostTables
from ratioscope.state.length_histogram import LENGTH_COUNTS, N_LENGTHS
from ratioscope.state.slots import COUNTS, GENERATIONS, HISTOGRAMS, LEVELS, MAXIMA, SUMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ratioscope.correction.rule import Rule

PACKED_SIZES = (
    len(MAXIMA),
    len(SUMS),
    len(COUNTS),
    len(HISTOGRAMS) * histogram.N_BUCKETS,
    len(LENGTH_COUNTS) * N_LENGTHS,
    sum(SIZES),
)
"""Number of float64 of each part of a packed summary, in order."""
_STARTS = np.cumsum(PACKED_SIZES)[:-1]

PACKED_SIZE = sum(PACKED_SIZES)
"""Number of float64 in a packed summary, whatever was observed: about 73 KB."""


@dataclass(frozen=True, eq=False)
class HostSummary:
    """Observations of one window, or of several merged ones, reduced; no array is ever changed in place.

    Attributes:
        correction: the rule whose effect is counted; None where nothing was corrected.
        maxima: float64, one slot for each of ``slots.MAXIMA``; minima are kept negated.
        sums: float64, one slot for each of ``slots.SUMS``.
        counts: int64, one slot for each of ``slots.COUNTS``.
        histograms: int64 ``(len(HISTOGRAMS), N_BUCKETS)``.
        lengths: int64 ``(len(LENGTH_COUNTS), N_LENGTHS)``, by length of the completion.
        top: the largest log-ratios of completions, the worst tokens and the worst completions.
    """

    correction: Rule | None
    maxima: NDArray[np.float64]
    sums: NDArray[np.float64]
    counts: NDArray[np.int64]
    histograms: NDArray[np.int64]
    lengths: NDArray[np.int64]
    top: HostTables

    @classmethod
    def empty(cls, correction: Rule | None = None) -> HostSummary:
        """Returns the identity of :meth:`merge`."""
        maxima = np.full(len(MAXIMA), -np.inf)
        maxima[GENERATIONS] = 0.0
        return cls(
            correction,
            maxima=maxima,
            sums=np.zeros(len(SUMS)),
            counts=np.zeros(len(COUNTS), dtype=np.int64),
            histograms=np.zeros((len(HISTOGRAMS), histogram.N_BUCKETS), dtype=np.int64),
            lengths=np.zeros((len(LENGTH_COUNTS), N_LENGTHS), dtype=np.int64),
            top=HostTables.empty(),
        )

    def merge(self, *others: HostSummary) -> HostSummary:
        """Merges all summaries' observations. Generations add up.

        Raises:
            ValueError: if two of them follow different corrections, whose effects cannot be pooled.
        """
        parts = (self, *others)
        old = np.stack([part.maxima for part in parts])
        maxima = old.max(axis=0)
        maxima[GENERATIONS] = old[:, GENERATIONS].sum()
        return HostSummary(
            reduce(common_correction, (part.correction for part in parts)),
            maxima=maxima,
            sums=_rescaled(np.stack([part.sums for part in parts]), old, maxima).sum(axis=0),
            counts=np.sum([part.counts for part in parts], axis=0),
            histograms=_total([part.histograms for part in parts]),
            lengths=_total([part.lengths for part in parts]),
            top=self.top.merge(*(part.top for part in others)),
        )

    def with_correction(self, correction: Rule | None) -> HostSummary:
        """Returns the observations under another rule's name, or under none, so that they merge with others."""
        arrays = (self.maxima, self.sums, self.counts, self.histograms, self.lengths)
        return HostSummary(correction, *arrays, self.top)

    def compact(self, total: HostTables) -> HostSummary:
        """Returns a summary without the rows of tables that could not enter those of a total; may keep all."""
        return self

    @classmethod
    def unpack(cls, packed: NDArray[np.float64], *, correction: Rule | None = None) -> HostSummary:
        """Reads the vector that :meth:`ratioscope.RatioSummary.pack` makes; the correction is not part of it."""
        maxima, sums, counts, histograms, lengths, top = np.split(packed, _STARTS)
        return cls(
            correction,
            maxima=maxima,
            sums=sums,
            counts=counts.astype(np.int64),
            histograms=histograms.astype(np.int64).reshape(len(HISTOGRAMS), histogram.N_BUCKETS),
            lengths=lengths.astype(np.int64).reshape(len(LENGTH_COUNTS), N_LENGTHS),
            top=HostTables.unpack(top),
        )

    def metrics(self, *, detail: str = "full") -> dict[str, float]:
        """Computes every statistic that has data, by full key; finite Python floats, none if all observations failed.

        Args:
            detail: ``"headline"``, ``"standard"`` or ``"full"``, as in :mod:`ratioscope.metrics.metric`.
        """
        # Counts of 0 would state that the batches had no token, which nobody has seen.
        return {} if self.count("errors") and self.maxima[GENERATIONS] <= 0.0 else compute(self.view(), detail=detail)

    def view(self) -> View:
        """Returns the state by name, as formulas read it."""
        return View(
            correction=self.correction,
            level=self.correction.level if self.correction else "token",
            trusted=not self.count("disagreements"),
            sums=dict(zip(SUMS, self.sums.tolist(), strict=True)),
            maxima=dict(zip(MAXIMA, self.maxima.tolist(), strict=True)),
            counts=dict(zip(COUNTS, self.counts.tolist(), strict=True)),
            histograms=dict(zip(HISTOGRAMS, self.histograms, strict=True)),
            lengths=dict(zip(LENGTH_COUNTS, self.lengths, strict=True)),
            top_log_ratios=self.top.log_ratios[self.top.log_ratios > -np.inf],
        )

    def count(self, name: str) -> int:
        """Returns one slot of ``slots.COUNTS``."""
        return int(self.counts[COUNTS.index(name)])

    def histogram(self, name: str) -> NDArray[np.int64]:
        """Returns the bucket counts of one of ``slots.HISTOGRAMS``, int64 ``(N_BUCKETS,)``."""
        counts: NDArray[np.int64] = self.histograms[HISTOGRAMS.index(name)]
        return counts

    def __eq__(self, other: object) -> bool:
        """True if rule and state are equal to the bit; one NaN is like another."""
        if not isinstance(other, HostSummary):
            return NotImplemented
        return self.correction == other.correction and np.array_equal(self._bits(), other._bits())

    __hash__ = None  # type: ignore[assignment]

    def _bits(self) -> NDArray[np.int64]:
        arrays = (self.maxima, self.sums, self.counts, self.histograms, self.lengths, self.top.pack())
        packed = np.concatenate([array.ravel().astype(np.float64) for array in arrays])
        return np.where(np.isnan(packed), np.nan, packed).view(np.int64)

    def to_json(self) -> dict[str, Any]:
        """State by name as plain JSON: infinities as strings, histograms sparse, maxima without data left out.

        :class:`ratioscope.summary.stored.StoredSummary` reads it.
        """
        maxima = dict(zip(MAXIMA, self.maxima.tolist(), strict=True))
        return {
            "maxima": {name: _to_json(value) for name, value in maxima.items() if value != -np.inf},
            "sums": {name: _to_json(value) for name, value in zip(SUMS, self.sums.tolist(), strict=True)},
            "counts": dict(zip(COUNTS, self.counts.tolist(), strict=True)),
            "histograms": _to_sparse(HISTOGRAMS, self.histograms),
            "lengths": _to_sparse(LENGTH_COUNTS, self.lengths),
            "top": self.top.to_json(),
        }


def common_correction(one: Rule | None, other: Rule | None) -> Rule | None:
    """Returns the rule of two summaries that are to be merged.

    Raises:
        ValueError: if they follow different ones.
    """
    if one is not None and other is not None and one != other:
        msg = f"got summaries of different corrections, {one} and {other}; "
        msg += "expected the same rule. Flush before the rule changes, or keep one summary for each."
        raise ValueError(msg)
    return one or other


def _rescaled(sums: NDArray[np.float64], old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """Brings sums of exponentials relative to ``old`` maxima to ``new`` ones, as :mod:`ratioscope.state.rescale`.

    Args:
        sums: ``(n, len(SUMS))``, which is changed.
        old: ``(n, len(MAXIMA))``.
        new: ``(len(MAXIMA),)``.
    """
    reference, w = old[:, _MAX], sums[:, _W]
    with np.errstate(all="ignore"):
        # Where nothing was seen the maximum is minus infinity, and the sums are 0.
        shift = np.where(reference > -np.inf, reference - new[_MAX], 0.0)
        factor = np.exp(shift)
        sums[:, _WD] = (sums[:, _WD] + shift * w) * factor
        sums[:, _W2] *= factor * factor
        sums[:, _W] = w * factor
    return sums


_MAX = [MAXIMA.index(f"{level}/max") for level in LEVELS]
_W, _W2, _WD = ([SUMS.index(f"{level}/{name}") for level in LEVELS] for name in ("w", "w2", "wd"))


def _total(arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Adds large arrays one by one: stacking them would copy each first."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


def _to_sparse(names: Sequence[str], rows: NDArray[np.int64]) -> dict[str, dict[str, list[int]]]:
    return {name: histogram.to_sparse(row) for name, row in zip(names, rows, strict=True)}


def _to_json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
