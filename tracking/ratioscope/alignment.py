"""Whether both sides speak of the same token: moments of one side's log-probability against its neighbour's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ratioscope.slots import LAG_SIDES

if TYPE_CHECKING:
    from ratioscope.observation import Observation


def lag_sums(observation: Observation) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Sums over pairs of neighbouring columns that are both valid, by slot, and the number of pairs; no host sync.

    A trainer that is one token ahead of the engine has at ``t`` what the engine has at ``t + 1``: then the product
    ``train/first * rollout/second`` is what correlates.

    Args:
        observation: the batch.
    """
    pair = observation.valid[:, :-1] & observation.valid[:, 1:]
    train, rollout = observation.train.double(), observation.rollout.double()
    sides = torch.stack([train[:, :-1], train[:, 1:], rollout[:, :-1], rollout[:, 1:]]) * pair
    totals, squares = sides.sum(dim=(1, 2)), sides.square().sum(dim=(1, 2))
    ahead, behind = (sides[0] * sides[3]).sum(), (sides[1] * sides[2]).sum()
    sums = {f"lag/{side}": totals[at] for at, side in enumerate(LAG_SIDES)}
    sums |= {f"lag/{side}^2": squares[at] for at, side in enumerate(LAG_SIDES)}
    return {**sums, "lag/1": ahead, "lag/-1": behind}, pair.sum()
