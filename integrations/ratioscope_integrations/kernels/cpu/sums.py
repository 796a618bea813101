"""Sums and counts of one completion, each pass a loop that numba vectorizes.

Functions that add up may reorder additions (``reassoc``); those for exact results may not. The functions raise nothing
and release the interpreter's lock.
"""

# mypy: disable-error-code="untyped-decorator, assignment, no-any-return, return-value, arg-type"
# pyright: reportReturnType=false, reportArgumentType=false, reportAssignmentType=false
# Annotations are informative only: numba infers the types.

from __future__ import annotations

import math

import numpy as np
from numba import njit

from ratioscope.batch.observation import POSITIVE_LOGP_SLACK
from ratioscope.numerics import FLOAT32_MAX, OVERFLOW
from ratioscope_integrations.kernels.cpu.types import Array, Count, Row, Sum

ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer in a float's low bits
_SLACK = np.float32(POSITIVE_LOGP_SLACK)
_LARGEST = np.float32(FLOAT32_MAX)
_INFINITY = np.int32(0x7F800000)
_MINUS_INFINITY = np.int32(0x7F800000 - 2**31)


@njit(inline="always")
def _ordered(bits: int) -> int:
    """Maps bits of a float32 to an integer of the same order, and back; extremes of integers are vectorized."""
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))


@njit(nogil=True, error_model="numpy")
def extremes(values: Array, valid: Array, sums: Array, column: int) -> None:
    """Largest and smallest valid float32 into two columns; minus infinity and infinity if there is none."""
    bits = values.view(np.int32)
    high, low = _ordered(_MINUS_INFINITY), _ordered(_INFINITY)
    for j in range(len(values)):
        value = _ordered(bits[j])
        high = max(high, value if valid[j] != 0 else _ordered(_MINUS_INFINITY))
        low = min(low, value if valid[j] != 0 else _ordered(_INFINITY))
    pair = np.array([_ordered(high), _ordered(low)], dtype=np.int32).view(np.float32)
    sums[column] = pair[0]
    sums[column + 1] = pair[1]


@njit(nogil=True, error_model="numpy")
def clean(row: Row, train: Array, rollout: Array, ratio: Array) -> tuple[int, int, int]:
    """Fills the buffers, with 0 for tokens that are not valid.

    Returns:
        The number of masked-in tokens, of valid ones, and of mask values other than 0 and 1.
    """
    mask, valid, x, y, d, kept = row.mask, row.valid, row.x, row.y, row.d, row.ratio
    masked_in, n, odd = 0, 0, 0
    for j in range(len(mask)):
        old, own, inside = rollout[j], train[j], mask[j]
        difference = own - old
        ok = (inside != 0) & (abs(difference) <= _LARGEST) & (old <= _SLACK)  # False for NaN
        valid[j] = ok
        x[j] = old if ok else np.float32(0.0)
        y[j] = own if ok else np.float32(0.0)
        d[j] = difference if ok else np.float32(0.0)
        kept[j] = ratio[j] if ok else np.float32(1.0)
        masked_in += inside != 0
        n += ok
        odd += inside > 1
    return masked_in, n, odd


@njit(nogil=True, error_model="numpy")
def refused(mask: Array, train: Array, rollout: Array, counts: Array) -> None:
    """Counts the reasons why masked-in tokens are not valid."""
    for j in range(len(mask)):
        if mask[j] != 0:
            own, old = train[j], rollout[j]
            if math.isnan(own) or math.isnan(old):
                counts[Count.nan] += 1
            elif not abs(own - old) <= _LARGEST:
                counts[Count.inf] += 1
            elif old > _SLACK:
                counts[Count.positive_logp] += 1


@njit(nogil=True, error_model="numpy")
def _coarse(d: Array, coarse: Array) -> None:
    """Rounds to multiples of 2**-20. Not ``fastmath``: reordering would cancel the added constant."""
    for j in range(len(d)):
        coarse[j] = ((np.float64(d[j]) * 1048576.0 + ROUND) - ROUND) * (1.0 / 1048576.0)


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def log_ratios(row: Row, sums: Array) -> None:
    """Sums of log-ratios and their absolute values, in two parts like :func:`ratioscope.numerics.halves`.

    Multiples of 2**-20 add up without rounding, and the rest is small: the sum, rounded to float32, does not depend on
    the order of additions.
    """
    d, coarse = row.d, row.excess  # a free buffer: the exponentials are filled in later
    _coarse(d, coarse)
    coarse_d, fine_d, coarse_abs, fine_abs = 0.0, 0.0, 0.0, 0.0
    for j in range(len(d)):
        value, part = np.float64(d[j]), coarse[j]
        coarse_d += part
        fine_d += value - part
        coarse_abs += abs(part)
        fine_abs += abs(value) - abs(part)
    sums[Sum.d] = coarse_d + fine_d
    sums[Sum.abs_d] = coarse_abs + fine_abs


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def moments(row: Row, sums: Array) -> None:
    """First and second moments of both sides' log-probabilities, in float64 as are their products."""
    x, y, d = row.x, row.y, row.d
    d2, sx, sy, xx, yy, xy = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(len(d)):
        a, b, v = np.float64(x[j]), np.float64(y[j]), np.float64(d[j])
        d2 += v * v
        sx += a
        sy += b
        xx += a * a
        yy += b * b
        xy += a * b
    sums[Sum.d2] = d2
    sums[Sum.x] = sx
    sums[Sum.y] = sy
    sums[Sum.xx] = xx
    sums[Sum.yy] = yy
    sums[Sum.xy] = xy


