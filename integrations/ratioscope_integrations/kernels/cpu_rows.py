"""One pass over a batch's rows on the CPU, compiled by numba: each row is reduced while it is in the cache.

Functions that add up may reorder their additions; the exponentials must not, and the histogram and the keys are
integers. Nothing here allocates but a thread's buffers, raises, or holds the interpreter's lock.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

REACH = 300.0
"""Log-ratios beyond this are left to the plain path: their ratios' squares would overflow."""

N_KEPT = 32
N_TURNS = 5
N_TENTHS = 10

ROW_SUMS = (
    "d", "abs_d", "d2", "x", "y", "xx", "yy", "xy",
    "x_first", "x_second", "y_first", "y_second", "xx_first", "xx_second", "yy_first", "yy_second", "lag", "-lag",
    "k3", "excess", "excess2", "w", "w2", "wd", "reverse_k3", "mult",
    "q", "p", "qq", "pp", "qp", "difference", "difference_max",
    "max", "min", "weight", "weight2", "weight_max", "weight_min", "raw", "removed",
)  # fmt: skip
"""float64 of each row; w, w2 and wd are relative to the row's own largest log-ratio."""

ROW_COUNTS = (
    "n", "masked_in", "nan", "inf", "positive_logp", "equal", "zero_train_logp", "zero_rollout_logp",
    "lag", "overflow", "outside_near", "outside_far", "low", "high", "disagreements", "fingerprint",
)  # fmt: skip
"""int64 of each row."""


class Batch(NamedTuple):
    """What is read: rows of one chunk, float32 but as said."""

    train: Array
    rollout: Array
    mask: Array  # uint8
    ratio: Array  # exp(train - rollout), by torch, whose bits the trainer has as well
    applied: Array  # without a column if unknown
    token_ids: Array  # int64, without a column if unknown
    advantage: Array  # int64 of each row: what its advantage adds to the fingerprint


class Rule(NamedTuple):
    """A short-form rule at the level of tokens; ``acts`` is 0 where there is none, 1 truncates and 2 masks."""

    acts: int
    lower: np.float32
    upper: np.float32
    log_lower: np.float32
    log_upper: np.float32


class Hash(NamedTuple):
    """Of fingerprints: powers of the step by column, those of its inverse, and the multipliers."""

    powers: Array
    inverse: Array
    multipliers: Array  # mask, train, rollout, token, mix, spread


class Kept(NamedTuple):
    """What one thread finds over its rows."""

    sums: Array  # float64 (rows, len(ROW_SUMS))
    counts: Array  # int64 (rows, len(ROW_COUNTS))
    histograms: Array  # int64 (2, buckets): log-ratios before and after the rule
    places: Array  # float64 (3, N_TURNS * N_TENTHS + 1): d, its absolute value, tokens; the last tokens' at the end
    keys: Array  # int64 (N_KEPT,), of the worst tokens, unsorted
    where: Array  # int64 (3, N_KEPT): their row, column and position


_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # its low bits are zero, so that products with small integers are exact
_LN2_LOW = 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer in a float's low bits
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1.0 / math.factorial(n) for n in range(2, 14))

_SLACK = np.float32(1e-4)
_LARGEST = np.float32(np.finfo(np.float32).max)
_OVERFLOW = 88.72283905206835
_NEAR = np.float32(0.9), np.float32(1.1)
_FAR = np.float32(0.5), np.float32(2.0)

_SUB_BUCKET_BITS = 5
_PER_SIDE = 30 << _SUB_BUCKET_BITS
_ZERO = _PER_SIDE + 1
_OFFSET = (127 - 20) << _SUB_BUCKET_BITS


