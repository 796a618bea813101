"""Worst tokens and completions of one batch, as rows of the mergeable tables of :mod:`ratioscope.state.tables`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ratioscope.state.slots import N_ROWS, N_TOKENS
from ratioscope.state.tables import NO_ROW, Top, first_rows, largest_values, order_key, padded_rows
from ratioscope.state.worst import KEYED, N_AFTER, N_BEFORE

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation
    from ratioscope.summary.positions import Positions

ROLLOUT_FACTOR, ID_FACTOR, NUMBER_FACTOR = 0x1B873593CC9E2D51, 0x4CF5AD432745937F, 0x5851F42D4C957F2D
"""Odd integers, so that a product modulo 2**64 loses nothing, with bits in both halves."""


class WorstTokens(NamedTuple):
    """Coordinates of a batch's worst tokens, in order; ``(N,)`` each, with N at most ``N_TOKENS``.

    Attributes:
        row: int64, index of the completion in the batch.
        column: int64, index along the batch's second dimension.
        position: int64, index among the completion's valid tokens.
        valid: bool, False where the batch has fewer than N valid tokens.
    """

    row: torch.Tensor
    column: torch.Tensor
    position: torch.Tensor
    valid: torch.Tensor


def completion_numbers(observation: Observation, positions: Positions) -> torch.Tensor:
    """Numbers that identify completions by content: int64 ``(B,)``, at least 0 and below 2**52.

    A number is made of a sum over the valid tokens of the bits of both log-probabilities and of the id, each times the
    token's position, and of the completion's length and advantage. Integers wrap and add exactly, so the number depends
    neither on the device nor on padding, batch or summation order.

    Args:
        observation: a batch of at least one column.
        positions: positions of its tokens.
    """
    train, rollout = (logps.view(torch.int32) for logps in (observation.train, observation.rollout))
    content = torch.add(train.to(torch.int64), rollout, alpha=ROLLOUT_FACTOR)
    if observation.token_ids is not None:
        content = torch.add(content, observation.token_ids * observation.valid, alpha=ID_FACTOR)
    total = torch.add(positions.n.squeeze(-1), content.mul_(positions.seen).sum(dim=-1), alpha=NUMBER_FACTOR)
    if observation.advantages is None:
        total = total * NUMBER_FACTOR
    else:
        total = torch.add(observation.advantages.view(torch.int32), total, alpha=NUMBER_FACTOR)
    return ((total * NUMBER_FACTOR) >> 12) & (2**52 - 1)  # the highest bits of a product depend on all bits


def find_worst_tokens(observation: Observation, positions: Positions, numbers: torch.Tensor) -> WorstTokens:
    """Finds the first tokens by the order of the tables.

    Args:
        observation: a batch of at least one column.
        positions: positions of its tokens.
        numbers: int64 ``(B,)``, see :func:`completion_numbers`.
    """
    width = observation.valid.shape[-1]
    position = positions.seen - 1
    keys = order_key(observation.log_ratio, numbers.unsqueeze(-1), position, observation.valid).flatten()
    best, index = keys.topk(min(N_TOKENS, len(keys)))
    return WorstTokens(
        row=index // width, column=index % width, position=position.take(index).to(torch.int64), valid=best >= NO_ROW
    )


def top_from_batch(
    observation: Observation,
    worst: WorstTokens,
    numbers: torch.Tensor,
    n: torch.Tensor,
    row_d: torch.Tensor,
    abs_mean: torch.Tensor,
) -> Top:
    """Makes the three tables of one batch, without a host sync.

    Args:
        observation: a batch of at least one column.
        worst: its worst tokens.
        numbers: int64 ``(B,)``, see :func:`completion_numbers`.
        n: int64 ``(B,)`` valid tokens of each completion.
        row_d: float64 ``(B,)`` sums of log-ratios.
        abs_mean: float64 ``(B,)`` means of absolute log-ratios.
    """
    live = n > 0
    advantages = torch.full_like(row_d, torch.nan) if observation.advantages is None else observation.advantages
    zero = torch.zeros_like(n)
    columns = (abs_mean.float(), n, numbers, zero, zero, advantages, row_d)
    rows = torch.stack([column.double() for column in columns], dim=-1)
    return Top(
        log_ratios=largest_values(torch.where(live, row_d, -torch.inf)),
        tokens=padded_rows(_token_table(observation, worst, rows), N_TOKENS),
        rows=first_rows(torch.where(live.unsqueeze(-1), rows, 0.0), N_ROWS),
    )


def _token_table(observation: Observation, worst: WorstTokens, rows: torch.Tensor) -> torch.Tensor:
    index = worst.row * observation.valid.shape[-1] + worst.column
    train, rollout = (logps.take(index).float() for logps in observation.given[:2])
    completion = rows.index_select(0, worst.row)
    columns = [
        (train - rollout).double().unsqueeze(-1),
        completion[:, 1 : len(KEYED) - 1],  # n and the number
        worst.position.double().unsqueeze(-1),
        completion[:, len(KEYED) :],  # rank, advantage and the sum of log-ratios
        torch.stack([train, rollout], dim=-1).double(),
        _ids(observation, worst.row, worst.column),
    ]
    return torch.where(worst.valid.unsqueeze(-1), torch.cat(columns, dim=-1), 0.0)


def _ids(observation: Observation, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Ids of tokens and their neighbours, float64 ``(N, N_BEFORE + 1 + N_AFTER)``; -1 where the mask has none."""
    around = torch.arange(-N_BEFORE, N_AFTER + 1, device=row.device)
    if observation.token_ids is None:
        return torch.full((len(row), len(around)), -1.0, dtype=torch.float64, device=row.device)
    width = observation.token_ids.shape[-1]
    columns = column.unsqueeze(-1) + around
    index = row.unsqueeze(-1) * width + columns.clamp(0, width - 1)
    masked_in = (observation.given[2].take(index) != 0) & (columns >= 0) & (columns < width)
    return torch.where(masked_in, observation.token_ids.take(index), -1).double()
