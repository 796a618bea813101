"""Counts of what a rule did to a batch: modified ratios, the weights that are left, and the gradient that is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ratioscope.correction.stages import STAGE_COUNTS
from ratioscope.state.constants import constant
from ratioscope.summary.level_sums import extremes

if TYPE_CHECKING:
    from ratioscope.correction.rule import CorrectedBatch

_COLUMNS = ("ratios", "modified", "kept", "low", "high", "weights", "squares", "raw", "removed")
"""Terms of a rule's sums: masks, weights and their squares, ratios before the rule, and what the rule takes away."""
_N_SIDES = 3


def _by_side(column: str, side: int) -> int:
    """Index of a column's sum over completions with one of the factors of :func:`_sides`."""
    return len(_COLUMNS) + _COLUMNS.index(column) * _N_SIDES + side


_SUMS = (*map(_COLUMNS.index, ("weights", "squares")), _by_side("raw", 2), _by_side("removed", 2))
_COUNTS = (
    *map(_COLUMNS.index, ("kept", "low", "high")),
    *(_by_side(column, side) for side in (0, 1) for column in ("ratios", "modified")),
    len(_COLUMNS) * (1 + _N_SIDES),
)
"""Indices of the slots in the vector of total sums, sums by side of the advantage, and disagreements."""


class RuleEffect(NamedTuple):
    """Effect of a rule on one batch; vectors are in the order of ``slots``.

    Attributes:
        extremes: float64 ``(2,)``, largest weight and negated smallest; minus infinity without a weight.
        sums: float64 ``(4,)``: weights, their squares, and the sums over completions of
            abs(advantage) times the ratios before the rule, and times what the rule takes away.
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
    by_row, weights = _sums_by_row(corrected)
    totals = by_row.sum(dim=1)
    ratios, modified = by_row[:2].to(torch.int64).unbind()
    none = constant((0.0,) * (_N_SIDES * len(by_row)), by_row.device, by_row.dtype)
    by_side = none if advantages is None else (by_row @ _sides(advantages)).view(-1)
    disagreements = none[:1] if applied is None else corrected.disagreements(applied).view(1)
    values = torch.cat([totals, by_side, disagreements])  # counts below 2**53 are exact in float64
    stage_counts, normalizer = _staged_counts(corrected, totals)
    return RuleEffect(
        extremes=extremes(torch.stack([weights, -weights]), ~corrected.kept_mask),
        sums=values.index_select(0, constant(_SUMS, values.device, torch.int64)),
        normalizer=normalizer,
        counts=values.index_select(0, constant(_COUNTS, values.device, torch.int64)).to(torch.int64),
        stage_counts=stage_counts,
        ratios_by_row=ratios,
        modified_by_row=modified,
    )


def _sums_by_row(corrected: CorrectedBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of the columns ``_COLUMNS``, float64 ``(9, B)``, and the weights, float64 and 0 where not kept.

    Weights are those before normalisation: its divisor depends on the whole batch, which a part of it does not know.
    """
    masks = [corrected.valid, corrected.low, corrected.kept_mask, corrected.low, corrected.high]
    stacked = torch.stack([*masks, corrected.weights, corrected.weights, corrected.raw, corrected.raw])
    # A ratio may be infinite where a token is not valid, and infinity times 0 is NaN.
    columns = stacked.masked_fill_(~corrected.valid, 0.0).double()
    _, modified, _, _, high, weights, squares, _, removed = columns.unbind()
    modified.add_(high)  # no ratio is both below and above what is kept
    squares.square_()
    removed.sub_(weights).clamp_(min=0.0)
    return columns.sum(dim=-1), weights


def _sides(advantages: torch.Tensor) -> torch.Tensor:
    """Factors of completions in the sums by advantage, float64 ``(B, 3)``: 1 if positive, 1 if negative, the size."""
    return torch.stack([advantages > 0, advantages < 0, advantages.abs()], dim=1).double()


def _staged_counts(corrected: CorrectedBatch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``stage_counts`` and ``normalizer`` of :class:`RuleEffect`, which are 0 for bounds."""
    if corrected.stage_counts is None:
        zeros = constant((0,) * (len(STAGE_COUNTS) + 2), totals.device, torch.int64)
        return zeros, constant((0.0,), totals.device, torch.float64)
    total, number = (totals[0] * 0.0, totals[0] * 0.0) if corrected.normalizer is None else corrected.normalizer
    dropped = torch.stack([totals[0] - totals[2], number]).to(torch.int64)
    return torch.cat([corrected.stage_counts, dropped]), total.view(1).double()
