"""The second pass over a batch on CUDA: ratios and what the rule does with them, places, histograms and keys."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# Types are Triton's in here, whose own annotations say less than is there.

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from ratioscope import histogram, lengths, tally
from ratioscope.slots import HISTOGRAMS
from ratioscope_integrations.kernels.cuda_math import (
    NO_KEY,
    bits_of,
    bucket,
    exp,
    expm1_both,
    key_of,
    store_columns,
    tokens,
)
from ratioscope_integrations.kernels.cuda_places import CELLS, N_TURNS, TENTHS, added_up, counted, store_places

_NEAR_LOW, _NEAR_HIGH = (tl.constexpr(bound) for bound in tally.BANDS[0])
_FAR_LOW, _FAR_HIGH = (tl.constexpr(bound) for bound in tally.BANDS[1])
_ZERO = tl.constexpr(histogram.ZERO)
_CHANGE = tl.constexpr(HISTOGRAMS.index("corrected_log_ratio") * histogram.N_BUCKETS)
_LENGTHS = tl.constexpr(len(HISTOGRAMS) * histogram.N_BUCKETS)
_N_LENGTHS = tl.constexpr(lengths.N_LENGTHS)
_LENGTH_SHIFT, _LENGTH_OFFSET = tl.constexpr(lengths.MANTISSA_SHIFT), tl.constexpr(lengths.OFFSET)


@triton.jit(
    do_not_specialize=[
        "row_of_train", "row_of_rollout", "row_of_mask", "row_of_applied", "acts", "lower", "upper", "log_lower",
        "log_upper", "has_applied", "has_step", "has_advantages", "width", "n_rows", "n_blocks", "copies", "table_size",
    ],
    do_not_specialize_on_alignment=[
        "train", "rollout", "mask", "given", "step_given", "applied", "advantages", "first_counts", "first_maxima",
        "sums", "counts", "maxima", "keys", "tables", "block_keys", "block_starts",
    ],
)  # fmt: skip
def ratios(
    train,  # float32, as rollout
    rollout,
    mask,  # uint8
    given,  # float32 (B, T), the ratios, unless they are taken here
    step_given,  # float32 (B, T), those of the step itself, if they may differ
    applied,  # float32, if known
    advantages,  # float32 (B,), if known
    first_counts,
    first_maxima,
    sums,
    counts,
    maxima,
    keys,
    tables,
    block_keys,
    block_starts,
    row_of_train,
    row_of_rollout,
    row_of_mask,
    row_of_applied,
    acts,  # 0 without a rule, 1 truncates, 2 masks
    lower,
    upper,
    log_lower,
    log_upper,
    has_applied,
    has_step,
    has_advantages,
    width,
    n_rows,
    n_blocks,
    copies,
    table_size,
    OWN_EXP: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row, of which the first pass has found the count, the fingerprint and the largest log-ratio."""
    row = tl.program_id(0).to(tl.int64)
    own = tables + (row % copies) * table_size
    lane = tl.arange(0, BLOCK)
    n = tl.load(first_counts + row).to(tl.int32)
    fingerprint = tl.load(first_counts + n_rows + row)
    largest = tl.load(first_maxima + row)
    divisor = tl.maximum(n, 1)
    # In the interpreter an argument may be Python's own number, which is not combined as a tensor is.
    acts, known = tl.full((), acts, tl.int32), tl.full((), has_advantages, tl.int32) != 0
    lower, upper = tl.full((), lower, tl.float32), tl.full((), upper, tl.float32)
    log_lower, log_upper = tl.full((), log_lower, tl.float32), tl.full((), log_upper, tl.float32)

    nothing, zero = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.float64)
    k3, excess, excess2, reverse, mult, w, w2, wd = zero, zero, zero, zero, zero, zero, zero, zero
    sq, sp, sqq, spp, sqp, difference, difference_max = zero, zero, zero, zero, zero, zero, zero
    weight, weight2, raw, removed, last_d = zero, zero, zero, zero, zero
    weight_max = tl.full((BLOCK,), float("-inf"), tl.float32)
    weight_min = tl.full((BLOCK,), float("inf"), tl.float32)
    near, far, low, high, differ = nothing, nothing, nothing, nothing, nothing
    at_zero, raised, lowered = nothing, nothing, nothing
    best = tl.full((BLOCK,), NO_KEY, tl.int64)
    tenth_d, tenth_abs = tl.zeros((CELLS,), tl.float64), tl.zeros((CELLS,), tl.float64)
    turn_d, turn_abs = tl.zeros((CELLS,), tl.float64), tl.zeros((CELLS,), tl.float64)
    turn_n = tl.zeros((CELLS,), tl.int32)
    seen, turns = n * 0, n * 0
    largest_key = tl.full((), NO_KEY, tl.int64)
    for start in range(0, width, BLOCK):
        column = start + lane
        at_train, at_rollout, at_mask = row * row_of_train, row * row_of_rollout, row * row_of_mask
        masked_in, valid, y, x = tokens(train, rollout, mask, at_train, at_rollout, at_mask, column, width)
        before = tl.load(mask + at_mask + column - 1, mask=(column > 0) & (column < width), other=0) != 0
        inside = column < width
        y, x = tl.where(valid, y, 0.0), tl.where(valid, x, 0.0)
        narrow = y - x
        d = narrow.to(tl.float64)

        up, down = expm1_both(d)
        k3 += up - d
        excess += up
        excess2 += up * up
        reverse += down + d
        mult += tl.where(d >= 0.0, up, down)
        relative = tl.minimum(d - largest, 0.0)
        shifted = tl.where(valid, exp(relative), 0.0)
        w += shifted
        w2 += shifted * shifted
        wd += shifted * relative
        q = tl.where(valid, exp(x.to(tl.float64)), 0.0)
        p = tl.where(valid, exp(y.to(tl.float64)), 0.0)
        sq += q
        sp += p
        sqq += q * q
        spp += p * p
        sqp += q * p
        gap = tl.abs(p - q)
        difference += gap
        difference_max = tl.maximum(difference_max, gap)

        ratio = libdevice.exp(narrow) if OWN_EXP else tl.load(given + row * width + column, mask=valid, other=1.0)
        near += ((ratio < _NEAR_LOW) | (ratio > _NEAR_HIGH)).to(tl.int32)
        far += ((ratio < _FAR_LOW) | (ratio > _FAR_HIGH)).to(tl.int32)

        index = bucket(narrow)
        at_zero += (valid & (index == _ZERO)).to(tl.int32)
        one = tl.full((BLOCK,), 1, tl.int64)
        tl.atomic_add(own + index, one, mask=valid & (index != _ZERO), sem="relaxed")

        if acts != 0:
            below, above = ratio < lower, ratio > upper
            outside = valid & (below | above)
            left = tl.where(below, tl.where(acts == 1, lower, 0.0), ratio)
            left = tl.where(above, tl.where(acts == 1, upper, 0.0), left)
            low += (valid & below).to(tl.int32)
            high += (valid & above).to(tl.int32)
            after, was = tl.where(valid, left, 0.0).to(tl.float64), tl.where(valid, ratio, 0.0).to(tl.float64)
            weight += after
            weight2 += after * after
            raw += was
            gone = was - after
            removed += tl.where(gone < 0.0, 0.0, gone)
            weight_max = tl.maximum(weight_max, tl.where(valid, left, float("-inf")))
            weight_min = tl.minimum(weight_min, tl.where(valid, left, float("inf")))
            # A kept ratio's logarithm may be beyond a bound's by its rounding, and is clamped then.
            over, under = valid & (narrow > log_upper), valid & (narrow < log_lower)
            moved = tl.where(acts == 1, over | under, outside)
            raised += (under & (acts == 1)).to(tl.int32)
            lowered += (over & (acts == 1)).to(tl.int32)
            tl.atomic_add(own + _CHANGE + index, -one, mask=moved, sem="relaxed")
            if has_applied != 0:
                expected = left
                if has_step != 0:
                    step = tl.load(step_given + row * width + column, mask=valid, other=1.0)
                    expected = tl.where(step < lower, tl.where(acts == 1, lower, 0.0), step)
                    expected = tl.where(step > upper, tl.where(acts == 1, upper, 0.0), expected)
                used = tl.load(applied + row * row_of_applied + column, mask=inside, other=0.0)
                differ += (valid & (expected != used)).to(tl.int32)

        # Valid tokens and beginnings of turns are counted along the block in the two halves of one integer.
        steps = valid.to(tl.int32) + ((masked_in & (before == 0)).to(tl.int32) << 16)
        along, in_block = tl.cumsum(steps, 0), tl.sum(steps, 0)
        n_block, n_begun = in_block & 65535, in_block >> 16
        position = seen + (along & 65535) - 1
        if n_block > 0:
            first, last = seen * TENTHS // divisor, (seen + n_block - 1) * TENTHS // divisor
            tenth_d, tenth_abs = added_up(tenth_d, tenth_abs, position * TENTHS // divisor, first, last, valid, d)
            turn = tl.minimum(turns + (along >> 16), N_TURNS) - 1
            first, last = tl.minimum(tl.maximum(turns, 1), N_TURNS) - 1, tl.minimum(turns + n_begun, N_TURNS) - 1
            turn_d, turn_abs = added_up(turn_d, turn_abs, turn, first, last, valid, d)
            turn_n = counted(turn_n, turn, first, last, valid, n_block)
        last_d += tl.where(valid & (position == n - 1), d, 0.0)
        best = tl.maximum(best, key_of(narrow, fingerprint, position, valid))
        block = row * n_blocks + start // SPAN
        if start % SPAN == 0:
            tl.store(block_starts + block, seen)
        if (start + BLOCK) % SPAN == 0 or start + BLOCK >= width:
            best_of_block = tl.max(best, 0)
            tl.store(block_keys + block, best_of_block)
            largest_key = tl.maximum(largest_key, best_of_block)
            best = tl.full((BLOCK,), NO_KEY, tl.int64)
        seen += n_block
        turns += n_begun

    live, ruled = n > 0, acts != 0
    n_low, n_high = tl.sum(low, 0), tl.sum(high, 0)
    modified = n_low + n_high
    n_ratios = tl.where(ruled, n, 0)
    advantage = tl.load(advantages + row, mask=known, other=0.0)
    size = tl.abs(advantage.to(tl.float64))
    weighed = ruled & known
    row_last = tl.sum(last_d, 0)
    store_columns(
        sums,
        row,
        n_rows,
        (
            tl.sum(k3, 0), tl.sum(excess, 0), tl.sum(excess2, 0), tl.sum(reverse, 0), tl.sum(mult, 0) + n,
            tl.sum(w, 0), tl.sum(w2, 0), tl.sum(wd, 0),
            tl.sum(sq, 0), tl.sum(sp, 0), tl.sum(sqq, 0), tl.sum(spp, 0), tl.sum(sqp, 0), tl.sum(difference, 0),
            tl.sum(weight, 0), tl.sum(weight2, 0),
            tl.where(weighed, size * tl.sum(raw, 0), 0.0), tl.where(weighed, size * tl.sum(removed, 0), 0.0),
            row_last, tl.abs(row_last),
        ),
    )  # fmt: skip
    plus, minus = advantage > 0.0, advantage < 0.0
    store_columns(
        counts,
        row,
        n_rows,
        (
            tl.sum(near, 0), tl.sum(far, 0), n_ratios, n_low, n_high, tl.sum(differ, 0),
            tl.where(plus, n_ratios, 0), tl.where(plus, modified, 0),
            tl.where(minus, n_ratios, 0), tl.where(minus, modified, 0),
            live.to(tl.int32),
        ),
    )  # fmt: skip
    bounded = live & ruled
    store_columns(
        maxima,
        row,
        n_rows,
        (
            tl.where(live, tl.max(difference_max, 0), float("-inf")),
            tl.where(bounded, tl.max(weight_max, 0), float("-inf")).to(tl.float64),
            tl.where(bounded, -tl.min(weight_min, 0), float("-inf")).to(tl.float64),
        ),
    )  # fmt: skip
    store_places(sums, counts, row, n_rows, n, tenth_d, tenth_abs, turn_d, turn_abs, turn_n)
    tl.store(keys + 2 * n_rows + row, largest_key)
    tl.atomic_add(own + _ZERO, tl.sum(at_zero, 0).to(tl.int64), sem="relaxed")
    tl.atomic_add(own + _CHANGE + bucket(log_lower), tl.sum(raised, 0).to(tl.int64), sem="relaxed")
    tl.atomic_add(own + _CHANGE + bucket(log_upper), tl.sum(lowered, 0).to(tl.int64), sem="relaxed")
    length = (bits_of(divisor.to(tl.float32)) >> _LENGTH_SHIFT) - _LENGTH_OFFSET
    length = tl.minimum(tl.maximum(length, 0), _N_LENGTHS - 1)
    of_length = own + _LENGTHS + length
    tl.atomic_add(of_length, live.to(tl.int64), sem="relaxed")
    tl.atomic_add(of_length + _N_LENGTHS, n_ratios.to(tl.int64), sem="relaxed")
    tl.atomic_add(of_length + 2 * _N_LENGTHS, modified.to(tl.int64), sem="relaxed")
