"""Batch totals from the sums and counts of each completion, compiled by numba."""

# mypy: disable-error-code="untyped-decorator, assignment, no-any-return, return-value, arg-type"
# pyright: reportReturnType=false, reportArgumentType=false, reportAssignmentType=false
# Annotations are informative only: numba infers the types.

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
def finish(sums: Array, counts: Array, advantages: Array, acts: bool, out: Finished) -> None:
    """Fills ``out`` from the completions' sums and counts.

    Args:
        sums: float64 ``(rows, len(Sum))``.
        counts: int64 ``(rows, len(Count))``.
        advantages: float32 ``(rows,)``, or empty.
        acts: True if there is a rule by token.
        out: filled in place.
    """
    total, count, found = out.total, out.counted, out.found
    for row in range(len(sums)):
        total += sums[row]
        count += counts[row]
    tokens(sums, counts, found)
    completions(sums, counts, out)
    completion_sums(counts, out)
    at_length(counts, acts, out)
    if acts:
        ruled(sums, counts, advantages, out)
    largest(sums, counts, advantages, out)
    total += 0.0  # turns -0 into 0: a merge that adds 0 to -0 would change its bits
    found += 0.0


@njit(nogil=True, error_model="numpy")
def tokens(sums: Array, counts: Array, found: Array) -> None:
    """Extremes over tokens, and sums of exponentials rescaled to a common maximum.

    Each completion's sums are relative to its own largest log-ratio, so that none overflows; here they become relative
    to the largest of the batch.
    """
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
def completions(sums: Array, counts: Array, out: Finished) -> None:
    """Log-ratio, means, extremes and perplexities of completions; empty ones count as such alone."""
    found, seen, single = out.found, out.seen, out.single
    high, low, most, least, widest = -np.inf, np.inf, -np.inf, np.inf, -np.inf
    for row in range(len(sums)):
        n = counts[row, Count.n]
        divisor = float(max(n, 1))
        # The sum is exact and then rounded to float32, so its bits do not depend on padding or splits of the batch.
        single[0, row] = np.float32(min(max(sums[row, Sum.d], -_LARGEST), _LARGEST))
        out.row_d[row] = np.float64(single[0, row])
        geometric, spread = out.row_d[row] / divisor, sums[row, Sum.abs_d] / divisor
        single[1, row], single[2, row] = geometric, spread
        if n == 0:
            continue
        high, low = max(high, out.row_d[row]), min(low, out.row_d[row])
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


@njit(nogil=True, error_model="numpy")
def completion_sums(counts: Array, out: Finished) -> None:
    """Histograms of completions, and sums over them; exponentials are relative to the largest log-ratio of all."""
    found, seen, bits, high = out.found, out.seen, out.single.view(np.int32), out.found[Found.sequence_max]
    for row in range(len(counts)):
        if counts[row, Count.n] == 0:
            continue
        out.histograms[0, bucket(bits[0, row])] += 1
        out.histograms[1, bucket(bits[1, row])] += 1
        d = out.row_d[row]
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
def at_length(counts: Array, acts: bool, out: Finished) -> None:
    """Fills the histogram by length as :func:`ratioscope.state.length_histogram.count` does."""
    length = np.empty(1, np.float32)
    for row in range(len(counts)):
        n = counts[row, Count.n]
        if n > 0:
            length[0] = n  # the exponent of a float is the octave
            octave = np.int64(length.view(np.int32)[0] >> MANTISSA_SHIFT) - OFFSET
            octave_index: Any = min(max(octave, 0), N_LENGTHS - 1)
            out.lengths[0, octave_index] += 1
            if acts:
                out.lengths[1, octave_index] += n
                out.lengths[2, octave_index] += counts[row, Count.low] + counts[row, Count.high]


@njit(nogil=True, error_model="numpy")
def ruled(sums: Array, counts: Array, advantages: Array, out: Finished) -> None:
    """Effect of the rule by sign of the advantage, equal to :mod:`ratioscope.summary.rule_effect`."""
    found, seen, high, low = out.found, out.seen, -np.inf, np.inf
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
def largest(sums: Array, counts: Array, advantages: Array, out: Finished) -> None:
    """Fills the columns of :mod:`ratioscope.state.tables` for completions, and the indices of the worst, in order."""
    keys = np.full(N_ROWS, np.iinfo(np.int64).min)
    bits = out.single.view(np.int32)
    for row in range(len(sums)):
        n, number = counts[row, Count.n], counts[row, Count.number]
        line = out.rows[row]
        line[0] = np.float64(out.single[2, row])
        line[1], line[2], line[3], line[4], line[6] = n, number, 0.0, 0.0, out.row_d[row]
        line[5] = np.float64(advantages[row]) if len(advantages) else np.nan
        if n == 0:
            continue
        # Bits of a float >= 0 have the order of its value. The completion's number breaks ties.
        key = (np.int64(bits[2, row]) << 32) + ((number >> 20) - (1 << 31))
        rank = N_ROWS
        while rank > 0 and key > keys[rank - 1]:
            rank -= 1
        for later in range(N_ROWS - 1, rank, -1):
            keys[later], out.worst[later] = keys[later - 1], out.worst[later - 1]
        if rank < N_ROWS:
            keys[rank], out.worst[rank] = key, row