@njit(inline="always")
def _parts(x: float) -> tuple[float, float]:
    """2**k and expm1(r) of x = k ln 2 + r with r at most half a ln 2: Taylor's polynomial, exact to the last bit or two."""
    shifted = x * _LOG2E + _ROUND
    k = shifted - _ROUND
    scale = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
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
def _exponentials(d: Array, x: Array, y: Array, excess: Array, q: Array, p: Array) -> None:
    """expm1(abs(d)), exp(x) and exp(y)."""
    for j in range(len(d)):
        scale, rest = _parts(np.float64(abs(d[j])))
        excess[j] = scale * rest + (scale - 1.0)
        scale, rest = _parts(max(np.float64(x[j]), -708.0))
        q[j] = scale * rest + scale
        scale, rest = _parts(min(max(np.float64(y[j]), -708.0), 700.0))
        p[j] = scale * rest + scale


@njit(nogil=True, error_model="numpy")
def _clean(batch: Batch, row: int, x: Array, y: Array, d: Array, ratio: Array, valid: Array) -> tuple[int, int, int]:
    """What is valid goes into the buffers, 0 elsewhere (1 of ratios); counts of masked-in, valid and odd mask values."""
    train, rollout, mask, raw = batch.train[row], batch.rollout[row], batch.mask[row], batch.ratio[row]
    masked_in, n, odd = 0, 0, 0
    for j in range(len(x)):
        old, own, inside = rollout[j], train[j], mask[j]
        difference = own - old
        ok = (inside != 0) & (abs(difference) <= _LARGEST) & (old <= _SLACK)
        valid[j] = ok
        x[j] = old if ok else np.float32(0.0)
        y[j] = own if ok else np.float32(0.0)
        d[j] = difference if ok else np.float32(0.0)
        ratio[j] = raw[j] if ok else np.float32(1.0)
        masked_in += inside != 0
        n += ok
        odd += inside > 1
    return masked_in, n, odd


