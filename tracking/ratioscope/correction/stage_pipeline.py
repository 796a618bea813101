"""What the stages of a general rule do to a batch, and the account of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ratioscope.correction.rule import WEIGHT_LEVELS
from ratioscope.correction.stage_statistics import Values
from ratioscope.correction.stages import CLASSES, STAGE_COUNTS

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation
    from ratioscope.correction.rule import Correction

WEIGHT_SLACK = 1e-4
"""Relative difference up to which a trainer's weight is a general rule's: float32 sums of long rows differ by less."""


@dataclass(frozen=True)
class Passed:
    """A batch after the stages. All are ``(B, T)``.

    Attributes:
        raw: float32, the weights before any stage and any clamp.
        weights: float32, after them; 0 where a token is dropped. Not normalised.
        before_drop: float32, the same but for what is dropped: what a mean weight is taken of to normalise.
        kept: bool, valid tokens that the loss still divides by.
        classes: by name of ``stages.CLASSES``, which valid tokens are in it: bool; each token is in exactly one.
        low: bool, modified tokens that are in no stage's way but from below.
        high: bool, the other modified tokens.
        stages: by stage, which valid tokens it finds below and above its bounds.
        clamped: bool, valid tokens whose weight's logarithm exceeds the safety clamp.
    """

    raw: torch.Tensor
    weights: torch.Tensor
    before_drop: torch.Tensor
    kept: torch.Tensor
    classes: dict[str, torch.Tensor]
    low: torch.Tensor
    high: torch.Tensor
    stages: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    clamped: torch.Tensor

    @property
    def modified(self) -> torch.Tensor:
        """Which valid tokens are not as they were: bool ``(B, T)``."""
        return self.low | self.high

    def counts(self) -> torch.Tensor:
        """Int64 as ``stages.STAGE_COUNTS``."""
        found: list[torch.Tensor] = []
        for low, high in self.stages:
            found += [low.sum(), high.sum(), low.any(dim=-1).sum(), high.any(dim=-1).sum()]
        nothing = torch.zeros_like(self.clamped.sum())
        found += [nothing] * (len(STAGE_COUNTS) - len(CLASSES) - 2 - len(found))
        found += [self.clamped.sum(), self.clamped.any(dim=-1).sum()]
        found += [self.classes[name].sum() for name in CLASSES]
        return torch.stack(found)


def through(observation: Observation, rule: Correction) -> Passed:
    """Sends a batch through a rule's stages, without a host sync.

    Every stage decides on the raw values of all valid tokens, so no stage hides what a later one finds; their actions
    follow one another. A token without a usable log-probability has a log-ratio of 0 and is in no row's statistic.

    Args:
        observation: the batch.
        rule: one with stages.

    Raises:
        ValueError: if a stage goes by the advantage, and the batch has none.
    """
    values = Values(observation, rule.log_clamp)
    valid = values.valid
    nowhere = torch.zeros_like(valid)
    if rule.weight == "one":
        source = torch.zeros_like(observation.log_ratio)
        clamped = nowhere
    else:
        source = values.source(WEIGHT_LEVELS[rule.weight])
        beyond = nowhere if rule.log_clamp is None else source.abs() > rule.log_clamp
        clamped = beyond & valid
    weights = values.clamped(source).exp().expand(valid.shape)
    raw = source.exp().expand(valid.shape)
    found = tuple(values.outside(stage) for stage in rule.stages)
    zeroed = dropped = vetoed = cut_low = cut_high = from_above = nowhere
    for stage, (low, high) in zip(rule.stages, found, strict=True):
        hit = low | high
        from_above = from_above | high
        if stage.action == "truncate":
            weights = weights.clamp(min=stage.lower, max=stage.upper)
            lifted = zeroed if stage.lower else nowhere  # a weight of 0 that is raised to the bound is 0 no more
            cut_low, cut_high, zeroed = cut_low | low | lifted, cut_high | high, zeroed & ~lifted
            continue
        vetoed = vetoed | hit if stage.level == "any" else vetoed
        if stage.action == "drop":
            dropped = dropped | hit
        else:
            weights = weights.masked_fill(hit, 0.0)
            zeroed = zeroed | hit
    kept = valid & ~dropped
    rest, classes = valid, {}
    by_class = {
        "vetoed": vetoed & (dropped | zeroed),
        "dropped": dropped,
        "zeroed": zeroed,
        "truncated_high": cut_high,
        "truncated_low": cut_low,
        "clamped": clamped,
    }
    for name, members in by_class.items():
        classes[name] = rest & members
        rest = rest & ~members
    classes["kept"] = rest
    modified = valid & ~rest
    high = modified & (from_above | (clamped & (source > 0)))
    return Passed(
        raw=raw,
        weights=weights.masked_fill(dropped, 0.0),
        before_drop=weights,
        kept=kept,
        classes=classes,
        low=modified & ~high,
        high=high,
        stages=found,
        clamped=clamped,
    )


def normalizer(passed: Passed, rule: Correction, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of the weights that a mean is taken of to normalise, float64, and how many they are, int64.

    Tokens, or rows where the weight is of rows; dropped ones too, since a rejection leaves the weights alone.
    """
    if rule.weight in {"sequence", "geometric"}:
        live = valid.any(dim=-1)
        n = valid.sum(dim=-1).clamp(min=1)
        of_row = torch.where(valid, passed.before_drop.double(), 0.0).sum(dim=-1) / n
        return of_row.sum(), live.sum()
    return torch.where(valid, passed.before_drop.double(), 0.0).sum(), valid.sum()


def normalized(passed: Passed, rule: Correction, valid: torch.Tensor) -> torch.Tensor:
    """The weights that the loss uses: divided by their mean over this batch where the rule says so."""
    if not rule.batch_normalize:
        return passed.weights
    total, n = normalizer(passed, rule, valid)
    mean = (total / n.clamp(min=1)).float()
    return torch.where(mean > 0, passed.weights / mean, passed.weights)


def disagreements(
    observation: Observation, passed: Passed, correction: Correction, applied: torch.Tensor
) -> torch.Tensor:
    """How many weights of kept tokens are not the rule's, but for what frameworks add up differently: int64."""
    expected = normalized(passed, correction, observation.valid)
    if applied.shape != expected.shape and applied.shape != (len(expected), 1):
        return observation.valid.sum()
    off = (applied.detach().float() - expected).abs() > WEIGHT_SLACK * expected
    return (passed.kept & (off | (applied.isfinite() != expected.isfinite()))).sum()
