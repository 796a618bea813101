"""What follows on CUDA once every row is reduced: sums relative to the batch's maximum, and the tables."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# Types are Triton's in here, whose own annotations say less than is there.

from __future__ import annotations

import triton
import triton.language as tl

from ratioscope.top import N_LOG_RATIOS, N_ROWS, N_TOKENS
from ratioscope.worst import N_AFTER, N_BEFORE, ROW_COLUMNS, TOKEN_COLUMNS
from ratioscope_integrations.kernels.cuda_math import NO_KEY, exp, key_of, store_columns, tokens
from ratioscope_integrations.kernels.cuda_types import FIRST_MAXIMA, ROW_MAXIMA, ROW_SUMS

_TOKEN_MAX, _SEQUENCE_MAX = (tl.constexpr(ROW_MAXIMA.index(f"{level}/max")) for level in ("token", "sequence"))
_ABS_MEAN = tl.constexpr(FIRST_MAXIMA.index("row/abs_mean_max"))
_W = tl.constexpr(ROW_SUMS.index("token/own_w"))
_ROW_D = tl.constexpr(ROW_SUMS.index("row"))
_SHIFTED_AT = tl.constexpr(len(ROW_SUMS))
_N_LOG_RATIOS, _N_TOKENS, _N_ROWS = tl.constexpr(N_LOG_RATIOS), tl.constexpr(N_TOKENS), tl.constexpr(N_ROWS)
_ROW_COLUMNS, _TOKEN_COLUMNS = tl.constexpr(len(ROW_COLUMNS)), tl.constexpr(len(TOKEN_COLUMNS))
_N_BEFORE, _N_AROUND = tl.constexpr(N_BEFORE), tl.constexpr(N_BEFORE + 1 + N_AFTER)
_IDS_AT = tl.constexpr(TOKEN_COLUMNS.index("rollout_logp") + 1)
ROWS_AT_ONCE = 256


@triton.jit(do_not_specialize=["n_rows"], do_not_specialize_on_alignment=["sums", "maxima", "top", "totals"])
def shifted(sums, maxima, top, totals, n_rows, BLOCK: tl.constexpr):
    """Sums of exponentials, each row's relative to its own maximum, brought to that of all; one program.

    Args:
        sums: columns of rows.
        maxima: columns of rows.
        top: the largest of each column of ``maxima``.
        totals: gets the six sums, behind those of all columns.
        n_rows: how many there are.
        BLOCK: rows at a time.
    """
    lane = tl.arange(0, BLOCK)
    zero = tl.zeros((BLOCK,), tl.float64)
    w, w2, wd, row_w, row_w2, row_wd = zero, zero, zero, zero, zero, zero
    token_max, sequence_max = tl.load(top + _TOKEN_MAX), tl.load(top + _SEQUENCE_MAX)
    for start in range(0, n_rows, BLOCK):
        row = start + lane
        inside = row < n_rows
        high = tl.load(maxima + _TOKEN_MAX * n_rows + row, mask=inside, other=float("-inf"))
        live = high > float("-inf")
        shift = tl.where(live, high - token_max, 0.0)
        factor = tl.where(live, exp(shift), 0.0)
        own = tl.load(sums + _W * n_rows + row, mask=inside, other=0.0)
        own2 = tl.load(sums + (_W + 1) * n_rows + row, mask=inside, other=0.0)
        own_d = tl.load(sums + (_W + 2) * n_rows + row, mask=inside, other=0.0)
        w += own * factor
        w2 += own2 * factor * factor
        wd += (own_d + shift * own) * factor
        d = tl.load(sums + _ROW_D * n_rows + row, mask=inside, other=0.0)
        relative = tl.minimum(tl.where(live, d - sequence_max, 0.0), 0.0)
        weight = tl.where(live, exp(relative), 0.0)
        row_w += weight
        row_w2 += weight * weight
        row_wd += weight * relative
    found = (tl.sum(w, 0), tl.sum(w2, 0), tl.sum(wd, 0), tl.sum(row_w, 0), tl.sum(row_w2, 0), tl.sum(row_wd, 0))
    store_columns(totals, _SHIFTED_AT, 1, found)


@triton.jit(
    do_not_specialize=["row_of_train", "row_of_rollout", "row_of_mask", "width", "n_rows", "n_blocks"],
    do_not_specialize_on_alignment=[
        "train", "rollout", "mask", "counts", "rows", "blocks", "block_starts", "keys", "positions",
    ],
)  # fmt: skip
def candidates(
    train, rollout, mask, counts, rows, blocks, block_starts, keys, positions,
    row_of_train, row_of_rollout, row_of_mask, width, n_rows, n_blocks, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys and positions of the tokens of one block; ``blocks`` counts those of ``rows`` through."""
    at = tl.program_id(0)
    which = tl.load(blocks + at)
    row = tl.load(rows + which // n_blocks)
    block = which % n_blocks
    lane = tl.arange(0, BLOCK)
    column = block * BLOCK + lane
    strides = row * row_of_train, row * row_of_rollout, row * row_of_mask
    _, valid, y, x = tokens(train, rollout, mask, strides[0], strides[1], strides[2], column, width)
    position = tl.load(block_starts + row * n_blocks + block) + tl.cumsum(valid.to(tl.int32), 0) - 1
    key = key_of(tl.where(valid, y - x, 0.0), tl.load(counts + n_rows + row), position, valid)
    tl.store(keys + at * BLOCK + lane, key)
    tl.store(positions + at * BLOCK + lane, position)


@triton.jit
def _of_rows(row, found, sums, counts, maxima, advantages, has_advantages, n_rows):
    """What both tables have of a row: length, fingerprint, advantage, sum and mean of absolute log-ratios."""
    n = tl.load(counts + row, mask=found, other=0)
    found = found & (n > 0)
    fingerprint = tl.load(counts + n_rows + row, mask=found, other=0)
    advantage = tl.load(advantages + row, mask=found & (row * 0 + has_advantages != 0), other=float("nan"))
    d = tl.load(sums + _ROW_D * n_rows + row, mask=found, other=0.0)
    abs_mean = tl.load(maxima + _ABS_MEAN * n_rows + row, mask=found, other=0.0)
    return found, n.to(tl.float64), fingerprint.to(tl.float64), advantage.to(tl.float64), d, abs_mean


@triton.jit
def _put(table, lane, found, n_columns, first: tl.constexpr, values):
    """Columns of a table, 0 where nothing was found."""
    for i in tl.static_range(len(values)):
        tl.store(table + lane * n_columns + first + i, tl.where(found, values[i], 0.0))


@triton.jit(
    do_not_specialize=[
        "row_of_train", "row_of_rollout", "row_of_mask", "row_of_ids", "has_ids", "has_advantages", "width", "n_rows",
        "n_blocks", "n_best", "n_found",
    ],
    do_not_specialize_on_alignment=[
        "train", "rollout", "mask", "ids", "advantages", "sums", "counts", "maxima", "best", "rows", "blocks", "keys",
        "positions", "found", "log_ratios", "token_table", "row_table",
    ],
)  # fmt: skip
def tables(
    train, rollout, mask, ids, advantages, sums, counts, maxima, best, rows, blocks, keys, positions, found,
    log_ratios, token_table, row_table,
    row_of_train, row_of_rollout, row_of_mask, row_of_ids, has_ids, has_advantages, width, n_rows, n_blocks, n_best,
    n_found, BLOCK: tl.constexpr,
):  # fmt: skip
    """All three tables of :class:`ratioscope.top.Top`, in their order; one program.

    ``best`` (3, n_best) has the rows whose keys are largest, and ``found`` (n_found,) the tokens among the candidates.
    """
    lane = tl.arange(0, _N_LOG_RATIOS)
    row = tl.load(best + lane, mask=lane < n_best, other=0)
    live = (lane < n_best) & (tl.load(counts + row) > 0)
    d = tl.load(sums + _ROW_D * n_rows + row)
    tl.store(log_ratios + lane, tl.where(live, d, float("-inf")))

    lane = tl.arange(0, _N_ROWS)
    row = tl.load(best + n_best + lane, mask=lane < n_best, other=0)
    of_rows = _of_rows(row, lane < n_best, sums, counts, maxima, advantages, has_advantages, n_rows)
    live, n, fingerprint, advantage, d, abs_mean = of_rows
    nothing = tl.zeros((_N_ROWS,), tl.float64)
    value = abs_mean.to(tl.float32).to(tl.float64)
    _put(row_table, lane, live, _ROW_COLUMNS, 0, (value, n, fingerprint, nothing, nothing, advantage, d))

    lane = tl.arange(0, _N_TOKENS)
    at = tl.load(found + lane, mask=lane < n_found, other=0)
    live = (lane < n_found) & (tl.load(keys + at) > NO_KEY)
    which = tl.load(blocks + at // BLOCK)
    row = tl.load(rows + which // n_blocks)
    column = (which % n_blocks) * BLOCK + at % BLOCK
    of_rows = _of_rows(row, live, sums, counts, maxima, advantages, has_advantages, n_rows)
    live, n, fingerprint, advantage, d, abs_mean = of_rows
    y = tl.load(train + row * row_of_train + column, mask=live, other=0.0)
    x = tl.load(rollout + row * row_of_rollout + column, mask=live, other=0.0)
    position = tl.load(positions + at).to(tl.float64)
    nothing = tl.zeros((_N_TOKENS,), tl.float64)
    value, y64, x64 = (y - x).to(tl.float64), y.to(tl.float64), x.to(tl.float64)
    values = (value, n, fingerprint, position, nothing, advantage, d, y64, x64)
    _put(token_table, lane, live, _TOKEN_COLUMNS, 0, values)
    for i in tl.static_range(_N_AROUND):
        beside = column + (i - _N_BEFORE)
        there = live & (beside >= 0) & (beside < width)
        there = (
            there & (tl.load(mask + row * row_of_mask + beside, mask=there, other=0) != 0) & (beside * 0 + has_ids != 0)
        )
        token = tl.load(ids + row * row_of_ids + beside, mask=there, other=-1).to(tl.float64)
        tl.store(token_table + lane * _TOKEN_COLUMNS + _IDS_AT + i, tl.where(live, token, 0.0))