@njit(nogil=True, error_model="numpy")
def _refused(batch: Batch, row: int, counts: Array) -> None:
    """Why masked-in tokens are not valid."""
    for j in range(batch.mask.shape[1]):
        if batch.mask[row, j] != 0:
            own, old = batch.train[row, j], batch.rollout[row, j]
            if math.isnan(own) or math.isnan(old):
                counts[2] += 1
            elif not abs(own - old) <= _LARGEST:
                counts[3] += 1
            elif old > _SLACK:
                counts[4] += 1


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def _moments(x: Array, y: Array, d: Array, valid: Array, sums: Array, counts: Array) -> None:
    """What needs no exponential."""
    high, low = np.float32(-np.inf), np.float32(np.inf)
    coarse_d, fine_d, coarse_abs, fine_abs, d2 = 0.0, 0.0, 0.0, 0.0, 0.0
    sx, sy, xx, yy, xy = 0.0, 0.0, 0.0, 0.0, 0.0
    equal, zero_y, zero_x, overflow = 0, 0, 0, 0
    for j in range(len(d)):
        a, b, v = np.float64(x[j]), np.float64(y[j]), np.float64(d[j])
        coarse = np.rint(v * 1048576.0) * (1.0 / 1048576.0)
        coarse_d += coarse
        fine_d += v - coarse
        coarse_abs += abs(coarse)
        fine_abs += abs(v) - abs(coarse)
        d2 += v * v
        sx += a
        sy += b
        xx += a * a
        yy += b * b
        xy += a * b
        inside = valid[j] != 0
        high = max(high, d[j] if inside else np.float32(-np.inf))
        low = min(low, d[j] if inside else np.float32(np.inf))
        equal += inside & (x[j] == y[j])
        zero_y += inside & (y[j] == 0.0)
        zero_x += inside & (x[j] == 0.0)
        overflow += v > _OVERFLOW
    sums[0], sums[1], sums[2] = coarse_d + fine_d, coarse_abs + fine_abs, d2
    sums[3], sums[4], sums[5], sums[6], sums[7] = sx, sy, xx, yy, xy
    sums[33], sums[34] = high, low
    counts[5], counts[6], counts[7], counts[9] = equal, zero_y, zero_x, overflow


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def _neighbours(x: Array, y: Array, valid: Array, sums: Array, counts: Array) -> None:
    """Moments of pairs of neighbours that are both valid."""
    x1, x2, y1, y2, xx1, xx2, yy1, yy2, ahead, behind, n = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0
    for j in range(1, len(x)):
        pair = (valid[j] != 0) & (valid[j - 1] != 0)
        a, b = np.float64(x[j - 1]), np.float64(x[j])
        c, e = np.float64(y[j - 1]), np.float64(y[j])
        ahead += c * b
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
    sums[8], sums[9], sums[10], sums[11] = x1, x2, y1, y2
    sums[12], sums[13], sums[14], sums[15] = xx1, xx2, yy1, yy2
    sums[16], sums[17] = ahead, behind
    counts[8] = n


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def _ratios(d: Array, excess: Array, q: Array, p: Array, valid: Array, sums: Array) -> None:
    """What follows from the exponentials. Where a token is not valid all of it is 0."""
    high = sums[33] if sums[33] > -np.inf else 0.0
    k3, up, up2, w, w2, wd, reverse, mult = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    sq, sp, qq, pp, qp, difference, largest = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(len(d)):
        v, above, inside = np.float64(d[j]), excess[j], np.float64(valid[j])
        inverse = 1.0 / (1.0 + above)
        below = -above * inverse
        rises = v >= 0.0
        forward = above if rises else below
        backward = below if rises else above
        r = (1.0 + above if rises else inverse) * inside
        k3 += forward - v
        up += forward
        up2 += forward * forward
        w += r
        w2 += r * r
        wd += r * (v - high)
        reverse += backward + v
        mult += above
        own = q[j] * inside
        other = p[j] * inside
        sq += own
        sp += other
        qq += own * own
        pp += other * other
        qp += own * other
        gap = abs(own - other)
        difference += gap
        largest = max(largest, gap)
    scale = math.exp(-high)
    sums[18], sums[19], sums[20] = k3, up, up2
    sums[21], sums[22], sums[23] = w * scale, w2 * scale * scale, wd * scale
    sums[24], sums[25] = reverse, mult
    sums[26], sums[27], sums[28], sums[29], sums[30], sums[31], sums[32] = sq, sp, qq, pp, qp, difference, largest


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def _outside(ratio: Array, counts: Array) -> None:
    near, far = 0, 0
    for j in range(len(ratio)):
        near += (ratio[j] < _NEAR[0]) | (ratio[j] > _NEAR[1])
        far += (ratio[j] < _FAR[0]) | (ratio[j] > _FAR[1])
    counts[10], counts[11] = near, far


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def _ruled(ratio: Array, valid: Array, applied: Array, rule: Rule, sums: Array, counts: Array) -> None:
    """What the rule does with a row's ratios."""
    low, high, differs = 0, 0, 0
    weight, weight2, raw, removed = 0.0, 0.0, 0.0, 0.0
    largest, smallest = np.float32(-np.inf), np.float32(np.inf)
    known = len(applied) > 0
    for j in range(len(ratio)):
        r, inside = ratio[j], valid[j] != 0
        below, above = r < rule.lower, r > rule.upper
        if rule.acts == 1:
            left = min(max(r, rule.lower), rule.upper)
        else:
            left = np.float32(0.0) if below | above else r
        low += inside & below
        high += inside & above
        value, before = np.float64(left) if inside else 0.0, np.float64(r) if inside else 0.0
        weight += value
        weight2 += value * value
        raw += before
        removed += max(before - value, 0.0)
        largest = max(largest, left if inside else np.float32(-np.inf))
        smallest = min(smallest, left if inside else np.float32(np.inf))
    if known:
        differs = _disagreements(ratio, valid, applied, rule)
    sums[35], sums[36], sums[37], sums[38], sums[39], sums[40] = weight, weight2, largest, smallest, raw, removed
    counts[12], counts[13], counts[14] = low, high, differs


