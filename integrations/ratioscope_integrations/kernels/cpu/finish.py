"""What follows from a batch's rows once each of them is reduced, compiled by numba as well."""

# mypy: disable-error-code="untyped-decorator, assignment, no-any-return, return-value, arg-type"
# pyright: reportReturnType=false, reportArgumentType=false, reportAssignmentType=false
# Types are numba's in here: annotations say what is meant, but a float may be a numpy.float64.

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from ratioscope.numerics import FLOAT32_MAX, OVERFLOW
from ratioscope.state.length_histogram import MANTISSA_SHIFT, N_LENGTHS, OFFSET
from ratioscope.state.slots import N_ROWS
from ratioscope_integrations.kernels.cpu.positions import bucket
from ratioscope_integrations.kernels.cpu.types import Array, Count, Finished, Found, Seen, Sum

_LARGEST = float(FLOAT32_MAX)


@njit(nogil=True, error_model="numpy")
def finish(sums: Array, counts: Array, advantages: Array, acts: bool, by: Finished) -> None:
    """Fills in ``by`` from rows.

    Args:
        sums: float64 ``(rows, len(Sum))``.
        counts: int64 ``(rows, len(Count))``.
        advantages: float32 ``(rows,)``, or empty.
        acts: whether there is a rule by token.
        by: what is filled in.
    """
    total, count, found = by.total, by.counted, by.found
    for row in range(len(sums)):
        total += sums[row]
        count += counts[row]
    tokens(sums, counts, found)
    rows(sums, counts, by)
    at_length(counts, acts, by)
    if acts:
        ruled(sums, counts, advantages, by)
    largest(sums, counts, advantages, by)
    total += 0.0  # never -0, to which adding nothing would be a change
    found += 0.0


@njit(nogil=True, error_model="numpy")
def tokens(sums: Array, counts: Array, found: Array) -> None:
    """Extremes of tokens, and sums of exponentials, each row's relative to its own maximum, brought to that of all."""
    high, low, gap = -np.inf, np.inf, -np.inf
    for row in range(len(sums)):
        high = max(high, sums[row, Sum.largest])
        low = min(low, sums[row, Sum.smallest])
        if counts[row, Count.n] > 0:
            gap = max(gap, sums[row, Sum.difference_max])
    for row in range(len(sums)):
        if counts[row, Count.n] > 0:
            shift = sums[row, Sum.largest] - high
            factor = math.exp(shift)
            w = sums[row, Sum.w]
            found[Found.token_w] += w * factor
            found[Found.token_w2] += sums[row, Sum.w2] * factor * factor
            found[Found.token_wd] += (sums[row, Sum.wd] + shift * w) * factor
    found[Found.token_max], found[Found.token_min], found[Found.difference_max] = high, -low, gap


@njit(nogil=True, error_model="numpy")
def rows(sums: Array, counts: Array, by: Finished) -> None:
    """Row-level sums, maxima, counts and histograms."""
    found, seen, single = by.found, by.seen, by.single
    high, low, most, least, widest = -np.inf, np.inf, -np.inf, np.inf, -np.inf
    for row in range(len(sums)):
        n = counts[row, Count.n]
        divisor = float(max(n, 1))
        # Rounded to float32 after an exact sum: the same bits however the batch is padded or split.
        single[0, row] = np.float32(min(max(sums[row, Sum.d], -_LARGEST), _LARGEST))
        by.row_d[row] = np.float64(single[0, row])
        geometric, spread = by.row_d[row] / divisor, sums[row, Sum.abs_d] / divisor
        single[1, row], single[2, row] = geometric, spread
        if n == 0:
            continue
        high, low = max(high, by.row_d[row]), min(low, by.row_d[row])
        most, least, widest = max(most, geometric), min(least, geometric), max(widest, spread)
        seen[Seen.live] += 1
        seen[Seen.over_1nat] += spread > 1.0
        found[Found.geometric] += math.exp(geometric)
        found[Found.perplexity_train] += math.exp(-sums[row, Sum.y] / divisor)
        found[Found.perplexity_rollout] += math.exp(-sums[row, Sum.x] / divisor)
        found[Found.perplexity_ratio] += math.exp(-sums[row, Sum.d] / divisor)
    seen[Seen.empty] = len(sums) - seen[Seen.live]
    found[Found.sequence_max], found[Found.sequence_min] = high, -low
    found[Found.geometric_max], found[Found.geometric_min] = most, -least
    found[Found.abs_mean_max] = widest
    bits = single.view(np.int32)
    for row in range(len(sums)):
        if counts[row, Count.n] == 0:
            continue
        by.histograms[0, bucket(bits[0, row])] += 1
        by.histograms[1, bucket(bits[1, row])] += 1
        d = by.row_d[row]
        relative, excess = d - high, math.expm1(d)
        weight = math.exp(relative)
        found[Found.d] += d
        found[Found.abs_d] += abs(d)
        found[Found.d2] += d * d
        found[Found.k3] += excess - d
        found[Found.excess] += excess
        found[Found.excess2] += excess * excess
        found[Found.w] += weight
        found[Found.w2] += weight * weight
        found[Found.wd] += weight * relative
        seen[Seen.overflow] += d > OVERFLOW


