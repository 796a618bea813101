"""Whether both sides speak of the same token: moments of one side's log-probability against its neighbour's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.numerics import dot
from ratioscope.state.slots import LAG_SIDES

if TYPE_CHECKING:
    import torch

    from ratioscope.batch.observation import Observation


def lag_sums(observation: Observation) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Sums over pairs of neighbouring columns that are both valid, by slot, and the number of pairs; no host sync.

    A trainer that is one token ahead of the engine has at ``t`` what the engine has at ``t + 1``: then the product
    ``train/first * rollout/second`` is what correlates.

    Args:
        observation: the batch.
    """
    pair = observation.valid[:, :-1] & observation.valid[:, 1:]
    weight = pair.double()
    both = {"train": observation.train.double(), "rollout": observation.rollout.double()}
    place = {"first": slice(None, -1), "second": slice(1, None)}
    sums: dict[str, torch.Tensor] = {}
    for side in LAG_SIDES:
        name, _, which = side.partition("/")
        values = both[name][:, place[which]] * weight
        sums[f"lag/{side}"] = values.sum() + 0.0  # never -0, as in exact.dot
        sums[f"lag/{side}^2"] = dot(values, values)
    # A token that is not valid is 0 on both sides, so that its products need no weight.
    sums["lag/1"] = (both["train"][:, :-1] * both["rollout"][:, 1:]).sum()
    sums["lag/-1"] = (both["train"][:, 1:] * both["rollout"][:, :-1]).sum()
    return sums, pair.sum()
