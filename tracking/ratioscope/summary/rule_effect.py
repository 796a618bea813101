"""Counts of what a rule did to a batch: modified ratios, the weights that are left, and the gradient that is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ratioscope.correction.stages import STAGE_COUNTS
from ratioscope.summary.level_sums import extremes

if TYPE_CHECKING:
    from ratioscope.correction.rule import CorrectedBatch


class RuleEffect(NamedTuple):
    """Effect of a rule on one batch; vectors are in the order of ``slots``.

    Attributes:
        extremes: float64 ``(2,)``, largest weight and negated smallest; minus infinity without a weight.
        sums: float64 ``(4,)``: weights, their squares, and the sums of :func:`_gradients`.
        normalizer: float64 ``(1,)``, sum of the weights that normalisation takes the mean of.
        counts: int64 ``(8,)``: kept ratios, ratios below and above what is kept; ratios and modified ones of positive,
            then of negative advantage; applied weights that are not the rule's.
        stage_counts: int64, one for each of ``stages.STAGE_COUNTS``, then dropped ratios and the normalizer's number.
        ratios_by_row: int64 ``(B,)``, ratios of each completion at the level of the rule.
        modified_by_row: int64 ``(B,)``, how many of them the rule modified.
    """

    extremes: torch.Tensor
    sums: torch.Tensor
    normalizer: torch.Tensor
    counts: torch.Tensor
    stage_counts: torch.Tensor
    ratios_by_row: torch.Tensor
    modified_by_row: torch.Tensor

    @classmethod
    def none(cls, n: torch.Tensor) -> RuleEffect:
        """The effect of no rule on a batch of completions with ``n`` tokens, ``(B,)``."""
        sums, counts = n.new_zeros(5, dtype=torch.float64), n.new_zeros(10 + len(STAGE_COUNTS))
        no_row = torch.zeros_like(n)
        no_weight = n.new_full((2,), -torch.inf, dtype=torch.float64)
        return cls(no_weight, sums[:4], sums[4:], counts[:8], counts[8:], no_row, no_row)


def count_effect(
    corrected: CorrectedBatch, *, advantages: torch.Tensor | None, applied: torch.Tensor | None
) -> RuleEffect:
    """Counts what a rule did, without a host sync.

    Args:
        corrected: the batch under the rule.
        advantages: float32 ``(B,)``, or None.
        applied: the weights that the loss really uses, or None.
    """
    by_row = torch.stack([corrected.valid, corrected.kept_mask, corrected.low, corrected.high]).sum(dim=-1)
    ratios, _, low, high = by_row.unbind()
    modified, totals = low + high, by_row.sum(dim=1)
    not_kept = ~corrected.kept_mask
    weights = corrected.weights.double().masked_fill_(not_kept, 0.0)
    squares = torch.linalg.vector_norm(weights).square()
    zeros = totals.new_zeros(5)
    disagreements = zeros[:1] if applied is None else corrected.disagreements(applied).view(1)
    if advantages is None:
        by_advantage, gradients = zeros[1:], zeros[:2]
    else:
        sides = torch.stack([advantages > 0, advantages < 0]).unsqueeze(1)
        by_advantage = (torch.stack([ratios, modified]) * sides).sum(dim=-1).flatten()
        gradients = _gradients(corrected, advantages)
    stage_counts, normalizer = _staged_counts(corrected, totals)
    return RuleEffect(
        extremes=extremes(torch.stack([weights, -weights]), not_kept),
        sums=torch.cat([torch.stack([weights.sum(), squares]), gradients]),
        normalizer=normalizer,
        counts=torch.cat([totals[1:], by_advantage, disagreements]),
        stage_counts=stage_counts,
        ratios_by_row=ratios,
        modified_by_row=modified,
    )


def _staged_counts(corrected: CorrectedBatch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``stage_counts`` and ``normalizer`` of :class:`RuleEffect`, which are 0 for bounds."""
    if corrected.stage_counts is None:
        zeros = totals.new_zeros(len(STAGE_COUNTS) + 2)
        return zeros, zeros[:1].double()
    total, number = (totals[0] * 0.0, totals[0] * 0) if corrected.normalizer is None else corrected.normalizer
    dropped = torch.stack([totals[0] - totals[1], number])
    return torch.cat([corrected.stage_counts, dropped]), total.view(1).double()


def _gradients(corrected: CorrectedBatch, advantages: torch.Tensor) -> torch.Tensor:
    """Sums of abs(advantage) times the ratio before the rule, and times what the rule takes away: float64 ``(2,)``.

    Weights are those before normalisation: its divisor depends on the whole batch, which a part of it does not know.
    """
    # A ratio may be infinite where a token is not valid, and infinity times 0 is NaN.
    sides = torch.stack([corrected.raw, corrected.weights]).masked_fill_(~corrected.valid, 0.0).double()
    raw, removed = sides.unbind()
    torch.sub(raw, removed, out=removed).clamp_(min=0.0)
    return sides.sum(dim=-1) @ advantages.double().abs()
