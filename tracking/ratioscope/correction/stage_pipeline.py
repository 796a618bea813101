"""Application of a rule's stages to a batch, and the account of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from ratioscope.correction.stage_statistics import StageStatistics
from ratioscope.correction.stages import CLASSES, STAGE_COUNTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ratioscope.batch.observation import Observation
    from ratioscope.correction.stages import Stage, Weight

WEIGHT_SLACK = 1e-4
"""Relative difference up to which a trainer's weight is the rule's: float32 sums of long sequences differ by less."""


@dataclass(frozen=True)
class StagedBatch:
    """A batch after the stages, as :class:`ratioscope.correction.rule.CorrectedBatch` describes it; all ``(B, T)``.

    Attributes:
        observation: the batch.
        by_sequence: whether one weight is a sequence's, so that a mean of weights is one of sequences.
        batch_normalize: whether the loss divides weights by their mean over the batch.
        raw: float32, weights before any stage and any clamp.
        weights: float32, weights after the stages; 0 where a token is dropped. Not normalised.
        before_drop: float32, weights after the stages without dropping: normalisation takes their mean.
        kept_mask: bool, valid tokens that no stage dropped.
        classes: bool by name of ``stages.CLASSES``: each valid token is in exactly one.
        low: bool, modified tokens that only crossed lower bounds.
        high: bool, the other modified tokens.
        outside: by stage, bool, valid tokens below and above its bounds.
        clamped: bool, valid tokens whose weight's logarithm exceeds the safety clamp.
    """

    observation: Observation
    by_sequence: bool
    batch_normalize: bool
    raw: torch.Tensor
    weights: torch.Tensor
    before_drop: torch.Tensor
    kept_mask: torch.Tensor
    classes: dict[str, torch.Tensor]
    low: torch.Tensor
    high: torch.Tensor
    outside: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    clamped: torch.Tensor

    @property
    def valid(self) -> torch.Tensor:
        """Bool, valid tokens."""
        return self.observation.valid

    @property
    def log_weights(self) -> torch.Tensor:
        """Float32, natural logarithms of the weights; minus infinity where a weight is 0."""
        return self.weights.log()

    @property
    def positive_mask(self) -> torch.Tensor:
        """Bool, kept tokens of a weight above 0."""
        return self.kept_mask & (self.weights > 0)

    @cached_property
    def loss_weights(self) -> torch.Tensor:
        """Float32, the weights, divided by their mean over this batch where the rule normalises."""
        import torch  # slow to import, and reading a run needs none of it

        if self.normalizer is None:
            return self.weights
        total, n = self.normalizer
        mean = (total / n.clamp(min=1)).float()
        return torch.where(mean > 0, self.weights / mean, self.weights)

    @property
    def loss_mask(self) -> torch.Tensor:
        """Bool, kept tokens and those without a usable log-probability, whose weight is that of a ratio of 1."""
        return self.kept_mask | (self.observation.masked_in & ~self.valid)

    @cached_property
    def normalizer(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Float64 sum and int64 number of the weights whose mean the loss divides by; None without normalisation.

        Weights of tokens, or of sequences where the weight is a sequence's; dropped ones too, since a rejection leaves
        the weights alone.
        """
        import torch  # slow to import, and reading a run needs none of it

        if not self.batch_normalize:
            return None
        weights = torch.where(self.valid, self.before_drop.double(), 0.0)
        if not self.by_sequence:
            return weights.sum(), self.valid.sum()
        n = self.observation.n_valid
        return (weights.sum(dim=-1) / n.clamp(min=1)).sum(), (n > 0).sum()

    @property
    def stage_counts(self) -> torch.Tensor:
        """Int64, one for each of ``stages.STAGE_COUNTS``."""
        import torch  # slow to import, and reading a run needs none of it

        counts: list[torch.Tensor] = []
        for low, high in self.outside:
            counts += [low.sum(), high.sum(), low.any(dim=-1).sum(), high.any(dim=-1).sum()]
        nothing = torch.zeros_like(self.clamped.sum())
        counts += [nothing] * (len(STAGE_COUNTS) - len(CLASSES) - 2 - len(counts))
        counts += [self.clamped.sum(), self.clamped.any(dim=-1).sum()]
        counts += [self.classes[name].sum() for name in CLASSES]
        return torch.stack(counts)

    def disagreements(self, applied: torch.Tensor) -> torch.Tensor:
        """Counts weights of kept tokens that differ from the rule's by more than rounding; all if the shape differs."""
        expected = self.loss_weights
        if applied.shape != expected.shape and applied.shape != (len(expected), 1):
            return self.valid.sum()
        off = (applied.detach().float() - expected).abs() > WEIGHT_SLACK * expected
        return (self.kept_mask & (off | (applied.isfinite() != expected.isfinite()))).sum()


