"""Account of what bounds did to one batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from ratioscope.batch.observation import Observation
    from ratioscope.correction.bounds import Correction


@dataclass(frozen=True)
class BoundedBatch:
    """A batch under bounds, as :class:`ratioscope.correction.rule.CorrectedBatch` describes it.

    Every tensor is computed when first asked for: a loss needs only the weights, a kernel may have counted the rest.

    Attributes:
        rule: the bounds.
        observation: the batch.
    """

    rule: Correction
    observation: Observation

    @cached_property
    def valid(self) -> torch.Tensor:
        """Bool, valid tokens, or sequences with at least one."""
        if self.rule.level == "token":
            return self.observation.valid
        return (self.observation.n_valid > 0).unsqueeze(-1)

    @cached_property
    def raw(self) -> torch.Tensor:
        """Float32 ratios before the rule."""
        return self.rule.raw_ratio(self.observation.log_ratio)

    @cached_property
    def weights(self) -> torch.Tensor:
        """Float32 ratios after the rule."""
        return self.rule.apply(self.raw)

    @cached_property
    def _outside(self) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = self.rule.outside(self.raw)
        return low & self.valid, high & self.valid

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
        return self.valid & ~(self.low | self.high) if self.rule.action == "mask" else self.valid

    @property
    def log_weights(self) -> torch.Tensor:
        """Float32, clamped log-ratios: exact where the float32 ratio overflows or vanishes."""
        log_ratio = self.observation.log_ratio
        if self.rule.level == "sequence":
            # The exactly rounded sum, so that histograms do not depend on how a batch is padded or split. The weights
            # themselves are exp of the plain float32 sum, which has TRL's bits.
            log_ratio = self.observation.sequence_log_ratio.unsqueeze(-1)
        if self.rule.action == "mask":
            return log_ratio
        lower, upper = self.rule.log_bounds
        return log_ratio.clamp(min=lower, max=upper)

    @cached_property
    def loss_weights(self) -> torch.Tensor:
        """Float32, weights of TRL's correction step, to the bit."""
        if self.observation.has_step_log_ratio:
            return self.weights
        return self.rule.apply(self.rule.raw_ratio(self.observation.step_log_ratio))

    @property
    def loss_mask(self) -> torch.Tensor:
        """Bool ``(B, T)``, the mask as given."""
        return self.observation.masked_in

    @property
    def normalizer(self) -> None:
        """None: bounds do not normalise."""

    @property
    def stage_counts(self) -> None:
        """None: bounds are no stages."""

    def disagreements(self, applied: torch.Tensor) -> torch.Tensor:
        """Counts valid ratios whose applied weight is not the rule's to the bit; all of them if the shape differs."""
        expected = self.loss_weights
        if applied.shape != expected.shape:
            return self.valid.sum()
        return ((expected != applied.detach()) & self.valid).sum()
