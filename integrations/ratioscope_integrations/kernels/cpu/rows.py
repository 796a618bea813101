"""Reduction of completions, one after another, so that each stays in the cache during all passes over it."""

# mypy: disable-error-code="untyped-decorator, assignment, no-any-return, return-value, arg-type"
# pyright: reportReturnType=false, reportArgumentType=false, reportAssignmentType=false
# Annotations are informative only: numba infers the types.

from __future__ import annotations

import numpy as np
from numba import njit

from ratioscope_integrations.kernels.cpu import positions, ratios
from ratioscope_integrations.kernels.cpu import sums as moments
from ratioscope_integrations.kernels.cpu.types import REACH, Array, Batch, Count, Kept, Row, Sum, TokenBounds


@njit(nogil=True, error_model="numpy")
def _extent(mask: Array) -> tuple[int, int]:
    """First masked-in column, and the one after the last; 0 and 0 if there is none."""
    first, stop = 0, len(mask)
    while first < stop and mask[first] == 0:
        first += 1
    while stop > first and mask[stop - 1] == 0:
        stop -= 1
    return (first, stop) if stop > first else (0, 0)


@njit(inline="always")
def _row(mask: Array, kept: Kept) -> Row:
    """Cuts a thread's buffers to the length of a completion."""
    size, narrow, wide = len(mask), kept.narrow, kept.wide
    return Row(
        mask,
        kept.valid[:size],
        narrow[0, :size],
        narrow[1, :size],
        narrow[2, :size],
        narrow[3, :size],
        narrow[4, :size],
        wide[0, :size],
        wide[1, :size],
    )


@njit(inline="always")
def _add_up(row: Row, n: int, sums: Array, counts: Array) -> None:
    """Fills the sums and counts that need no rule; the exponentials must precede the ratios."""
    moments.log_ratios(row, sums)
    moments.moments(row, sums)
    moments.exact(row, counts)
    moments.neighbours(row, n, sums, counts)
    ratios.exponentials(row)
    ratios.ratios(row, sums)
    ratios.outside(row.ratio, counts)


@njit(inline="always")
def _apply_rule(row: Row, rule: TokenBounds, applied: Array, sums: Array, counts: Array) -> int:
    """Applies the rule; returns 0 only if it changes nothing in the histogram."""
    ratios.ruled(row, rule, sums, counts)
    if len(applied):
        counts[Count.disagreements] = ratios.disagreements(row, applied)
    # A ratio within the bounds may have a log-ratio beyond a bound's logarithm by rounding; it is clamped then.
    beyond = (sums[Sum.largest] > rule.log_upper) + (sums[Sum.smallest] < rule.log_lower)
    return counts[Count.low] + counts[Count.high] + beyond


@njit(nogil=True, error_model="numpy")
def reduce_rows(offset: int, batch: Batch, rule: TokenBounds, kept: Kept) -> bool:
    """Reduces some of a batch's completions, the first of which has the index ``offset``.

    Returns:
        False if one of them is declined: a mask with other numbers than 0 and 1, or a log-ratio beyond :data:`REACH`.
    """
    smallest = np.argmin(kept.keys)
    for index in range(len(batch.mask)):
        sums, counts = kept.sums[offset + index], kept.counts[offset + index]
        first, end = _extent(batch.mask[index])
        train, rollout = batch.train[index, first:end], batch.rollout[index, first:end]
        row = _row(batch.mask[index, first:end], kept)
        masked_in, n, odd = moments.clean(row, train, rollout, batch.ratio[index, first:end])
        counts[Count.n], counts[Count.masked_in] = n, masked_in
        if n < masked_in:
            moments.refused(row.mask, train, rollout, counts)
        moments.extremes(row.d, row.valid, sums, Sum.largest)
        if odd or max(sums[Sum.largest], -sums[Sum.smallest]) > REACH:
            return False
        if batch.log_ratio.shape[1]:
            batch.log_ratio[index, first:end] = row.d
        _add_up(row, n, sums, counts)
        changed = 0
        if rule.acts:
            changed = _apply_rule(row, rule, batch.applied[index, first:end], sums, counts)
        positions.counted(row, rule, changed, kept.histograms)
        positions.sum_positions(row, n, kept.positions)
        ids = batch.token_ids[index, first:end]  # empty where ids are unknown: a slice ends with the array
        counts[Count.number] = positions.completion_number(row, n, ids, batch.advantage[index])
        smallest = positions.worst(row, offset + index, first, counts[Count.number], kept, smallest)
    return True