@njit(nogil=True, error_model="numpy")
def at_length(counts: Array, acts: bool, by: Finished) -> None:
    """As :func:`ratioscope.state.length_histogram.count` has it."""
    length = np.empty(1, np.float32)
    for row in range(len(counts)):
        n = counts[row, Count.n]
        if n > 0:
            length[0] = n
            octave = np.int64(length.view(np.int32)[0] >> MANTISSA_SHIFT) - OFFSET
            at: Any = min(max(octave, 0), N_LENGTHS - 1)
            by.lengths[0, at] += 1
            if acts:
                by.lengths[1, at] += n
                by.lengths[2, at] += counts[row, Count.low] + counts[row, Count.high]


@njit(nogil=True, error_model="numpy")
def ruled(sums: Array, counts: Array, advantages: Array, by: Finished) -> None:
    """What the rule did, and on which side of the advantages, as :mod:`ratioscope.summary.rule_effect` has it."""
    found, seen, high, low = by.found, by.seen, -np.inf, np.inf
    for row in range(len(sums)):
        high, low = max(high, sums[row, Sum.weight_max]), min(low, sums[row, Sum.weight_min])
        if len(advantages):
            n, modified = counts[row, Count.n], counts[row, Count.low] + counts[row, Count.high]
            advantage = np.float64(advantages[row])
            if advantage > 0.0:
                seen[Seen.positive_n] += n
                seen[Seen.positive_modified] += modified
            elif advantage < 0.0:
                seen[Seen.negative_n] += n
                seen[Seen.negative_modified] += modified
            found[Found.gradient_raw] += abs(advantage) * sums[row, Sum.raw]
            found[Found.gradient_removed] += abs(advantage) * sums[row, Sum.removed]
    found[Found.corrected_max], found[Found.corrected_min] = high, -low


@njit(nogil=True, error_model="numpy")
def largest(sums: Array, counts: Array, advantages: Array, by: Finished) -> None:
    """Fills rows as :mod:`ratioscope.state.tables` has them, and which are worst, in order; -1 for none."""
    keys = np.full(N_ROWS, np.iinfo(np.int64).min)
    bits = by.single.view(np.int32)
    for row in range(len(sums)):
        n, number = counts[row, Count.n], counts[row, Count.number]
        line = by.rows[row]
        line[0] = np.float64(by.single[2, row])
        line[1], line[2], line[3], line[4], line[6] = n, number, 0.0, 0.0, by.row_d[row]
        line[5] = np.float64(advantages[row]) if len(advantages) else np.nan
        if n == 0:
            continue
        key = (np.int64(bits[2, row]) << 32) + ((number >> 20) - (1 << 31))
        at = N_ROWS
        while at > 0 and key > keys[at - 1]:
            at -= 1
        for later in range(N_ROWS - 1, at, -1):
            keys[later], by.worst[later] = keys[later - 1], by.worst[later - 1]
        if at < N_ROWS:
            keys[at], by.worst[at] = key, row
