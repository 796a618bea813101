"""The tables of what is largest on CUDA."""

# pyright: reportCallIssue=false, reportArgumentType=false
# A launch takes options beside what the kernel itself takes.

from __future__ import annotations

import torch

from ratioscope.top import N_LOG_RATIOS, N_ROWS, N_TOKENS, Top
from ratioscope.worst import ROW_COLUMNS, TOKEN_COLUMNS
from ratioscope_integrations.kernels import cuda_finish
from ratioscope_integrations.kernels.cuda_types import SPAN, WARPS, Batch, Rows

_MOST_AT_ONCE, _CHUNK = 1 << 14, 1 << 12
"""Keys among which torch finds the largest in few launches, and how many it is given at a time where there are more."""


def top_of(of: Batch, rows: Rows) -> Top:
    """The tables: the worst token is in the row and the span whose own worst it is, and so are the others."""
    device, n_blocks = of.train.device, rows.block_keys.shape[1]
    best = largest(rows.keys, min(N_LOG_RATIOS, of.n_rows))
    worst_rows = best[2, :N_TOKENS].contiguous()
    block_keys = rows.block_keys.index_select(0, worst_rows).view(1, -1)
    blocks = largest(block_keys, min(N_TOKENS, block_keys.shape[1])).view(-1)
    keys = torch.empty(len(blocks), SPAN, dtype=torch.int64, device=device)
    positions = torch.empty(len(blocks), SPAN, dtype=torch.int32, device=device)
    cuda_finish.candidates[(len(blocks),)](
        of.train, of.rollout, of.mask, rows.counts, worst_rows, blocks, rows.block_starts, keys, positions,
        *of.strides, of.width, of.n_rows, n_blocks, BLOCK=SPAN, num_warps=WARPS,
    )  # fmt: skip
    found = largest(keys.view(1, -1), N_TOKENS).view(-1)
    top = Top(
        torch.empty(N_LOG_RATIOS, dtype=torch.float64, device=device),
        torch.empty(N_TOKENS, len(TOKEN_COLUMNS), dtype=torch.float64, device=device),
        torch.empty(N_ROWS, len(ROW_COLUMNS), dtype=torch.float64, device=device),
    )
    cuda_finish.tables[(1,)](
        of.train, of.rollout, of.mask, of.ids, of.advantages, rows.sums, rows.counts, rows.maxima,
        best, worst_rows, blocks, keys, positions, found, top.log_ratios, top.tokens, top.rows,
        *of.strides, of.ids.stride(0), of.has_ids, of.has_advantages, of.width, of.n_rows, n_blocks,
        best.shape[1], len(found), BLOCK=SPAN, num_warps=WARPS,
    )  # fmt: skip
    return top


def largest(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Where each row's largest keys are, in order; int64 ``(rows, count)``."""
    size = keys.shape[1]
    if size <= _MOST_AT_ONCE:
        return keys.topk(count, dim=1).indices
    padded = torch.nn.functional.pad(keys, (0, -size % _CHUNK), value=torch.iinfo(torch.int64).min)
    some = padded.view(len(keys), -1, _CHUNK).topk(count, dim=2)
    starts = torch.arange(0, padded.shape[1], _CHUNK, device=keys.device).unsqueeze(-1)
    where = (some.indices + starts).flatten(1)
    return where.gather(1, some.values.flatten(1).topk(count, dim=1).indices)
