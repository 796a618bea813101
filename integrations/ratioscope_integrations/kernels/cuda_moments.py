"""The first pass over a batch on CUDA: what is valid, sums without exponentials, and what follows for whole rows."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# Types are Triton's in here, whose own annotations say less than is there.

from __future__ import annotations

import triton
import triton.language as tl

from ratioscope import histogram, tally, top
from ratioscope_integrations.kernels import cuda_math
from ratioscope_integrations.kernels.cuda_math import (
    bits_of,
    bucket,
    coarse,
    exp,
    expm1_both,
    key_of,
    store_columns,
    tokens,
)

_MASK, _TRAIN, _ROLLOUT, _TOKEN, _MIX = (tl.constexpr(by) for by in top.MULTIPLIERS[:5])
_OVERFLOW = tl.constexpr(tally.OVERFLOW)
_LARGEST, _SLACK = cuda_math.LARGEST, cuda_math.SLACK
_SEQUENCE, _GEOMETRIC = tl.constexpr(histogram.N_BUCKETS), tl.constexpr(2 * histogram.N_BUCKETS)
_FAR = tl.constexpr(2**31 - 1)


@triton.jit(
    do_not_specialize=[
        "row_of_train", "row_of_rollout", "row_of_mask", "row_of_ids", "has_ids", "width", "n_rows",
        "copies", "table_size",
    ],
    do_not_specialize_on_alignment=[
        "train", "rollout", "mask", "ids", "of_advantage", "powers", "inverse", "sums", "counts", "maxima", "keys",
        "tables",
    ],
)  # fmt: skip
def moments(
    train,  # float32, as rollout
    rollout,
    mask,  # uint8
    ids,  # int64, if there are any
    of_advantage,  # int64 (B,), what each adds to the fingerprint
    powers,  # int64 of each column, as inverse
    inverse,
    sums,
    counts,
    maxima,
    keys,  # int64 (3, B): of the row's sum, of the row, and of its worst token
    tables,
    row_of_train,
    row_of_rollout,
    row_of_mask,
    row_of_ids,
    has_ids,
    width,
    n_rows,
    copies,
    table_size,
    BLOCK: tl.constexpr,
):
    """One row; everything is written to its place in columns of ``n_rows``."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    nothing, zero = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.float64)
    n, seen, nans, infinite, positive = nothing, nothing, nothing, nothing, nothing
    equal, zero_train, zero_rollout, pairs, overflow = nothing, nothing, nothing, nothing, nothing
    d_coarse, d_rest, abs_coarse, abs_rest, d2 = zero, zero, zero, zero, zero
    sx, sy, sxx, syy, sxy = zero, zero, zero, zero, zero
    y1, y2, x1, x2, yy1, yy2, xx1, xx2, ahead, behind = zero, zero, zero, zero, zero, zero, zero, zero, zero, zero
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    first = tl.full((BLOCK,), _FAR, tl.int32)
    content = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, width, BLOCK):
        column = start + lane
        at_train, at_rollout, at_mask = row * row_of_train, row * row_of_rollout, row * row_of_mask
        masked_in, valid, y, x = tokens(train, rollout, mask, at_train, at_rollout, at_mask, column, width)
        _, pair, y_before, x_before = tokens(train, rollout, mask, at_train, at_rollout, at_mask, column - 1, width)
        is_nan = (y != y) | (x != x)
        finite = tl.abs(y - x) <= _LARGEST
        seen += masked_in.to(tl.int32)
        n += valid.to(tl.int32)
        nans += (masked_in & is_nan).to(tl.int32)
        infinite += (masked_in & (is_nan == 0) & (finite == 0)).to(tl.int32)
        positive += (masked_in & finite & (x > _SLACK)).to(tl.int32)
        equal += (valid & (x == y)).to(tl.int32)
        zero_train += (valid & (y == 0.0)).to(tl.int32)
        zero_rollout += (valid & (x == 0.0)).to(tl.int32)

        y, x = tl.where(valid, y, 0.0), tl.where(valid, x, 0.0)
        y_before, x_before = tl.where(pair, y_before, 0.0), tl.where(pair, x_before, 0.0)
        narrow = y - x
        high = tl.maximum(high, tl.where(valid, narrow, float("-inf")))
        low = tl.minimum(low, tl.where(valid, narrow, float("inf")))
        d = narrow.to(tl.float64)
        overflow += (d > _OVERFLOW).to(tl.int32)
        part = coarse(d)
        d_coarse += part
        d_rest += d - part
        abs_coarse += tl.abs(part)
        abs_rest += tl.abs(d) - tl.abs(part)
        d2 += d * d

        weight = tl.load(powers + column, mask=column < width, other=0)
        first = tl.minimum(first, tl.where(masked_in, column, _FAR))
        term = (masked_in.to(tl.int64) + valid.to(tl.int64)) * _MASK
        term += bits_of(y).to(tl.int64) * _TRAIN + bits_of(x).to(tl.int64) * _ROLLOUT
        if has_ids != 0:
            term += tl.load(ids + row * row_of_ids + column, mask=masked_in, other=0) * _TOKEN
        content += term * weight

        y64, x64, y_last, x_last = y.to(tl.float64), x.to(tl.float64), y_before.to(tl.float64), x_before.to(tl.float64)
        sx += x64
        sy += y64
        sxx += x64 * x64
        syy += y64 * y64
        sxy += x64 * y64
        ahead += y_last * x64
        behind += y64 * x_last
        pair = pair & valid
        pairs += pair.to(tl.int32)
        y64, x64, y_last, x_last = (
            tl.where(pair, y64, 0.0),
            tl.where(pair, x64, 0.0),
            tl.where(pair, y_last, 0.0),
            tl.where(pair, x_last, 0.0),
        )
        y1 += y_last
        y2 += y64
        x1 += x_last
        x2 += x64
        yy1 += y_last * y_last
        yy2 += y64 * y64
        xx1 += x_last * x_last
        xx2 += x64 * x64

    n_valid = tl.sum(n, 0)
    live = n_valid > 0
    divisor = tl.maximum(n_valid, 1).to(tl.float64)
    exact_d = tl.sum(d_coarse, 0) + tl.sum(d_rest, 0)
    exact_abs = tl.sum(abs_coarse, 0) + tl.sum(abs_rest, 0)
    row_d32 = tl.minimum(tl.maximum(exact_d, -_LARGEST), _LARGEST).to(tl.float32)
    row_d = row_d32.to(tl.float64)
    abs_mean, geometric = exact_abs / divisor, row_d / divisor
    row_x, row_y = tl.sum(sx, 0), tl.sum(sy, 0)
    up, _ = expm1_both(row_d)
    inside = live.to(tl.float64)
    store_columns(
        sums,
        row,
        n_rows,
        (
            row_d, exact_d, exact_abs, tl.sum(d2, 0),
            row_x, row_y, tl.sum(sxx, 0), tl.sum(syy, 0), tl.sum(sxy, 0),
            tl.sum(y1, 0), tl.sum(y2, 0), tl.sum(x1, 0), tl.sum(x2, 0),
            tl.sum(yy1, 0), tl.sum(yy2, 0), tl.sum(xx1, 0), tl.sum(xx2, 0), tl.sum(ahead, 0), tl.sum(behind, 0),
            row_d, tl.abs(row_d), row_d * row_d, up - row_d, up, up * up,
            exp(geometric) * inside,
            exp(-row_y / divisor) * inside, exp(-row_x / divisor) * inside, exp(-exact_d / divisor) * inside,
            inside * 0.0,
        ),
    )  # fmt: skip

    origin = tl.min(first, 0)
    hashed = tl.sum(content, 0) * tl.load(inverse + tl.where(origin < width, origin, 0))
    hashed += tl.load(of_advantage + row)
    hashed = (hashed ^ (hashed >> 29)) * _MIX
    fingerprint = (hashed >> 12) & 4503599627370495
    store_columns(
        counts,
        row,
        n_rows,
        (
            n_valid, fingerprint, tl.sum(seen, 0), tl.sum(nans, 0), tl.sum(infinite, 0), tl.sum(positive, 0),
            tl.sum(equal, 0), tl.sum(zero_train, 0), tl.sum(zero_rollout, 0), tl.sum(pairs, 0), tl.sum(overflow, 0),
            live.to(tl.int32), 1 - live.to(tl.int32), (abs_mean > 1.0).to(tl.int32), (row_d > _OVERFLOW).to(tl.int32),
            n_valid * 0,
        ),
    )  # fmt: skip

    none = tl.where(live, 0.0, float("-inf"))
    largest = none.to(tl.float64)
    store_columns(
        maxima,
        row,
        n_rows,
        (
            tl.max(high, 0).to(tl.float64), -tl.min(low, 0).to(tl.float64),
            row_d + largest, largest - row_d,
            geometric + largest, largest - geometric,
            abs_mean + largest,
            inside * 0.0 + 1.0,
            inside * 0.0 + float("-inf"),
        ),
    )  # fmt: skip

    ordered = bits_of(row_d32 + none)
    ordered = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    tl.store(keys + row, ordered.to(tl.int64) << 32)
    tl.store(keys + n_rows + row, key_of(abs_mean.to(tl.float32), fingerprint, n_valid * 0, live))
    own = tables + (row % copies) * table_size
    tl.atomic_add(own + _SEQUENCE + bucket(row_d32), live.to(tl.int64), sem="relaxed")
    tl.atomic_add(own + _GEOMETRIC + bucket(geometric.to(tl.float32)), live.to(tl.int64), sem="relaxed")
