"""Worst tokens and completions of one batch, as rows of the mergeable tables of :mod:`ratioscope.state.tables`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from ratioscope.state.constant_tensors import constant
from ratioscope.state.slots import N_ROWS, N_TOKENS, SPREAD
from ratioscope.state.tables import NO_ROW, Top, largest_values, order_key, padded_rows, rows_by_key, tie_order
from ratioscope.state.worst import N_AFTER, N_BEFORE

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation
    from ratioscope.summary.positions import Positions

ROLLOUT_FACTOR, ID_FACTOR, NUMBER_FACTOR = 0x1B873593CC9E2D51, 0x4CF5AD432745937F, 0x5851F42D4C957F2D
"""Odd integers, so that a product modulo 2**64 loses nothing, with bits in both halves."""


class WorstTokens(NamedTuple):
    """A batch's worst tokens, in order; ``(N,)`` each, with N at most ``N_TOKENS``.

    Attributes:
        token: int64, index in the flattened batch.
        row: int64, index of the completion.
        position: int32, index among the completion's valid tokens.
        missing: bool, True where the batch has fewer than N valid tokens.
        tie: int32 ``(B,)``, the order of completions among equals.
    """

    token: torch.Tensor
    row: torch.Tensor
    position: torch.Tensor
    missing: torch.Tensor
    tie: torch.Tensor


def completion_numbers(observation: Observation) -> torch.Tensor:
    """Numbers that identify completions by content: int64 ``(B,)``, at least 0 and below 2**52.

    A number is made of a sum over the masked-in tokens of the bits of both log-probabilities and of the id, scrambled
    and times the distance from the first masked-in column, and of the completion's length and advantage. Ids of
    invalid tokens count too, since the tables show them as neighbours. Integers wrap and add exactly, so the number
    depends neither on the device nor on padding, batch or summation order.

    Args:
        observation: a batch of at least one column.
    """
    masked_in = observation.masked_in
    train, rollout, _ = observation.bits
    content = torch.add(train.to(torch.int64), rollout, alpha=ROLLOUT_FACTOR)
    if observation.token_ids is not None:
        marked = torch.add(observation.valid, observation.token_ids + 1, alpha=2)
        content = torch.add(content, marked.mul_(masked_in), alpha=ID_FACTOR)
    # A sum that is linear in the ids would often collide: with equal log-probabilities, small ids have equal sums.
    content = content * (content >> 29)
    first = masked_in.to(torch.uint8).argmax(dim=-1, keepdim=True)
    distance = _columns(masked_in.shape[-1], masked_in.device) - first
    total = torch.add(observation.n_valid, content.mul_(distance).sum(dim=-1), alpha=NUMBER_FACTOR)
    if observation.advantages is None:
        total = total * NUMBER_FACTOR
    else:
        total = torch.add(observation.advantages.view(torch.int32), total, alpha=NUMBER_FACTOR)
    return ((total * NUMBER_FACTOR) >> 12) & (2**52 - 1)  # the highest bits of a product depend on all bits


@lru_cache(maxsize=64)
def _columns(width: int, device: torch.device) -> torch.Tensor:
    """Int64 ``(width,)``: 1, 2, ..."""
    return torch.arange(1, width + 1, device=device)


def find_worst_tokens(observation: Observation, positions: Positions, numbers: torch.Tensor) -> WorstTokens:
    """Finds the first tokens by the order of the tables.

    Args:
        observation: a batch of at least one column.
        positions: positions of its tokens.
        numbers: int64 ``(B,)``, see :func:`completion_numbers`.
    """
    tie = tie_order(numbers)
    ties = torch.add(tie.unsqueeze(-1), positions.position, alpha=SPREAD)
    keys = order_key(observation.bits[2], ties, observation.invalid).flatten()
    best, index = keys.topk(min(N_TOKENS, len(keys)))
    row = index // observation.valid.shape[-1]
    return WorstTokens(token=index, row=row, position=positions.position.take(index), missing=best < NO_ROW, tie=tie)


def top_from_batch(
    observation: Observation,
    worst: WorstTokens,
    numbers: torch.Tensor,
    n: torch.Tensor,
    dead: torch.Tensor,
    row_d: torch.Tensor,
    abs_mean: torch.Tensor,
) -> Top:
    """Makes the three tables of one batch, without a host sync.

    Args:
        observation: a batch of at least one column.
        worst: its worst tokens.
        numbers: int64 ``(B,)``, see :func:`completion_numbers`.
        n: int64 ``(B,)`` valid tokens of each completion.
        dead: bool ``(B,)``, completions without one.
        row_d: float64 ``(B,)`` sums of log-ratios, rounded to float32; minus infinity without a valid token.
        abs_mean: float64 ``(B,)`` means of absolute log-ratios.
    """
    value, zero = abs_mean.float(), torch.zeros_like(n)
    advantages = torch.full_like(row_d, torch.nan) if observation.advantages is None else observation.advantages
    # Stacking integers below 2**53 with float64 is exact. ROW_COLUMNS, with rank and position 0.
    rows = torch.stack([value, n, numbers, zero, zero, advantages, row_d], dim=-1)
    key = order_key(value.view(torch.int32), worst.tie, dead)
    return Top(
        log_ratios=largest_values(row_d),
        tokens=padded_rows(_token_table(observation, worst, rows), N_TOKENS),
        rows=rows_by_key(rows.masked_fill(dead.unsqueeze(-1), 0.0), key, N_ROWS),
    )


def _token_table(observation: Observation, worst: WorstTokens, rows: torch.Tensor) -> torch.Tensor:
    train, rollout, d = observation.columns.flatten(1).index_select(1, worst.token).unbind()
    _, n, number, _, rank, advantage, row_d = rows.index_select(0, worst.row).unbind(dim=-1)
    ids = _ids(observation, worst)
    table = torch.stack([d, n, number, worst.position, rank, advantage, row_d, train, rollout, *ids], dim=-1)
    return table.masked_fill_(worst.missing.unsqueeze(-1), 0.0)


def _ids(observation: Observation, worst: WorstTokens) -> tuple[torch.Tensor, ...]:
    """Ids of the tokens and their neighbours, ``(N,)`` by column of the table; -1 where the mask has none."""
    around = constant(tuple(range(-N_BEFORE, N_AFTER + 1)), worst.row.device, torch.int64, dims=2)
    if observation.token_ids is None:
        return torch.full((len(around), len(worst.row)), -1.0, device=worst.row.device).unbind()
    neighbours = worst.token + around
    other_row = neighbours // observation.valid.shape[-1] != worst.row
    neighbours.clamp_(0, observation.valid.numel() - 1)
    absent = observation.masked_in.take(neighbours) <= other_row  # unless masked in and not in another row
    return observation.token_ids.take(neighbours).masked_fill_(absent, -1).unbind()