@njit(nogil=True, error_model="numpy")
def exact(row: Row, counts: Array) -> None:
    """Counts of ratios equal to 1, of log-probabilities equal to 0, and of ratios that overflow float32."""
    x, y, d, valid = row.x, row.y, row.d, row.valid
    equal, zero_y, zero_x, overflow = 0, 0, 0, 0
    for j in range(len(d)):
        inside = valid[j] != 0
        equal += inside & (x[j] == y[j])
        zero_y += inside & (y[j] == np.float32(0.0))
        zero_x += inside & (x[j] == np.float32(0.0))
        overflow += np.float64(d[j]) > OVERFLOW
    counts[Count.equal] = equal
    counts[Count.zero_train_logp] = zero_y
    counts[Count.zero_rollout_logp] = zero_x
    counts[Count.overflow] = overflow


@njit(inline="always")
def neighbours(row: Row, n: int, sums: Array, counts: Array) -> None:
    """Moments of pairs of neighbours that are both valid."""
    if n == len(row.x) and n > 0:
        _neighbours_without_hole(row, n, sums, counts)
    else:
        _neighbours_with_holes(row, sums, counts)


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def _neighbours_without_hole(row: Row, n: int, sums: Array, counts: Array) -> None:
    """Moments of all neighbours: those of all tokens, without the last one (first of a pair) or the first one."""
    x, y = row.x, row.y
    ahead, behind = 0.0, 0.0
    for j in range(1, len(x)):
        ahead += np.float64(y[j - 1]) * np.float64(x[j])
        behind += np.float64(y[j]) * np.float64(x[j - 1])
    a, b, c, e = np.float64(x[n - 1]), np.float64(x[0]), np.float64(y[n - 1]), np.float64(y[0])
    sums[Sum.x_first] = sums[Sum.x] - a
    sums[Sum.x_second] = sums[Sum.x] - b
    sums[Sum.y_first] = sums[Sum.y] - c
    sums[Sum.y_second] = sums[Sum.y] - e
    sums[Sum.xx_first] = sums[Sum.xx] - a * a
    sums[Sum.xx_second] = sums[Sum.xx] - b * b
    sums[Sum.yy_first] = sums[Sum.yy] - c * c
    sums[Sum.yy_second] = sums[Sum.yy] - e * e
    sums[Sum.lag_ahead] = ahead
    sums[Sum.lag_behind] = behind
    counts[Count.pairs] = n - 1


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def _neighbours_with_holes(row: Row, sums: Array, counts: Array) -> None:
    """Moments of neighbours that are both valid, pair by pair."""
    x, y, valid = row.x, row.y, row.valid
    x1, x2, y1, y2, xx1, xx2, yy1, yy2, ahead, behind, n = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0
    for j in range(1, len(x)):
        pair = (valid[j] != 0) & (valid[j - 1] != 0)
        a, b = np.float64(x[j - 1]), np.float64(x[j])
        c, e = np.float64(y[j - 1]), np.float64(y[j])
        ahead += c * b  # 0 if either token is not valid, as the buffers are
        behind += a * e
        a = a if pair else 0.0
        b = b if pair else 0.0
        c = c if pair else 0.0
        e = e if pair else 0.0
        x1 += a
        x2 += b
        y1 += c
        y2 += e
        xx1 += a * a
        xx2 += b * b
        yy1 += c * c
        yy2 += e * e
        n += pair
    sums[Sum.x_first] = x1
    sums[Sum.x_second] = x2
    sums[Sum.y_first] = y1
    sums[Sum.y_second] = y2
    sums[Sum.xx_first] = xx1
    sums[Sum.xx_second] = xx2
    sums[Sum.yy_first] = yy1
    sums[Sum.yy_second] = yy2
    sums[Sum.lag_ahead] = ahead
    sums[Sum.lag_behind] = behind
    counts[Count.pairs] = n