class _Effects(NamedTuple):
    """Weights after some of the stages, and what these did to each token; bool ``(B, T)`` but for the weights."""

    weights: torch.Tensor
    zeroed: torch.Tensor
    dropped: torch.Tensor
    vetoed: torch.Tensor
    cut_low: torch.Tensor
    cut_high: torch.Tensor

    def after(self, stage: Stage, low: torch.Tensor, high: torch.Tensor) -> _Effects:
        """Returns the effects with those of one more stage, which finds tokens below and above its bounds."""
        import torch  # slow to import, and reading a run needs none of it

        hit = low | high
        if stage.action == "truncate":
            # A weight of 0 that is raised to a lower bound is 0 no more.
            lifted = self.zeroed if stage.lower else torch.zeros_like(self.zeroed)
            return self._replace(
                weights=self.weights.clamp(min=stage.lower, max=stage.upper),
                zeroed=self.zeroed & ~lifted,
                cut_low=self.cut_low | low | lifted,
                cut_high=self.cut_high | high,
            )
        vetoed = self.vetoed | hit if stage.level == "any" else self.vetoed
        if stage.action == "drop":
            return self._replace(dropped=self.dropped | hit, vetoed=vetoed)
        return self._replace(weights=self.weights.masked_fill(hit, 0.0), zeroed=self.zeroed | hit, vetoed=vetoed)

    def classes(self, valid: torch.Tensor, clamped: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the members of each of ``stages.CLASSES``; a token of several is in the first that is listed here."""
        members = {
            "vetoed": self.vetoed & (self.dropped | self.zeroed),
            "dropped": self.dropped,
            "zeroed": self.zeroed,
            "truncated_high": self.cut_high,
            "truncated_low": self.cut_low,
            "clamped": clamped,
        }
        remaining, classes = valid, {}
        for name, tokens in members.items():
            classes[name] = remaining & tokens
            remaining = remaining & ~tokens
        return {**classes, "kept": remaining}


def apply_stages(
    observation: Observation,
    stages: Sequence[Stage],
    *,
    weight: Weight,
    log_clamp: float | None,
    clamp_tokens: bool,
    batch_normalize: bool,
) -> StagedBatch:
    """Sends a batch through stages, without a host sync.

    Every stage decides on the raw values of all valid tokens, so no stage hides what a later one finds; their actions
    follow one another. A token without a usable log-probability has a log-ratio of 0 and is in no sequence's statistic.

    Args:
        observation: the batch.
        stages: the stages in order.
        weight: the weight that they act on.
        log_clamp: the safety clamp of logarithms, in nats; None for no clamp.
        clamp_tokens: whether a geometric mean is one of clamped tokens.
        batch_normalize: whether the loss divides weights by their mean over the batch.

    Raises:
        ValueError: if a stage decides by the advantage, and the batch has none.
    """
    statistics, valid = StageStatistics(observation, log_clamp, clamp_tokens=clamp_tokens), observation.valid
    nowhere = valid & ~valid
    log_weight = statistics.log_weight(weight)
    clamped_log_weight, clamped = statistics.clamped_log_weight(weight)
    outside = tuple(statistics.outside(stage) for stage in stages)
    effects = _Effects(clamped_log_weight.exp().expand(valid.shape), *(nowhere,) * 5)
    for stage, (low, high) in zip(stages, outside, strict=True):
        effects = effects.after(stage, low, high)
    from_above = reduce(or_, (high for _, high in outside), clamped & (log_weight > clamped_log_weight))
    classes = effects.classes(valid, clamped)
    modified = valid & ~classes["kept"]
    return StagedBatch(
        observation=observation,
        by_sequence=weight in {"sequence", "geometric"},
        batch_normalize=batch_normalize,
        raw=log_weight.exp().expand(valid.shape),
        weights=effects.weights.masked_fill(effects.dropped, 0.0),
        before_drop=effects.weights,
        kept_mask=valid & ~effects.dropped,
        classes=classes,
        low=modified & ~from_above,
        high=modified & from_above,
        outside=outside,
        clamped=clamped,
    )
