"""Histograms, sums by position, number and worst tokens of one completion."""

# mypy: disable-error-code="untyped-decorator, assignment, no-any-return, return-value, arg-type"
# pyright: reportReturnType=false, reportArgumentType=false, reportAssignmentType=false
# Annotations are informative only: numba infers the types.

from __future__ import annotations

import numpy as np
from numba import njit

from ratioscope.state.histogram import EXPONENT_BIAS, MANTISSA_BITS, MIN_EXPONENT, SUB_BUCKET_BITS, ZERO
from ratioscope.state.slots import SPREAD
from ratioscope.summary.worst_tokens import ID_FACTOR, NUMBER_FACTOR, ROLLOUT_FACTOR
from ratioscope_integrations.kernels.cpu.types import N_LANES, N_TENTHS, N_TURNS, Array, Kept, Row, TokenBounds

_PER_SIDE = ZERO - 1
_SHIFT = MANTISSA_BITS - SUB_BUCKET_BITS
_OFFSET = (EXPONENT_BIAS + MIN_EXPONENT) << SUB_BUCKET_BITS
_BLOCK = 128


@njit(inline="always")
def bucket(bits: int) -> int:
    """Bucket of a float32, given its bits, equal to :func:`ratioscope.state.histogram.bucket_index`."""
    magnitude = ((bits & 0x7FFFFFFF) >> _SHIFT) - _OFFSET + 1
    magnitude = min(max(magnitude, 0), _PER_SIDE + 1)
    return ZERO - magnitude if bits < 0 else ZERO + magnitude


@njit(nogil=True, error_model="numpy")
def counted(row: Row, rule: TokenBounds, n_outside: int, histograms: Array) -> None:
    """Counts log-ratios in the histograms; the last one has the change by the rule to the sum of the others.

    Args:
        row: the completion.
        rule: bounds of the rule.
        n_outside: 0 if the rule changes no token, whose pass is then skipped.
        histograms: int32 ``(N_LANES + 1, buckets)``, added to.
    """
    bits, valid, d, ratio = row.d.view(np.int32), row.valid, row.d, row.ratio
    after = histograms[N_LANES]
    index = row.after.view(np.int32)  # reuses the buffer of the weights, which are no longer needed
    for j in range(len(d)):
        index[j] = bucket(bits[j])
    # Neighbours often fall into one bucket; an increment would then wait for the store of the one before.
    for j in range(len(d)):
        histograms[j % N_LANES, index[j]] += valid[j]
    if n_outside == 0:
        return
    bounds = np.array([rule.log_lower, rule.log_upper], dtype=np.float32).view(np.int32)
    for j in range(len(d)):
        if rule.acts == 1:
            if d[j] > rule.log_upper or d[j] < rule.log_lower:
                after[index[j]] -= valid[j]
                after[bucket(bounds[1] if d[j] > rule.log_upper else bounds[0])] += valid[j]
        elif ratio[j] < rule.lower or ratio[j] > rule.upper:
            after[index[j]] -= valid[j]


@njit(fastmath={"reassoc", "nsz"}, nogil=True, error_model="numpy")
def _add(d: Array, start: int, stop: int, cells: Array, cell: int) -> None:
    """Adds the log-ratios from ``start`` to ``stop``, all of them valid, to one cell."""
    total, absolute = 0.0, 0.0
    for j in range(start, stop):
        value = np.float64(d[j])
        total += value
        absolute += abs(value)
    cells[0, cell] += total
    cells[1, cell] += absolute
    cells[2, cell] += stop - start


@njit(nogil=True, error_model="numpy")
def sum_positions(row: Row, n: int, cells: Array) -> None:
    """Adds log-ratios by turn and tenth, a run of neighbours with a common cell at a time.

    Args:
        row: the completion.
        n: number of valid tokens.
        cells: float64 ``(3, N_TURNS * N_TENTHS + 1)``, added to; the last cell is that of the last token.
    """
    mask, valid, d = row.mask, row.valid, row.d
    position, turn, j, width, last = 0, -1, 0, len(row.d), -1
    while j < width and position < n:
        if mask[j] == 0:
            j += 1
            continue
        if j == 0 or mask[j - 1] == 0:
            turn = min(turn + 1, N_TURNS - 1)
        if valid[j] == 0:
            j += 1
            continue
        tenth = N_TENTHS * position // n
        remaining = ((tenth + 1) * n + N_TENTHS - 1) // N_TENTHS - position  # valid tokens until the tenth ends
        end = min(width, j + remaining)
        stop = end if n == width else j
        while stop < end and valid[stop] != 0:
            stop += 1
        _add(d, j, stop, cells, turn * N_TENTHS + tenth)
        position += stop - j
        last = stop - 1
        j = stop
    if last >= 0:
        _add(d, last, last + 1, cells, N_TURNS * N_TENTHS)


@njit(nogil=True, error_model="numpy")
def completion_number(row: Row, n: int, token_ids: Array, advantage: int) -> int:
    """Number of a completion, equal to :func:`ratioscope.summary.worst_tokens.completion_numbers`; integers wrap."""
    own, old, total = row.y.view(np.int32), row.x.view(np.int32), np.int64(0)
    for j in range(len(own)):  # log-probabilities are 0 where a token is not valid
        content = np.int64(own[j]) + np.int64(old[j]) * ROLLOUT_FACTOR
        if len(token_ids):
            marked = 2 * (token_ids[j] + 1) + np.int64(row.valid[j])
            content += marked * np.int64(row.mask[j]) * ID_FACTOR
        total += content * (content >> 29) * (j + 1)
    total = (n + total * NUMBER_FACTOR) * NUMBER_FACTOR + np.int64(advantage)
    return ((total * NUMBER_FACTOR) >> 12) & ((1 << 52) - 1)


@njit(nogil=True, error_model="numpy")
def worst(row: Row, index: int, first: int, number: int, kept: Kept, smallest: int) -> int:
    """Replaces entries of the table of worst tokens by larger ones of this completion.

    Blocks whose largest log-ratio is below the smallest entry are skipped: nearly all of them after a few completions.

    Args:
        row: the completion.
        index: of the completion in the batch.
        first: column of the completion's first token.
        number: the completion's number.
        kept: the table.
        smallest: slot of the smallest key.

    Returns:
        The new slot of the smallest key.
    """
    bits, valid, keys, where, logps = row.d.view(np.int32), row.valid, kept.keys, kept.where, kept.logps
    start = (number >> 20) - (1 << 31)
    position, counted_until = -1, 0
    for block in range(0, len(bits), _BLOCK):
        end, top = min(block + _BLOCK, len(bits)), np.int32(0)
        for j in range(block, end):
            top = max(top, bits[j] & np.int32(0x7FFFFFFF))
        if top < keys[smallest] >> 32:
            continue
        for j in range(counted_until, block):
            position += valid[j]
        counted_until = end
        for j in range(block, end):
            position += valid[j]
            size = np.int64(bits[j] & 0x7FFFFFFF)
            if valid[j] != 0 and size >= keys[smallest] >> 32:
                key = (size << 32) + ((start + position * SPREAD + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
                if key > keys[smallest]:
                    keys[smallest] = key
                    where[0, smallest], where[1, smallest], where[2, smallest] = index, first + j, position
                    logps[0, smallest], logps[1, smallest], logps[2, smallest] = row.d[j], row.y[j], row.x[j]
                    smallest = np.argmin(keys)
    return smallest
