"""One pass over a batch's rows on the CPU, compiled by numba: each row is reduced while it is in the cache."""

# mypy: disable-error-code="untyped-decorator, assignment, no-any-return, return-value, arg-type"
# pyright: reportReturnType=false, reportArgumentType=false, reportAssignmentType=false
# Types are numba's in here: annotations say what is meant, but a float may be a numpy.float64.

from __future__ import annotations

import numpy as np
from numba import njit

from ratioscope_integrations.kernels.cpu import positions, ratios
from ratioscope_integrations.kernels.cpu import sums as moments
from ratioscope_integrations.kernels.cpu.types import REACH, Array, Batch, Count, Kept, Row, Sum, TokenBounds


@njit(nogil=True, error_model="numpy")
def _reach(mask: Array) -> tuple[int, int]:
    """First masked-in column, and the one behind the last; 0 and 0 if there is none."""
    first, stop = 0, len(mask)
    while first < stop and mask[first] == 0:
        first += 1
    while stop > first and mask[stop - 1] == 0:
        stop -= 1
    return (first, stop) if stop > first else (0, 0)


@njit(nogil=True, error_model="numpy")
def reduce_rows(offset: int, batch: Batch, rule: TokenBounds, kept: Kept) -> bool:
    """Reduces some of a batch's rows, of which the first is row ``offset``.

    Returns:
        Whether all of it could be: no mask but 0 and 1, no log-ratio beyond :data:`REACH`.
    """
    valid, narrow, wide = kept.valid, kept.narrow, kept.wide
    smallest = np.argmin(kept.keys)
    for at in range(len(batch.mask)):
        sums, counts = kept.sums[offset + at], kept.counts[offset + at]
        first, end = _reach(batch.mask[at])
        size = end - first
        train, rollout = batch.train[at, first:end], batch.rollout[at, first:end]
        row = Row(
            batch.mask[at, first:end],
            valid[:size],
            narrow[0, :size],
            narrow[1, :size],
            narrow[2, :size],
            narrow[3, :size],
            narrow[4, :size],
            wide[0, :size],
            wide[1, :size],
        )
        masked_in, n, odd = moments.clean(row, train, rollout, batch.ratio[at, first:end])
        counts[Count.n], counts[Count.masked_in] = n, masked_in
        if n < masked_in:
            moments.refused(row.mask, train, rollout, counts)
        moments.extremes(row.d, row.valid, sums, Sum.largest)
        if odd or max(sums[Sum.largest], -sums[Sum.smallest]) > REACH:
            return False
        if batch.log_ratio.shape[1]:
            batch.log_ratio[at, first:end] = row.d
        moments.log_ratios(row, sums)
        moments.moments(row, sums)
        moments.exact(row, counts)
        moments.neighbours(row, n, sums, counts)
        ratios.exponentials(row)
        ratios.ratios(row, sums)
        ratios.outside(row.ratio, counts)
        moved = 0
        if rule.acts:
            ratios.ruled(row, rule, sums, counts)
            if batch.applied.shape[1]:
                counts[Count.disagreements] = ratios.disagreements(row, batch.applied[at, first:end])
            # A kept ratio's logarithm may be beyond a bound's by its rounding, and is clamped then.
            beyond = (sums[Sum.largest] > rule.log_upper) + (sums[Sum.smallest] < rule.log_lower)
            moved = counts[Count.low] + counts[Count.high] + beyond
        positions.counted(row, rule, moved, kept.histograms)
        positions.placed(row, n, kept.places)
        ids = batch.token_ids[at, first:end] if batch.token_ids.shape[1] else batch.token_ids[at]
        counts[Count.number] = positions.completion_number(row, n, ids, batch.advantage[at])
        smallest = positions.worst(row, offset + at, first, counts[Count.number], kept, smallest)
    return True
