"""Exponentials of one completion, sums over its ratios, and the effect of a rule on them.

Functions that add up may reorder additions (``reassoc``), so that they are vectorized; the exponentials may not.
"""

# mypy: disable-error-code="untyped-decorator, assignment, no-any-return, return-value, arg-type"
# pyright: reportReturnType=false, reportArgumentType=false, reportAssignmentType=false
# Annotations are informative only: numba infers the types.

from __future__ import annotations

import math

import numpy as np
from numba import njit

from ratioscope.summary.tokens import BANDS
from ratioscope_integrations.kernels.cpu.sums import ROUND, extremes
from ratioscope_integrations.kernels.cpu.types import Array, Count, Row, Sum, TokenBounds

_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # its low bits are zero, so that products with small integers are exact
_LN2_LOW = 1.90821492927058770002e-10
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1.0 / math.factorial(n) for n in range(2, 14))
_NEAR, _FAR = ((np.float32(low), np.float32(high)) for low, high in BANDS)


@njit(inline="always")
def _parts(x: float) -> tuple[float, float]:
    """2**k and expm1(r), where x = k ln 2 + r and abs(r) <= ln(2) / 2, by Taylor's polynomial of degree 13.

    The first omitted term, r**14 / 14!, is below 5e-18, less than the rounding of a float64.
    """
    shifted = x * _LOG2E + ROUND
    k = shifted - ROUND
    scale = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW  # Cody and Waite: two steps, so that no digit of r is lost
    p = _C12 + r * _C13
    p = _C11 + r * p
    p = _C10 + r * p
    p = _C9 + r * p
    p = _C8 + r * p
    p = _C7 + r * p
    p = _C6 + r * p
    p = _C5 + r * p
    p = _C4 + r * p
    p = _C3 + r * p
    p = _C2 + r * p
    return scale, r + r * r * p


@njit(fastmath={"contract"}, nogil=True, error_model="numpy")
def exponentials(row: Row) -> None:
    """Fills ``excess`` with expm1(abs(d)) and ``q`` with exp(x), in float64."""
    x, d, excess, q = row.x, row.d, row.excess, row.q
    for j in range(len(d)):
        scale, rest = _parts(np.float64(abs(d[j])))
        excess[j] = scale * rest + (scale - 1.0)  # expm1, exact near 0: there scale is 1
        scale, rest = _parts(max(np.float64(x[j]), -708.0))  # below, 2**k would be no normal number
        q[j] = scale * rest + scale


@njit(nogil=True, error_model="numpy")
def _largest(values: Array) -> float:
    """Largest of float64 values >= 0, by their bits, which have the same order; maxima of integers are vectorized."""
    bits, largest = values.view(np.int64), np.int64(0)
    for j in range(len(values)):
        largest = max(largest, bits[j])
    return np.array([largest]).view(np.float64)[0]


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def ratios(row: Row, sums: Array) -> None:
    """Sums over ratios and probabilities, from the exponentials; a token that is not valid adds 0 to each of them."""
    x, y, d, excess, q, valid = row.x, row.y, row.d, row.excess, row.q, row.valid
    high = sums[Sum.largest] if sums[Sum.largest] > -np.inf else 0.0
    k3, up, up2, w, w2, wd, reverse, mult = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    sq, sp, qq, pp, qp, difference = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(len(d)):
        v, above, inside = np.float64(d[j]), excess[j], np.float64(valid[j])
        inverse = 1.0 / (1.0 + above)  # exp(-abs(d)); expm1(-abs(d)) follows without cancellation
        below = -above * inverse
        rises = v >= 0.0
        forward = above if rises else below
        backward = below if rises else above
        ratio = 1.0 + above if rises else inverse
        r = ratio * inside
        k3 += forward - v
        up += forward
        up2 += forward * forward
        w += r
        w2 += r * r
        wd += r * (v - high)
        reverse += backward + v
        mult += above
        # exp(y) = exp(x) exp(d) exp(lost), where lost is the rounding of d to float32: this saves an exponential.
        lost = (np.float64(y[j]) - np.float64(x[j])) - v
        own = q[j] * inside
        other = own * ratio * (1.0 + lost * (1.0 + 0.5 * lost))
        sq += own
        sp += other
        qq += own * own
        pp += other * other
        qp += own * other
        gap = abs(own - other)
        difference += gap
        excess[j] = gap  # reuses the buffer for the maximum below
    scale = math.exp(-high)  # within float64, since abs(d) <= REACH
    sums[Sum.k3] = k3
    sums[Sum.excess] = up
    sums[Sum.excess2] = up2
    sums[Sum.w] = w * scale
    sums[Sum.w2] = w2 * scale * scale
    sums[Sum.wd] = wd * scale
    sums[Sum.reverse_k3] = reverse
    sums[Sum.mult] = mult
    sums[Sum.q] = sq
    sums[Sum.p] = sp
    sums[Sum.qq] = qq
    sums[Sum.pp] = pp
    sums[Sum.qp] = qp
    sums[Sum.difference] = difference
    sums[Sum.difference_max] = _largest(excess)


@njit(nogil=True, error_model="numpy")
def outside(ratio: Array, counts: Array) -> None:
    """Counts tokens whose ratio is outside of the near and of the far band around 1."""
    near, far = 0, 0
    for j in range(len(ratio)):
        near += (ratio[j] < _NEAR[0]) | (ratio[j] > _NEAR[1])
        far += (ratio[j] < _FAR[0]) | (ratio[j] > _FAR[1])
    counts[Count.outside_near] = near
    counts[Count.outside_far] = far


@njit(inline="always")
def _weight(ratio: float, below: bool, above: bool, rule: TokenBounds) -> float:
    """Weight that the rule makes of a ratio: the bound if it truncates, 0 if it masks."""
    if rule.acts == 1:
        return rule.lower if below else (rule.upper if above else ratio)
    return np.float32(0.0) if below | above else ratio


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def ruled(row: Row, rule: TokenBounds, sums: Array, counts: Array) -> None:
    """Weights by the rule, sums over them, and counts of tokens below and above the bounds."""
    ratio, valid, after = row.ratio, row.valid, row.after
    low, high = 0, 0
    weight, weight2, raw, removed = 0.0, 0.0, 0.0, 0.0
    for j in range(len(ratio)):
        r, inside = ratio[j], valid[j] != 0
        below, above = r < rule.lower, r > rule.upper
        left = _weight(r, below, above, rule)
        after[j] = left
        low += inside & below
        high += inside & above
        value, before = np.float64(left) if inside else 0.0, np.float64(r) if inside else 0.0
        weight += value
        weight2 += value * value
        raw += before
        gone = before - value
        removed += gone if gone > 0.0 else 0.0
    sums[Sum.weight] = weight
    sums[Sum.weight2] = weight2
    sums[Sum.raw] = raw
    sums[Sum.removed] = removed
    extremes(after, valid, sums, Sum.weight_max)
    counts[Count.low] = low
    counts[Count.high] = high


@njit(nogil=True, error_model="numpy")
def disagreements(row: Row, applied: Array) -> int:
    """Number of valid tokens whose applied weight is not the rule's; NaN is not."""
    after, valid, differs = row.after, row.valid, 0
    for j in range(len(after)):
        differs += (valid[j] != 0) & (after[j] != applied[j])
    return differs
