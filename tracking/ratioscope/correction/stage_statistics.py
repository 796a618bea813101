"""The statistics that stages decide on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ratioscope.numerics import FLOAT32_MAX, halves, row_sum

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation
    from ratioscope.correction.stages import Stage

_LEAST_PROBABILITY = 1e-12
"""Keeps the logarithms of a coin's two sides finite."""


class Values:
    """The statistics of one batch, without a host sync.

    Args:
        observation: the batch.
        log_clamp: the log-ratio is clamped to plus or minus this before anything is computed of it, and a row's
            logarithm after it was summed; None for no clamp.
    """

    def __init__(self, observation: Observation, log_clamp: float | None) -> None:
        self._observation = observation
        self.valid = observation.valid
        self.n = self.valid.sum(dim=-1, keepdim=True)
        self._clamp = log_clamp
        self._of_segment: tuple[torch.Tensor, torch.Tensor] | None = None

    def source(self, level: str) -> torch.Tensor:
        """Log-ratio at a level of the ratio, before the clamp: float32, ``(B, T)`` or ``(B, 1)``."""
        d = self._observation.log_ratio
        if level == "token":
            return d
        if level == "max":
            return self._row_max(d)
        if level == "segment":
            return self._by_segment(d.double())
        total = row_sum(d.double()).unsqueeze(-1)
        if level == "geometric":
            total = total / self.n.clamp(min=1)
        return total.clamp(-FLOAT32_MAX, FLOAT32_MAX).float()

    def clamped(self, log_ratio: torch.Tensor) -> torch.Tensor:
        """After the safety clamp."""
        return log_ratio if self._clamp is None else log_ratio.clamp(-self._clamp, self._clamp)

    def outside(self, stage: Stage) -> tuple[torch.Tensor, torch.Tensor]:
        """Which valid tokens a stage finds below and above its bounds, whatever other stages do: bool ``(B, T)``."""
        values = self._values(stage)
        none = torch.zeros_like(values, dtype=torch.bool)
        low = none if stage.lower is None else values < stage.lower
        high = none if stage.upper is None else values > stage.upper
        if stage.level == "any":
            low, high = ((side & self.valid).any(dim=-1, keepdim=True) for side in (low, high))
            low = low & ~high  # a row is on one side
        acts = self.valid & self._acts(stage)
        return low & acts, high & acts

    def _values(self, stage: Stage) -> torch.Tensor:
        """The statistic at the stage's level, float32; meaningless for a row without a valid token."""
        level = "token" if stage.level == "any" else stage.level
        if stage.statistic == "ratio":
            return self.clamped(self.source(level)).exp()
        of_token = self._of_token(stage.statistic).clamp(-FLOAT32_MAX, FLOAT32_MAX)
        if level == "token":
            return of_token.float()
        if level == "max":
            return self._row_max(of_token.float())
        if level == "segment":
            return self._by_segment(of_token)
        total = row_sum(of_token).unsqueeze(-1)
        return (total / self.n.clamp(min=1) if level == "mean" else total).float()

    def _of_token(self, statistic: str) -> torch.Tensor:
        """A statistic other than the ratio, float64 ``(B, T)``, 0 where not valid."""
        d = self.clamped(self._observation.log_ratio).double()
        if statistic in {"binary_kl", "probability_difference", "abs_probability_difference"}:
            return torch.where(self.valid, self._of_probabilities(statistic), 0.0)
        if statistic == "k1":
            return -d
        if statistic == "k2":
            return 0.5 * d.square()
        if statistic == "k3":
            return d.expm1() - d
        if statistic == "reversed_k3":
            return (-d).expm1() + d
        if statistic == "total_variation":
            return d.expm1().abs()
        if statistic == "squared_gap":
            return d.square()
        return torch.where(self.valid, d.abs().exp(), 0.0)

    def _of_probabilities(self, statistic: str) -> torch.Tensor:
        p, q = self._observation.train.double().exp(), self._observation.rollout.double().exp()
        if statistic != "binary_kl":
            return p - q if statistic == "probability_difference" else (p - q).abs()
        p, q = (side.clamp(_LEAST_PROBABILITY, 1.0 - _LEAST_PROBABILITY) for side in (p, q))
        heads, tails = p.log() - q.log(), (-p).log1p() - (-q).log1p()
        return torch.maximum(p * heads + (1.0 - p) * tails, -q * heads - (1.0 - q) * tails)

    def _row_max(self, values: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(torch.where(self.valid, values, -torch.inf), (0, 1), value=-torch.inf)
        return padded.amax(dim=-1, keepdim=True)

    def _by_segment(self, values: torch.Tensor) -> torch.Tensor:
        """Mean over each run of masked-in tokens, at each of its tokens: float32 ``(B, T)``."""
        if self._of_segment is None:
            masked_in = self._observation.masked_in
            begins = masked_in & ~torch.nn.functional.pad(masked_in[:, :-1], (1, 0))[:, : masked_in.shape[-1]]
            segment = begins.cumsum(dim=-1)
            self._of_segment = segment, self._added(self.valid.double(), segment).clamp(min=1.0)
        segment, n = self._of_segment
        coarse, rest = halves(values)
        total = self._added(coarse, segment) + self._added(rest, segment)
        return (total / n).clamp(-FLOAT32_MAX, FLOAT32_MAX).float()

    @staticmethod
    def _added(values: torch.Tensor, segment: torch.Tensor) -> torch.Tensor:
        width = segment.shape[-1] + 1
        return values.new_zeros(len(values), width).scatter_add_(1, segment, values).gather(1, segment)

    def _acts(self, stage: Stage) -> torch.Tensor:
        if stage.advantage == "both":
            return torch.ones((), dtype=torch.bool, device=self.valid.device)
        if self._observation.advantages is None:
            msg = f"got no advantages; expected one for each row, since a stage {stage.words()}"
            raise ValueError(msg)
        advantage = self._observation.advantages.unsqueeze(-1)
        if stage.advantage == "outward":
            return advantage * self._observation.log_ratio > 0
        return advantage > 0 if stage.advantage == "positive" else advantage < 0
