"""Counts of what a rule did to a batch: modified ratios, the weights that are left, and the gradient that is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ratioscope.correction.stages import STAGE_COUNTS
from ratioscope.state.constant_tensors import constant
from ratioscope.state.slots import COUNTS, SUMS
from ratioscope.summary.level_sums import extremes

if TYPE_CHECKING:
    from ratioscope.correction.rule import CorrectedBatch

_COLUMNS = (
    *("ratios", "modified", "corrected/n", "modified/low", "modified/high"),
    *("corrected/w", "corrected/w2", "raw", "removed"),
)
"""Terms of a rule's sums: masks, weights and their squares, ratios before the rule, and what the rule takes away."""
_BY_SIDE = {
    "ratios": ("positive_advantage/n", "negative_advantage/n", ""),
    "modified": ("positive_advantage/modified", "negative_advantage/modified", ""),
    "raw": ("", "", "gradient/raw"),
    "removed": ("", "", "gradient/removed"),
}
_N_SIDES = 3
VALUE_NAMES = (
    *_COLUMNS,
    *(name for column in _COLUMNS for name in _BY_SIDE.get(column, ("",) * _N_SIDES)),
    "disagreements",
)
"""Names of a rule's sums: total ones, then those with each factor of :func:`_sides`; empty where none is a slot."""
_SUMS = tuple(map(VALUE_NAMES.index, SUMS[SUMS.index("corrected/w") : SUMS.index("gradient/removed") + 1]))
_COUNTS = tuple(map(VALUE_NAMES.index, COUNTS[COUNTS.index("corrected/n") : COUNTS.index("disagreements") + 1]))


class RuleEffect(NamedTuple):
    """Effect of a rule on one batch; vectors are in the order of ``slots``.

    Attributes:
        extremes: float64 ``(2,)``, largest weight and negated smallest; minus infinity without a weight.
        values: float64, sums and counts named in :data:`VALUE_NAMES`; counts below 2**53 are exact.
        normalizer: float64 ``(1,)``, sum of the weights that normalisation takes the mean of.
        stage_counts: int64, one for each of ``stages.STAGE_COUNTS``, then dropped ratios and the normalizer's number.
        ratios_by_row: int64 ``(B,)``, ratios of each completion at the level of the rule.
        modified_by_row: int64 ``(B,)``, how many of them the rule modified.
    """

    extremes: torch.Tensor
    values: torch.Tensor
    normalizer: torch.Tensor
    stage_counts: torch.Tensor
    ratios_by_row: torch.Tensor
    modified_by_row: torch.Tensor

    @classmethod
    def none(cls, n: torch.Tensor) -> RuleEffect:
        """The effect of no rule on a batch of completions with ``n`` tokens, ``(B,)``."""
        values = n.new_zeros(len(VALUE_NAMES) + 1, dtype=torch.float64)
        no_row, no_weight = torch.zeros_like(n), n.new_full((2,), -torch.inf, dtype=torch.float64)
        return cls(no_weight, values[1:], values[:1], n.new_zeros(len(STAGE_COUNTS) + 2), no_row, no_row)

    @property
    def sums(self) -> torch.Tensor:
        """Float64 ``(4,)``, slots from ``corrected/w`` to ``gradient/removed``."""
        return self.values.index_select(0, constant(_SUMS, self.values.device, torch.int64))

    @property
    def counts(self) -> torch.Tensor:
        """Int64 ``(8,)``, slots from ``corrected/n`` to ``disagreements``."""
        return self.values.index_select(0, constant(_COUNTS, self.values.device, torch.int64)).to(torch.int64)


def count_effect(
    corrected: CorrectedBatch, *, advantages: torch.Tensor | None, applied: torch.Tensor | None
) -> RuleEffect:
    """Counts what a rule did, without a host sync.

    Args:
        corrected: the batch under the rule.
        advantages: float32 ``(B,)``, or None.
        applied: the weights that the loss really uses, or None.
    """
    valid, kept = corrected.valid, corrected.kept_mask
    invalid = ~valid
    by_row, weights = _sums_by_row(corrected, invalid)
    totals = by_row.sum(dim=1)
    ratios, modified = by_row[:2].to(torch.int64).unbind()
    none = constant((0.0,) * (_N_SIDES * len(by_row)), by_row.device, by_row.dtype)
    by_side = none if advantages is None else (by_row @ _sides(advantages)).view(-1)
    disagreements = none[:1] if applied is None else corrected.disagreements(applied).view(1)
    stage_counts, normalizer = _staged_counts(corrected, totals)
    return RuleEffect(
        extremes=extremes(torch.stack([weights, -weights]), invalid if kept is valid else ~kept),
        values=torch.cat([totals, by_side, disagreements]),
        normalizer=normalizer,
        stage_counts=stage_counts,
        ratios_by_row=ratios,
        modified_by_row=modified,
    )


def _sums_by_row(corrected: CorrectedBatch, invalid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of the columns ``_COLUMNS``, float64 ``(9, B)``, and the weights, float64 and 0 where not kept.

    Weights are those before normalisation: its divisor depends on the whole batch, which a part of it does not know.
    """
    masks = [corrected.valid, corrected.low, corrected.kept_mask, corrected.low, corrected.high]
    stacked = torch.stack([*masks, corrected.weights, corrected.weights, corrected.raw, corrected.raw])
    # A ratio may be infinite where a token is not valid, and infinity times 0 is NaN.
    columns = stacked.masked_fill_(invalid, 0.0).double()
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
