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
    """Of fingerprints: powers of the step by column, and the multipliers."""

    powers: Array
    multipliers: Array  # mask, train, rollout, token, mix, spread


class Kept(NamedTuple):
    """What one thread finds over its rows."""

    sums: Array  # float64 (rows, len(ROW_SUMS))
    counts: Array  # int64 (rows, len(ROW_COUNTS))
    histograms: Array  # int64 (2, buckets): log-ratios before and after the rule
    places: Array  # float64 (3, N_TURNS * N_TENTHS + 1): d, its absolute value, tokens; the last tokens' at the end
    keys: Array  # int64 (N_KEPT,), of the worst tokens, unsorted
    where: Array  # int64 (3, N_KEPT): their row, column and position


class Row(NamedTuple):
    """A thread's buffers, cut to one row from its first masked-in token to its last; 0 where a token is not valid."""

    mask: Array  # uint8
    valid: Array  # uint8
    x: Array  # float32, of the engine
    y: Array  # float32, of the trainer
    d: Array  # float32
    ratio: Array  # float32, 1 where not valid
    after: Array  # float32, what a rule leaves
    excess: Array  # float64, expm1(abs(d))
    q: Array  # float64, exp(x)
    p: Array  # float64, exp(y)


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
_INFINITY = np.int32(0x7F800000)
_MINUS_INFINITY = np.int32(0x7F800000 - 2**31)

_SUB_BUCKET_BITS = 5
_PER_SIDE = 30 << _SUB_BUCKET_BITS
_ZERO = _PER_SIDE + 1
_OFFSET = (127 - 20) << _SUB_BUCKET_BITS
_BLOCK = 128


@njit(inline="always")
def _parts(x: float) -> tuple[float, float]:
    """2**k and expm1(r), where x = k ln 2 + r and abs(r) is at most half of ln 2: Taylor's polynomial, to the last bits."""
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
def _exponentials(row: Row) -> None:
    """All that a row needs, in float64."""
    x, y, d, excess, q, p = row.x, row.y, row.d, row.excess, row.q, row.p
    for j in range(len(d)):
        scale, rest = _parts(np.float64(abs(d[j])))
        excess[j] = scale * rest + (scale - 1.0)
        scale, rest = _parts(max(np.float64(x[j]), -708.0))
        q[j] = scale * rest + scale
        scale, rest = _parts(max(np.float64(y[j]), -708.0))
        p[j] = scale * rest + scale


@njit(inline="always")
def _ordered(bits: int) -> int:
    """Bits of a float32 as an integer of the same order, and back: integers' extremes are vectorized, floats' are not."""
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))


@njit(nogil=True, error_model="numpy")
def _extremes(values: Array, valid: Array, sums: Array, at: int) -> None:
    """Largest and smallest valid float32; minus infinity and infinity if there is none."""
    bits = values.view(np.int32)
    high, low = _ordered(_MINUS_INFINITY), _ordered(_INFINITY)
    for j in range(len(values)):
        value = _ordered(bits[j])
        high = max(high, value if valid[j] != 0 else _ordered(_MINUS_INFINITY))
        low = min(low, value if valid[j] != 0 else _ordered(_INFINITY))
    found = np.array([_ordered(high), _ordered(low)], dtype=np.int32).view(np.float32)
    sums[at], sums[at + 1] = found[0], found[1]


@njit(nogil=True, error_model="numpy")
def _largest(values: Array) -> float:
    """Of float64 from 0 on, whose bits have their order."""
    bits, largest = values.view(np.int64), np.int64(0)
    for j in range(len(values)):
        largest = max(largest, bits[j])
    return np.array([largest]).view(np.float64)[0]


