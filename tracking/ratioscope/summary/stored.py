"""StoredSummary: a summary as a journal stores it, whose arrays are made at first use."""

# pyright: reportIncompatibleVariableOverride=false
# A stored summary computes at first use what the base class holds as a field.

from __future__ import annotations

from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.state import histogram
from ratioscope.state.host_tables import HostTables
from ratioscope.state.length_histogram import LENGTH_COUNTS, N_LENGTHS
from ratioscope.state.slots import COUNTS, HISTOGRAMS, MAXIMA, SUMS
from ratioscope.summary.host import HostSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from ratioscope.correction.rule import Rule

_SUM_VALUES, _COUNT_VALUES = itemgetter(*SUMS), itemgetter(*COUNTS)


class StoredSummary(HostSummary):
    """Inverse of :meth:`HostSummary.to_json`. Unknown names are ignored, and missing ones were not observed.

    Args:
        data: the plain JSON, which must not change.
        correction: the rule whose effect is counted; None where nothing was corrected.
    """

    _data: Mapping[str, Any]

    def __init__(self, data: Mapping[str, Any], correction: Rule | None) -> None:
        object.__setattr__(self, "correction", correction)
        object.__setattr__(self, "_data", data)

    @cached_property
    def maxima(self) -> NDArray[np.float64]:
        """Decoded ``maxima`` of the stored JSON."""
        return np.array([self._data["maxima"].get(name, -np.inf) for name in MAXIMA], dtype=np.float64)

    @cached_property
    def sums(self) -> NDArray[np.float64]:
        """Decoded ``sums`` of the stored JSON."""
        return np.array(_slots(_SUM_VALUES, SUMS, self._data["sums"]), dtype=np.float64)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Decoded ``counts`` of the stored JSON."""
        return np.array(_slots(_COUNT_VALUES, COUNTS, self._data["counts"]), dtype=np.int64)

    @cached_property
    def histograms(self) -> NDArray[np.int64]:
        """Decoded ``histograms`` of the stored JSON."""
        return _from_sparse(self._data["histograms"], HISTOGRAMS, histogram.N_BUCKETS)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Decoded ``lengths`` of the stored JSON."""
        return _from_sparse(self._data.get("lengths", {}), LENGTH_COUNTS, N_LENGTHS)

    @cached_property
    def top(self) -> HostTables:
        """Decoded ``top`` of the stored JSON."""
        return HostTables.from_json(self._data.get("top", {}))

    def compact(self, total: HostTables) -> HostSummary:
        """Decodes all that counts in a merge with the tables of a total, so that the JSON is not needed any more."""
        arrays = (self.maxima, self.sums, self.counts, self.histograms, self.lengths)
        return HostSummary(self.correction, *arrays, self.top.entering(total))


def _slots(
    take: Callable[[Mapping[str, Any]], Sequence[Any]], names: Sequence[str], stored: Mapping[str, Any]
) -> Sequence[Any]:
    """Returns values in the order of the names; an older journal lacks some, which are 0."""
    try:
        return take(stored)
    except KeyError:
        return [stored.get(name, 0) for name in names]


def _from_sparse(stored: Mapping[str, Any], names: Sequence[str], size: int) -> NDArray[np.int64]:
    counts = np.zeros((len(names), size), dtype=np.int64)
    for row, name in zip(counts, names, strict=True):
        if name in stored:
            histogram.add_sparse(row, stored[name])
    return counts