@njit(nogil=True, error_model="numpy")
def _disagreements(ratio: Array, valid: Array, applied: Array, rule: Rule) -> int:
    """Valid tokens whose applied weight, which may be NaN, is not the rule's."""
    differs = 0
    for j in range(len(ratio)):
        r = ratio[j]
        if rule.acts == 1:
            left = min(max(r, rule.lower), rule.upper)
        else:
            left = np.float32(0.0) if (r < rule.lower) | (r > rule.upper) else r
        differs += (valid[j] != 0) & (left != applied[j])
    return differs


@njit(inline="always")
def _bucket(bits: int) -> int:
    """As :func:`ratioscope.histogram.bucket_index` has it."""
    magnitude = ((bits & 0x7FFFFFFF) >> (23 - _SUB_BUCKET_BITS)) - _OFFSET + 1
    magnitude = min(max(magnitude, 0), _PER_SIDE + 1)
    return _ZERO - magnitude if bits < 0 else _ZERO + magnitude


@njit(nogil=True, error_model="numpy")
def _counted(d: Array, ratio: Array, valid: Array, rule: Rule, histograms: Array) -> None:
    """Both histograms: what the rule leaves is what it had, but for the tokens that it moves or takes out."""
    bits = d.view(np.int32)
    before, after = histograms[0], histograms[1]
    for j in range(len(d)):
        before[_bucket(bits[j])] += valid[j]
    if rule.acts == 0:
        return
    bounds = np.array([rule.log_lower, rule.log_upper], dtype=np.float32)
    lowest, highest = _bucket(bounds.view(np.int32)[0]), _bucket(bounds.view(np.int32)[1])
    for j in range(len(d)):
        if rule.acts == 1:
            if d[j] > rule.log_upper:
                after[_bucket(bits[j])] -= valid[j]
                after[highest] += valid[j]
            elif d[j] < rule.log_lower:
                after[_bucket(bits[j])] -= valid[j]
                after[lowest] += valid[j]
        elif (ratio[j] < rule.lower) | (ratio[j] > rule.upper):
            after[_bucket(bits[j])] -= valid[j]


@njit(fastmath={"reassoc", "nsz"}, nogil=True, error_model="numpy")
def _stretch(d: Array, start: int, stop: int, place: Array, cell: int) -> None:
    total, absolute = 0.0, 0.0
    for j in range(start, stop):
        value = np.float64(d[j])
        total += value
        absolute += abs(value)
    place[0, cell] += total
    place[1, cell] += absolute
    place[2, cell] += stop - start


@njit(nogil=True, error_model="numpy")
def _placed(d: Array, mask: Array, valid: Array, n: int, place: Array) -> None:
    """Sums by turn and tenth, a stretch of neighbours in one place at a time."""
    position, turn, j, width, last = 0, -1, 0, len(d), -1
    inside = False
    while j < width and position < n:
        if mask[j] == 0:
            inside = False
            j += 1
            continue
        if not inside:
            inside = True
            turn = min(turn + 1, N_TURNS - 1)
        if valid[j] == 0:
            j += 1
            continue
        tenth = N_TENTHS * position // n
        reach = ((tenth + 1) * n + N_TENTHS - 1) // N_TENTHS - position  # valid tokens until the tenth ends
        stop = j
        while stop < width and stop < j + reach and valid[stop] != 0:
            stop += 1
        _stretch(d, j, stop, place, turn * N_TENTHS + tenth)
        position += stop - j
        last = stop - 1
        j = stop
    if last >= 0:
        value = np.float64(d[last])
        cell = N_TURNS * N_TENTHS
        place[0, cell] += value
        place[1, cell] += abs(value)
        place[2, cell] += 1.0


