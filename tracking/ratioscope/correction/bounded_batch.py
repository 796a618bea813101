"""Bounds of ratios, and the account of what they did to one batch.

The arithmetic follows TRL's ``GRPOTrainer`` step by step in float32, so that on the same tensors the weights are the
same bits (``trl/trainer/grpo_trainer.py``, TRL 1.16).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from ratioscope.correction.checks import check_choice, checked_bound

if TYPE_CHECKING:
    import torch

    from ratioscope.batch.observation import Observation

Level = Literal["token", "sequence"]
"""Level of one ratio: a token, or a whole sequence (exp of the *sum* of its log-ratios)."""

Action = Literal["truncate", "mask"]
"""Action on a ratio outside the bounds: clamp it to the bound, or set it to zero."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of ratios at one level; :class:`ratioscope.Correction` documents the fields and their errors."""

    level: Level
    action: Action
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        check_choice("level", self.level, get_args(Level))
        if self.action not in get_args(Action) and str(self.action) == "stages":
            msg = "got action='stages'; expected 'truncate' or 'mask'. Correction.of makes a rule of stages."
            raise ValueError(msg)
        check_choice("action", self.action, get_args(Action))
        for name in ("lower", "upper"):
            expected = "a finite ratio >= 0, or None for an open side"
            object.__setattr__(self, name, checked_bound(name, getattr(self, name), least=0.0, expected=expected))
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            msg = f"got lower={self.lower} and upper={self.upper}; expected lower < upper. Swap them or drop one."
            raise ValueError(msg)
        if self.action == "truncate" and self.lower is None and self.upper is None:
            msg = 'got action="truncate" without a bound, which changes nothing; give upper (TRL\'s default is 3.0), '
            msg += "lower or both, or pass correction=None to watch raw ratios only."
            raise ValueError(msg)

    @property
    def mode(self) -> str:
        """Name that TRL gives this level and action, such as ``"token_truncate"``."""
        return f"{self.level}_{self.action}"

    @property
    def log_bounds(self) -> tuple[float | None, float | None]:
        """Natural logarithms of ``lower`` and ``upper``; minus infinity for a bound of 0."""
        bounds = (self.lower, self.upper)
        low, high = (None if bound is None else math.log(bound) if bound > 0 else -math.inf for bound in bounds)
        return low, high

    def raw_ratio(self, log_ratio: torch.Tensor) -> torch.Tensor:
        """Returns ratios before the rule.

        Args:
            log_ratio: float32 ``(B, T)`` in nats, exactly 0 at positions without a usable token.

        Returns:
            float32 ``(B, T)`` at the token level, ``(B, 1)`` at the sequence level.
        """
        if self.level == "sequence":
            log_ratio = log_ratio.sum(dim=-1, keepdim=True)
        return log_ratio.exp()

    def outside(self, ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Finds raw ratios below ``lower`` and above ``upper``: two bool tensors of the ratio's shape.

        The comparison is strict and made in float32: a ratio equal to a bound is kept.
        """
        import torch  # slow to import, and reading a run needs none of it

        none = torch.zeros_like(ratio, dtype=torch.bool)
        low = none if self.lower is None else ratio < self.lower
        high = none if self.upper is None else ratio > self.upper
        return low, high

    def apply(self, ratio: torch.Tensor) -> torch.Tensor:
        """Returns weights after the rule, of the ratio's shape."""
        if self.action == "truncate":
            return ratio.clamp(min=self.lower, max=self.upper)
        low, high = self.outside(ratio)
        return ratio.masked_fill(low | high, 0.0)


@dataclass(frozen=True)
class BoundedBatch:
    """A batch under bounds, as :class:`ratioscope.correction.rule.CorrectedBatch` describes it.

    Every tensor is computed when first asked for: a loss needs only the weights, a kernel may have counted the rest.

    Attributes:
        bounds: the bounds.
        observation: the batch.
    """

    bounds: Bounds
    observation: Observation

    # Members that only stages have.
    normalizer: ClassVar[None] = None
    stage_counts: ClassVar[None] = None

    @cached_property
    def valid(self) -> torch.Tensor:
        """Bool, valid tokens, or sequences with at least one."""
        if self.bounds.level == "token":
            return self.observation.valid
        return (self.observation.n_valid > 0).unsqueeze(-1)

    @cached_property
    def raw(self) -> torch.Tensor:
        """Float32 ratios before the rule."""
        return self.bounds.raw_ratio(self.observation.log_ratio)

    @cached_property
    def weights(self) -> torch.Tensor:
        """Float32 ratios after the rule."""
        return self.bounds.apply(self.raw)

    @cached_property
    def _outside(self) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = self.bounds.outside(self.raw)
        # A side without a bound has nothing outside, valid or not.
        return (
            low if self.bounds.lower is None else low & self.valid,
            high if self.bounds.upper is None else high & self.valid,
        )

    @property
    def low(self) -> torch.Tensor:
        """Bool, valid ratios below the lower bound."""
        return self._outside[0]

    @property
    def high(self) -> torch.Tensor:
        """Bool, valid ratios above the upper bound."""
        return self._outside[1]

    @property
    def kept_mask(self) -> torch.Tensor:
        """Bool, all valid ratios: bounds drop none."""
        return self.valid

    @property
    def positive_mask(self) -> torch.Tensor:
        """Bool, valid ratios that are not masked."""
        return self.valid & ~(self.low | self.high) if self.bounds.action == "mask" else self.valid

    @property
    def log_weights(self) -> torch.Tensor:
        """Float32, clamped log-ratios: exact where the float32 ratio overflows or vanishes."""
        log_ratio = self.observation.log_ratio
        if self.bounds.level == "sequence":
            # The exactly rounded sum, so that histograms do not depend on how a batch is padded or split. The weights
            # themselves are exp of the plain float32 sum, which has TRL's bits.
            log_ratio = self.observation.sequence_log_ratio.unsqueeze(-1)
        if self.bounds.action == "mask":
            return log_ratio
        lower, upper = self.bounds.log_bounds
        return log_ratio.clamp(min=lower, max=upper)

    @cached_property
    def loss_weights(self) -> torch.Tensor:
        """Float32, weights of TRL's correction step, to the bit."""
        if self.observation.has_step_log_ratio:
            return self.weights
        return self.bounds.apply(self.bounds.raw_ratio(self.observation.step_log_ratio))

    @property
    def loss_mask(self) -> torch.Tensor:
        """Bool ``(B, T)``, the mask as given."""
        return self.observation.masked_in

    def disagreements(self, applied: torch.Tensor) -> torch.Tensor:
        """Counts valid ratios whose applied weight is not the rule's to the bit; all of them if the shape differs.

        NaN on both sides is no disagreement.
        """
        expected = self.loss_weights
        if applied.shape != expected.shape:
            return self.valid.sum()
        applied = applied.detach()
        differ = expected != applied
        if self.bounds.level == "sequence":
            # Opposite infinities of two tokens add to NaN on both sides. A valid token's weight is never NaN.
            differ = differ & ~(expected.isnan() & applied.isnan())
        return (differ & self.valid).sum()