@njit(nogil=True, error_model="numpy")
def _clean(row: Row, train: Array, rollout: Array, ratio: Array) -> tuple[int, int, int]:
    """Fills the buffers; counts of masked-in tokens, of valid ones, and of odd mask values."""
    mask, valid, x, y, d, kept = row.mask, row.valid, row.x, row.y, row.d, row.ratio
    masked_in, n, odd = 0, 0, 0
    for j in range(len(mask)):
        old, own, inside = rollout[j], train[j], mask[j]
        difference = own - old
        ok = (inside != 0) & (abs(difference) <= _LARGEST) & (old <= _SLACK)
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
def _refused(mask: Array, train: Array, rollout: Array, counts: Array) -> None:
    """Why masked-in tokens are not valid."""
    for j in range(len(mask)):
        if mask[j] != 0:
            own, old = train[j], rollout[j]
            if math.isnan(own) or math.isnan(old):
                counts[2] += 1
            elif not abs(own - old) <= _LARGEST:
                counts[3] += 1
            elif old > _SLACK:
                counts[4] += 1


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def _log_ratios(row: Row, sums: Array) -> None:
    """Sums of log-ratios, in two halves as :func:`ratioscope.exact.halves` has them."""
    d = row.d
    coarse_d, fine_d, coarse_abs, fine_abs = 0.0, 0.0, 0.0, 0.0
    for j in range(len(d)):
        value = np.float64(d[j])
        coarse = np.rint(value * 1048576.0) * (1.0 / 1048576.0)
        coarse_d += coarse
        fine_d += value - coarse
        coarse_abs += abs(coarse)
        fine_abs += abs(value) - abs(coarse)
    sums[0], sums[1] = coarse_d + fine_d, coarse_abs + fine_abs


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def _moments(row: Row, sums: Array) -> None:
    """Of both sides' log-probabilities."""
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
    sums[2], sums[3], sums[4], sums[5], sums[6], sums[7] = d2, sx, sy, xx, yy, xy


@njit(nogil=True, error_model="numpy")
def _exact(row: Row, counts: Array) -> None:
    """Tokens that are exactly something."""
    x, y, d, valid = row.x, row.y, row.d, row.valid
    equal, zero_y, zero_x, overflow = 0, 0, 0, 0
    for j in range(len(d)):
        inside = valid[j] != 0
        equal += inside & (x[j] == y[j])
        zero_y += inside & (y[j] == np.float32(0.0))
        zero_x += inside & (x[j] == np.float32(0.0))
        overflow += np.float64(d[j]) > _OVERFLOW
    counts[5], counts[6], counts[7], counts[9] = equal, zero_y, zero_x, overflow


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def _neighbours(row: Row, sums: Array, counts: Array) -> None:
    """Moments of pairs of neighbours that are both valid."""
    x, y, valid = row.x, row.y, row.valid
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
def _ratios(row: Row, sums: Array) -> None:
    """What follows from the exponentials. Where a token is not valid all of it is 0."""
    d, excess, q, p, valid = row.d, row.excess, row.q, row.p, row.valid
    high = sums[33] if sums[33] > -np.inf else 0.0
    k3, up, up2, w, w2, wd, reverse, mult = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    sq, sp, qq, pp, qp, difference = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
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
        own, other = q[j] * inside, p[j] * inside
        sq += own
        sp += other
        qq += own * own
        pp += other * other
        qp += own * other
        gap = abs(own - other)
        difference += gap
        excess[j] = gap  # the excess is done with
    scale = math.exp(-high)
    sums[18], sums[19], sums[20] = k3, up, up2
    sums[21], sums[22], sums[23] = w * scale, w2 * scale * scale, wd * scale
    sums[24], sums[25] = reverse, mult
    sums[26], sums[27], sums[28], sums[29], sums[30], sums[31] = sq, sp, qq, pp, qp, difference
    sums[32] = _largest(excess)


@njit(nogil=True, error_model="numpy")
def _outside(ratio: Array, counts: Array) -> None:
    near, far = 0, 0
    for j in range(len(ratio)):
        near += (ratio[j] < _NEAR[0]) | (ratio[j] > _NEAR[1])
        far += (ratio[j] < _FAR[0]) | (ratio[j] > _FAR[1])
    counts[10], counts[11] = near, far


