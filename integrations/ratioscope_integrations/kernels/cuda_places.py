"""Sums by tenth and turn of a row on CUDA, in a few cells that stay with the program until the row ends."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# Types are Triton's in here, whose own annotations say less than is there.

from __future__ import annotations

import triton
import triton.language as tl

from ratioscope.slots import DECILES, TURNS
from ratioscope_integrations.kernels.cuda_types import PLACES, SECOND_COUNTS, SECOND_SUMS

CELLS = tl.constexpr(16)
"""A power of two, from the number of tenths on."""
TENTHS, N_TURNS = tl.constexpr(len(DECILES)), tl.constexpr(len(TURNS))
_SUMS_AT = tl.constexpr(len(SECOND_SUMS))
_ABS_SUMS_AT = tl.constexpr(len(SECOND_SUMS) + len(PLACES) - 1)
_COUNTS_AT = tl.constexpr(len(SECOND_COUNTS))


@triton.jit
def added_up(sums, absolutes, cell, low, high, valid, d):
    """Adds a block's tokens to their cells, from the lowest to the highest that it has; mostly there is one."""
    lane = tl.arange(0, CELLS)
    for at in range(low, high + 1):
        mine = tl.where(valid & (cell == at), d, 0.0)
        sums += tl.where(lane == at, tl.sum(mine, 0), 0.0)
        absolutes += tl.where(lane == at, tl.sum(tl.abs(mine), 0), 0.0)
    return sums, absolutes


@triton.jit
def counted(counts, cell, low, high, valid, n):
    """The same of their number, of which there are ``n`` in all."""
    lane = tl.arange(0, CELLS)
    if low == high:
        counts += tl.where(lane == low, n, 0)
    else:
        for at in range(low, high + 1):
            counts += tl.where(lane == at, tl.sum((valid & (cell == at)).to(tl.int32), 0), 0)
    return counts


@triton.jit
def store_places(sums, counts, row, n_rows, n, tenth_d, tenth_abs, turn_d, turn_abs, turn_n):
    """Puts a row's cells into its columns; how many tokens a tenth has follows from the row's."""
    cell = tl.arange(0, CELLS)
    tenth_n = ((cell + 1) * n + TENTHS - 1) // TENTHS - (cell * n + TENTHS - 1) // TENTHS
    for_tenths, for_turns = cell < TENTHS, cell < N_TURNS
    tl.store(sums + (_SUMS_AT + cell) * n_rows + row, tenth_d, mask=for_tenths)
    tl.store(sums + (_SUMS_AT + TENTHS + cell) * n_rows + row, turn_d, mask=for_turns)
    tl.store(sums + (_ABS_SUMS_AT + cell) * n_rows + row, tenth_abs, mask=for_tenths)
    tl.store(sums + (_ABS_SUMS_AT + TENTHS + cell) * n_rows + row, turn_abs, mask=for_turns)
    tl.store(counts + (_COUNTS_AT + cell) * n_rows + row, tenth_n, mask=for_tenths)
    tl.store(counts + (_COUNTS_AT + TENTHS + cell) * n_rows + row, turn_n, mask=for_turns)
