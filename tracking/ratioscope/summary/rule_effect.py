"""What a rule did to a batch: how many ratios it modified, what weights it left, and whose gradient that takes away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ratioscope.correction.stage_pipeline import disagreements, normalizer, through
from ratioscope.numerics import dot
from ratioscope.state import histogram

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation
    from ratioscope.correction.rule import Correction
    from ratioscope.summary.tally import Tally


@dataclass(frozen=True)
class Corrected:
    """What a rule did, apart from what is in the tally.

    Attributes:
        histogram: int64 ``(N_BUCKETS,)`` of the weights' logarithms.
        ratios_of_row: int64 ``(B,)`` ratios at the level of the rule.
        modified_of_row: int64 ``(B,)`` how many of them the rule modified.
        stage_counts: as ``stages.STAGE_COUNTS``, of a general rule.
    """

    histogram: torch.Tensor
    ratios_of_row: torch.Tensor
    modified_of_row: torch.Tensor
    stage_counts: torch.Tensor | None = None


def corrected(
    tally: Tally,
    observation: Observation,
    correction: Correction,
    applied: torch.Tensor | None,
    *,
    log_ratio: torch.Tensor,
    valid: torch.Tensor,
) -> Corrected:
    """Adds what a short-form rule did to the tally.

    Args:
        tally: gets counts, sums and maxima.
        observation: the batch.
        correction: the rule.
        applied: the weights that the loss really uses, or None.
        log_ratio: float32 ``(B, T)`` of tokens, or ``(B, 1)`` of rows, as the rule's level is.
        valid: bool of the same shape.
    """
    raw, advantages = correction.raw_ratio(observation.log_ratio), observation.advantages
    weights = correction.apply(raw)
    low, high = correction.outside(raw)
    low, high = low & valid, high & valid
    modified = low | high
    ratios_of_row, modified_of_row = valid.sum(dim=-1), modified.sum(dim=-1)
    weight = weights.double() * valid
    tally.counts.update({"corrected/n": valid.sum(), "modified/low": low.sum(), "modified/high": high.sum()})
    tally.sums.update({"corrected/w": weight.sum(), "corrected/w2": dot(weight, weight)})
    tally.extremes("corrected", weights, valid)
    if applied is not None:
        same = observation.step_log_ratio is observation.log_ratio
        expected = weights if same else correction.apply(correction.raw_ratio(observation.step_log_ratio))
        same_shape = applied.shape == expected.shape
        tally.counts["disagreements"] = ((expected != applied.detach()) & valid).sum() if same_shape else valid.sum()
    if advantages is not None:
        by_advantage(tally, advantages, ratios_of_row, modified_of_row)
        _gradients(tally, advantages, raw, weights, valid)
    if correction.action == "mask":
        left = histogram.count(log_ratio, valid & ~modified)
    else:
        lower, upper = correction.log_bounds
        left = histogram.count(log_ratio.clamp(min=lower, max=upper), valid)
    return Corrected(left, ratios_of_row, modified_of_row)


def corrected_by_stages(
    tally: Tally, observation: Observation, correction: Correction, applied: torch.Tensor | None
) -> Corrected:
    """The same of a rule of stages, all of it by token."""
    valid = observation.valid
    passed = through(observation, correction)
    weights, kept, modified = passed.weights, passed.kept, passed.modified
    ratios_of_row, modified_of_row = valid.sum(dim=-1), modified.sum(dim=-1)
    tally.counts.update(
        {
            "corrected/n": kept.sum(),
            "dropped/n": (valid & ~kept).sum(),
            "modified/low": passed.low.sum(),
            "modified/high": passed.high.sum(),
        }
    )
    weight = _where(kept, weights.double())
    tally.sums.update({"corrected/w": weight.sum(), "corrected/w2": weight.square().sum()})
    tally.extremes("corrected", _where(kept, weights), kept)
    if applied is not None:
        tally.counts["disagreements"] = disagreements(observation, passed, correction, applied)
    if correction.batch_normalize:
        tally.sums["normalizer/w"], tally.counts["normalizer/n"] = normalizer(passed, correction, valid)
    if observation.advantages is not None:
        by_advantage(tally, observation.advantages, ratios_of_row, modified_of_row)
        # What normalising takes away depends on the whole batch, which a part of it does not know.
        _gradients(tally, observation.advantages, _where(valid, passed.raw), weights, valid)
    left = histogram.count(weights.log(), kept & (weights > 0))
    return Corrected(left, ratios_of_row, modified_of_row, passed.counts())


def by_advantage(tally: Tally, advantages: torch.Tensor, ratios: torch.Tensor, modified: torch.Tensor) -> None:
    """Counts ratios and modified ones of rows, both int64 ``(B,)``, by the sign of their advantage."""
    for name, side in (("positive", advantages > 0), ("negative", advantages < 0)):
        tally.counts[f"{name}_advantage/n"] = (ratios * side).sum()
        tally.counts[f"{name}_advantage/modified"] = (modified * side).sum()


def _gradients(
    tally: Tally, advantages: torch.Tensor, raw: torch.Tensor, weights: torch.Tensor, valid: torch.Tensor
) -> None:
    size, ratio = advantages.double().abs(), raw.double()
    tally.sums["gradient/raw"] = dot(size, (ratio * valid).sum(dim=-1))
    removed = (ratio - weights.double()).clamp(min=0.0)
    tally.sums["gradient/removed"] = dot(size, (removed * valid).sum(dim=-1))


def _where(valid: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.where(valid, values, 0.0)