@njit(fastmath={"reassoc", "contract", "nnan", "nsz"}, nogil=True, error_model="numpy")
def _ruled(row: Row, rule: Rule, sums: Array, counts: Array) -> None:
    """What the rule does with a row's ratios."""
    ratio, valid, after = row.ratio, row.valid, row.after
    low, high = 0, 0
    weight, weight2, raw, removed = 0.0, 0.0, 0.0, 0.0
    for j in range(len(ratio)):
        r, inside = ratio[j], valid[j] != 0
        below, above = r < rule.lower, r > rule.upper
        if rule.acts == 1:
            left = rule.lower if below else (rule.upper if above else r)
        else:
            left = np.float32(0.0) if below | above else r
        after[j] = left
        low += inside & below
        high += inside & above
        value, before = np.float64(left) if inside else 0.0, np.float64(r) if inside else 0.0
        weight += value
        weight2 += value * value
        raw += before
        gone = before - value
        removed += gone if gone > 0.0 else 0.0
    sums[35], sums[36], sums[39], sums[40] = weight, weight2, raw, removed
    _extremes(after, valid, sums, 37)
    counts[12], counts[13] = low, high


@njit(nogil=True, error_model="numpy")
def _disagreements(row: Row, applied: Array) -> int:
    """Valid tokens whose applied weight, which may be NaN, is not the rule's."""
    after, valid, differs = row.after, row.valid, 0
    for j in range(len(after)):
        differs += (valid[j] != 0) & (after[j] != applied[j])
    return differs


@njit(inline="always")
def _bucket(bits: int) -> int:
    """As :func:`ratioscope.histogram.bucket_index` has it."""
    magnitude = ((bits & 0x7FFFFFFF) >> (23 - _SUB_BUCKET_BITS)) - _OFFSET + 1
    magnitude = min(max(magnitude, 0), _PER_SIDE + 1)
    return _ZERO - magnitude if bits < 0 else _ZERO + magnitude


@njit(nogil=True, error_model="numpy")
def _counted(row: Row, rule: Rule, n_outside: int, histograms: Array) -> None:
    """Both histograms: the second, what the rule changes in the first."""
    bits, valid, d, ratio = row.d.view(np.int32), row.valid, row.d, row.ratio
    before, after = histograms[0], histograms[1]
    index = row.after.view(np.int32)  # the weights are done with
    for j in range(len(d)):
        index[j] = _bucket(bits[j])
    for j in range(len(d)):
        before[index[j]] += valid[j]
    if n_outside == 0:
        return
    bounds = np.array([rule.log_lower, rule.log_upper], dtype=np.float32).view(np.int32)
    for j in range(len(d)):
        if rule.acts == 1:
            if d[j] > rule.log_upper or d[j] < rule.log_lower:
                after[index[j]] -= valid[j]
                after[_bucket(bounds[1] if d[j] > rule.log_upper else bounds[0])] += valid[j]
        elif ratio[j] < rule.lower or ratio[j] > rule.upper:
            after[index[j]] -= valid[j]


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
def _placed(row: Row, n: int, place: Array) -> None:
    """Sums by turn and tenth, a stretch of neighbours in one place at a time."""
    mask, valid, d = row.mask, row.valid, row.d
    position, turn, j, width, last = 0, -1, 0, len(row.d), -1
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
        end, stop = min(width, j + reach), j
        while stop < end and valid[stop] != 0:
            stop += 1
        _stretch(d, j, stop, place, turn * N_TENTHS + tenth)
        position += stop - j
        last = stop - 1
        j = stop
    if last >= 0:
        _stretch(d, last, last + 1, place, N_TURNS * N_TENTHS)


