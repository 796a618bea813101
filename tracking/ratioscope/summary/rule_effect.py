"""Counts of what a rule did to a batch: modified ratios, the weights that are left, and the gradient that is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ratioscope.numerics import dot
from ratioscope.state import histogram

if TYPE_CHECKING:
    from ratioscope.correction.rule import CorrectedBatch
    from ratioscope.summary.tally import Tally


@dataclass(frozen=True)
class RuleEffect:
    """Counts of a rule's effect that are not in the tally.

    Attributes:
        histogram: int64 ``(N_BUCKETS,)`` of the weights' logarithms.
        ratios_by_row: int64 ``(B,)``, ratios of each sequence at the level of the rule.
        modified_by_row: int64 ``(B,)``, how many of them the rule modified.
        stage_counts: int64, one for each of ``stages.STAGE_COUNTS``; None for a rule without stages.
    """

    histogram: torch.Tensor
    ratios_by_row: torch.Tensor
    modified_by_row: torch.Tensor
    stage_counts: torch.Tensor | None


def count_effect(
    tally: Tally,
    corrected: CorrectedBatch,
    *,
    advantages: torch.Tensor | None = None,
    applied: torch.Tensor | None = None,
) -> RuleEffect:
    """Counts what a rule did.

    Args:
        tally: gets counts, sums and maxima.
        corrected: the batch under the rule.
        advantages: float32 ``(B,)``, or None.
        applied: the weights that the loss really uses, or None.
    """
    valid, kept_mask, modified = corrected.valid, corrected.kept_mask, corrected.low | corrected.high
    ratios_by_row, modified_by_row = valid.sum(dim=-1), modified.sum(dim=-1)
    n_kept = kept_mask.sum()
    tally.counts.update(
        {
            "corrected/n": n_kept,
            "dropped/n": ratios_by_row.sum() - n_kept,
            "modified/low": corrected.low.sum(),
            "modified/high": corrected.high.sum(),
        }
    )
    kept = torch.where(kept_mask, corrected.weights, 0.0)
    weights = kept.double()
    tally.sums.update({"corrected/w": weights.sum(), "corrected/w2": dot(weights, weights)})
    tally.extremes("corrected", kept, kept_mask)
    if applied is not None:
        tally.counts["disagreements"] = corrected.disagreements(applied)
    if corrected.normalizer is not None:
        tally.sums["normalizer/w"], tally.counts["normalizer/n"] = corrected.normalizer
    if advantages is not None:
        for name, side in (("positive", advantages > 0), ("negative", advantages < 0)):
            tally.counts[f"{name}_advantage/n"] = (ratios_by_row * side).sum()
            tally.counts[f"{name}_advantage/modified"] = (modified_by_row * side).sum()
        _add_gradients(tally, corrected, advantages)
    log_weights = histogram.count(corrected.log_weights, corrected.positive_mask)
    return RuleEffect(log_weights, ratios_by_row, modified_by_row, corrected.stage_counts)


def _add_gradients(tally: Tally, corrected: CorrectedBatch, advantages: torch.Tensor) -> None:
    """Adds the sums of |advantage| ratio, before the rule and taken away by it.

    Weights are those before normalisation: its divisor depends on the whole batch, which a part of it does not know.
    """
    size = advantages.double().abs()
    # A row's ratio may be infinite where a token is not valid, and infinity times 0 is NaN.
    ratio = torch.where(corrected.valid, corrected.raw, 0.0).double()
    tally.sums["gradient/raw"] = dot(size, ratio.sum(dim=-1))
    removed = (ratio - corrected.weights.double()).clamp(min=0.0)
    tally.sums["gradient/removed"] = dot(size, (removed * corrected.valid).sum(dim=-1))