@njit(nogil=True, error_model="numpy")
def _fingerprint(batch: Batch, row: int, x: Array, y: Array, valid: Array, hashing: Hash) -> int:
    """As :mod:`ratioscope.top` has it; integers wrap."""
    powers, by = hashing.powers, hashing.multipliers
    mask = batch.mask[row]
    own, old = y.view(np.int32), x.view(np.int32)
    a, b, c, first = np.int64(0), np.int64(0), np.int64(0), -1
    for j in range(len(x)):
        a += (np.int64(mask[j]) + np.int64(valid[j])) * powers[j]
        b += np.int64(own[j]) * powers[j]
        c += np.int64(old[j]) * powers[j]
    for j in range(len(x)):
        if mask[j] != 0:
            first = j
            break
    total = a * by[0] + b * by[1] + c * by[2]
    if batch.token_ids.shape[1]:
        ids = batch.token_ids[row]
        e = np.int64(0)
        for j in range(len(x)):
            e += (ids[j] if mask[j] != 0 else 0) * powers[j]
        total += e * by[3]
    total = total * hashing.inverse[max(first, 0)] + batch.advantage[row]
    total = (total ^ (total >> 29)) * by[4]
    return (total >> 12) & ((1 << 52) - 1)


@njit(nogil=True, error_model="numpy")
def _worst(
    row: int, d: Array, valid: Array, fingerprint: int, spread: int, keys: Array, where: Array, smallest: int
) -> int:
    """Keeps what is among the worst so far; the slot of the smallest kept key."""
    bits = d.view(np.int32)
    start = (fingerprint >> 20) - (1 << 31)
    bar = keys[smallest] >> 32
    position = -1
    for j in range(len(d)):
        position += valid[j]
        size = np.int64(bits[j] & 0x7FFFFFFF)
        if size >= bar and valid[j] != 0:
            hashed = ((start + position * spread + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
            key = (size << 32) + hashed
            if key > keys[smallest]:
                keys[smallest] = key
                where[0, smallest], where[1, smallest], where[2, smallest] = row, j, position
                smallest = np.argmin(keys)
                bar = keys[smallest] >> 32
    return smallest


@njit(nogil=True, error_model="numpy")
def reduce_rows(
    start: int, stop: int, offset: int, batch: Batch, rule: Rule, hashing: Hash, kept: Kept
) -> bool:
    """Reduces rows ``start`` to ``stop`` of a chunk whose first row is the batch's row ``offset``.

    Returns:
        Whether all of it could be: no mask but 0 and 1, no log-ratio beyond :data:`REACH`.
    """
    width = batch.train.shape[1]
    x, y = np.empty(width, np.float32), np.empty(width, np.float32)
    d, ratio = np.empty(width, np.float32), np.empty(width, np.float32)
    excess, q, p = np.empty(width, np.float64), np.empty(width, np.float64), np.empty(width, np.float64)
    valid = np.empty(width, np.uint8)
    smallest = np.argmin(kept.keys)
    for row in range(start, stop):
        sums, counts = kept.sums[offset + row], kept.counts[offset + row]
        masked_in, n, odd = _clean(batch, row, x, y, d, ratio, valid)
        counts[0], counts[1] = n, masked_in
        if n < masked_in:
            _refused(batch, row, counts)
        _moments(x, y, d, valid, sums, counts)
        if odd or max(sums[33], -sums[34]) > REACH:
            return False
        _neighbours(x, y, valid, sums, counts)
        _exponentials(d, x, y, excess, q, p)
        _ratios(d, excess, q, p, valid, sums)
        _outside(ratio, counts)
        if rule.acts:
            applied = batch.applied[row]
            _ruled(ratio, valid, applied, rule, sums, counts)
        _counted(d, ratio, valid, rule, kept.histograms)
        _placed(d, batch.mask[row], valid, n, kept.places)
        counts[15] = _fingerprint(batch, row, x, y, valid, hashing)
        smallest = _worst(
            offset + row, d, valid, counts[15], hashing.multipliers[5], kept.keys, kept.where, smallest
        )
    return True