@njit(nogil=True, error_model="numpy")
def _fingerprint(row: Row, token_ids: Array, advantage: int, hashing: Hash) -> int:
    """As :mod:`ratioscope.top` has it, of a row cut to start with its first masked-in token; integers wrap."""
    powers, by, mask, valid = hashing.powers, hashing.multipliers, row.mask, row.valid
    own, old = row.y.view(np.int32), row.x.view(np.int32)
    a, b, c = np.int64(0), np.int64(0), np.int64(0)
    for j in range(len(own)):
        a += (np.int64(mask[j]) + np.int64(valid[j])) * powers[j]
        b += np.int64(own[j]) * powers[j]
        c += np.int64(old[j]) * powers[j]
    total = a * by[0] + b * by[1] + c * by[2]
    if len(token_ids):
        e = np.int64(0)
        for j in range(len(own)):
            e += (token_ids[j] if mask[j] != 0 else 0) * powers[j]
        total += e * by[3]
    total += advantage
    total = (total ^ (total >> 29)) * by[4]
    return (total >> 12) & ((1 << 52) - 1)


@njit(nogil=True, error_model="numpy")
def _worst(
    row: Row, at: int, first: int, fingerprint: int, spread: int, keys: Array, where: Array, smallest: int
) -> int:
    """Keeps what is among the worst so far; the slot of the smallest kept key."""
    bits, valid = row.d.view(np.int32), row.valid
    start = (fingerprint >> 20) - (1 << 31)
    for block in range(0, len(bits), _BLOCK):
        end, top = min(block + _BLOCK, len(bits)), np.int32(0)
        for j in range(block, end):
            top = max(top, bits[j] & np.int32(0x7FFFFFFF))
        if top < keys[smallest] >> 32:
            continue
        position = -1
        for j in range(block):
            position += valid[j]
        for j in range(block, end):
            position += valid[j]
            size = np.int64(bits[j] & 0x7FFFFFFF)
            if valid[j] != 0 and size >= keys[smallest] >> 32:
                key = (size << 32) + ((start + position * spread + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
                if key > keys[smallest]:
                    keys[smallest] = key
                    where[0, smallest], where[1, smallest], where[2, smallest] = at, first + j, position
                    smallest = np.argmin(keys)
    return smallest


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
def reduce_rows(start: int, stop: int, offset: int, batch: Batch, rule: Rule, hashing: Hash, kept: Kept) -> bool:
    """Reduces rows ``start`` to ``stop`` of a chunk whose first row is the batch's row ``offset``.

    Returns:
        Whether all of it could be: no mask but 0 and 1, no log-ratio beyond :data:`REACH`.
    """
    width = batch.train.shape[1]
    valid = np.empty(width, np.uint8)
    narrow, wide = np.empty((5, width), np.float32), np.empty((3, width), np.float64)
    smallest = np.argmin(kept.keys)
    for at in range(start, stop):
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
            wide[2, :size],
        )
        masked_in, n, odd = _clean(row, train, rollout, batch.ratio[at, first:end])
        counts[0], counts[1] = n, masked_in
        if n < masked_in:
            _refused(row.mask, train, rollout, counts)
        _extremes(row.d, row.valid, sums, 33)
        if odd or max(sums[33], -sums[34]) > REACH:
            return False
        _log_ratios(row, sums)
        _moments(row, sums)
        _exact(row, counts)
        _neighbours(row, sums, counts)
        _exponentials(row)
        _ratios(row, sums)
        _outside(row.ratio, counts)
        moved = 0
        if rule.acts:
            _ruled(row, rule, sums, counts)
            if batch.applied.shape[1]:
                counts[14] = _disagreements(row, batch.applied[at, first:end])
            # A kept ratio's logarithm may be beyond a bound's by its rounding, and is clamped then.
            moved = counts[12] + counts[13] + (sums[33] > rule.log_upper) + (sums[34] < rule.log_lower)
        _counted(row, rule, moved, kept.histograms)
        _placed(row, n, kept.places)
        ids = batch.token_ids[at, first:end] if batch.token_ids.shape[1] else batch.token_ids[at]
        counts[15] = _fingerprint(row, ids, batch.advantage[at], hashing)
        smallest = _worst(
            row, offset + at, first, counts[15], hashing.multipliers[5], kept.keys, kept.where, smallest
        )
    return True
