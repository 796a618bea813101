"""Statistics that stages decide on."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ratioscope.correction.stages import WEIGHT_LEVELS
from ratioscope.numerics import FLOAT32_MAX, halves, row_sum

if TYPE_CHECKING:
    import torch

    from ratioscope.batch.observation import Observation
    from ratioscope.correction.stages import Stage, Weight

_LEAST_PROBABILITY = 1e-12
"""Keeps the logarithms of both sides of a coin finite."""


class StageStatistics:
    """Statistics of one batch at every level, without a host sync.

    Args:
        observation: the batch.
        log_clamp: the log-ratio is clamped to plus or minus this before anything is computed of it, and a sequence's
            logarithm after it was summed; None for no clamp.
        clamp_tokens: whether a geometric mean is one of clamped tokens.
    """

    def __init__(self, observation: Observation, log_clamp: float | None, *, clamp_tokens: bool = False) -> None:
        self._observation = observation
        self._valid = observation.valid
        self._n = observation.n_valid.unsqueeze(-1).clamp(min=1)
        self._clamp = log_clamp
        self._by_token_clamp = clamp_tokens and log_clamp is not None

    def log_weight(self, weight: Weight) -> torch.Tensor:
        """Returns the logarithm of a rule's weight before the clamp: float32, ``(B, T)`` or ``(B, 1)``."""
        import torch  # slow to import, and reading a run needs none of it

        if weight == "one":
            return torch.zeros_like(self._observation.log_ratio)
        return self._log_ratio(WEIGHT_LEVELS[weight])

    def clamped_log_weight(self, weight: Weight) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the logarithm of a rule's weight after the clamp, and the valid tokens whose weight it changes."""
        if self._clamp is None:
            return self.log_weight(weight), self._valid & ~self._valid
        if weight != "geometric" or not self._by_token_clamp:
            log_weight = self.log_weight(weight)
            return self.clamped(log_weight), (log_weight.abs() > self._clamp) & self._valid
        beyond = ((self._observation.log_ratio.abs() > self._clamp) & self._valid).any(dim=-1, keepdim=True)
        return self._clamped_mean(), beyond & self._valid

    def clamped(self, log_ratio: torch.Tensor) -> torch.Tensor:
        """Returns logarithms after the safety clamp."""
        return log_ratio if self._clamp is None else log_ratio.clamp(-self._clamp, self._clamp)

    def outside(self, stage: Stage) -> tuple[torch.Tensor, torch.Tensor]:
        """Finds the valid tokens below and above a stage's bounds, whatever other stages do: bool ``(B, T)``.

        Raises:
            ValueError: if the stage decides by the advantage, and the batch has none.
        """
        import torch  # slow to import, and reading a run needs none of it

        values = self._values(stage)
        none = torch.zeros_like(values, dtype=torch.bool)
        low = none if stage.lower is None else values < stage.lower
        high = none if stage.upper is None else values > stage.upper
        if stage.level == "any":
            low, high = ((side & self._valid).any(dim=-1, keepdim=True) for side in (low, high))
            low = low & ~high  # a sequence with tokens on both sides counts as above
        acts = self._valid if stage.advantage == "both" else self._valid & self._acts(stage)
        return low & acts, high & acts

    def _log_ratio(self, level: str) -> torch.Tensor:
        """Returns the log-ratio at a level of the ratio, before the clamp: float32, ``(B, T)`` or ``(B, 1)``."""
        d = self._observation.log_ratio
        if level == "token":
            return d
        if level == "max":
            return self._row_max(d)
        if level == "segment":
            return self._by_segment(d.double())
        total = self._observation.row_log_ratio.unsqueeze(-1)
        return _float32(total / self._n if level == "geometric" else total)

    def _clamped_mean(self) -> torch.Tensor:
        """Returns each row's mean of clamped log-ratios: float32 ``(B, 1)``."""
        return _float32(row_sum(self.clamped(self._observation.log_ratio).double()).unsqueeze(-1) / self._n)

    def _values(self, stage: Stage) -> torch.Tensor:
        """Returns the statistic at the stage's level, float32; meaningless for a sequence without a valid token."""
        level = "token" if stage.level == "any" else stage.level
        if stage.statistic == "ratio" and level == "geometric" and self._by_token_clamp:
            return self._clamped_mean().exp()
        if stage.statistic == "ratio":
            return self.clamped(self._log_ratio(level)).exp()
        by_token = self._by_token(stage.statistic).clamp(-FLOAT32_MAX, FLOAT32_MAX)
        if level == "token":
            return by_token.float()
        if level == "max":
            return self._row_max(by_token.float())
        if level == "segment":
            return self._by_segment(by_token)
        total = row_sum(by_token).unsqueeze(-1)
        return (total / self._n if level == "mean" else total).float()

    def _by_token(self, statistic: str) -> torch.Tensor:
        """Returns a statistic other than the ratio: float64 ``(B, T)``, 0 where not valid."""
        # float64: k3 of nearly equal policies is a difference of nearly equal numbers. Each but the last is 0 where d
        # is, so it needs no mask.
        import torch  # slow to import, and reading a run needs none of it

        d = self.clamped(self._observation.log_ratio).double()
        if statistic in {"binary_kl", "probability_difference", "abs_probability_difference"}:
            return torch.where(self._valid, self._of_probabilities(statistic), 0.0)
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
        return torch.where(self._valid, d.abs().exp(), 0.0)

    def _of_probabilities(self, statistic: str) -> torch.Tensor:
        import torch  # slow to import, and reading a run needs none of it

        p, q = self._observation.train.double().exp(), self._observation.rollout.double().exp()
        if statistic != "binary_kl":
            return p - q if statistic == "probability_difference" else (p - q).abs()
        p, q = (side.clamp(_LEAST_PROBABILITY, 1.0 - _LEAST_PROBABILITY) for side in (p, q))
        heads, tails = p.log() - q.log(), (-p).log1p() - (-q).log1p()
        return torch.maximum(p * heads + (1.0 - p) * tails, -q * heads - (1.0 - q) * tails)

    def _row_max(self, values: torch.Tensor) -> torch.Tensor:
        # One more column, because amax refuses a batch without any.
        import torch  # slow to import, and reading a run needs none of it

        padded = torch.nn.functional.pad(torch.where(self._valid, values, -torch.inf), (0, 1), value=-torch.inf)
        return padded.amax(dim=-1, keepdim=True)

    @cached_property
    def _segments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Number of each token's run of masked-in tokens, int64 ``(B, T)``, and float64 valid tokens of that run."""
        import torch  # slow to import, and reading a run needs none of it

        masked_in = self._observation.masked_in
        starts = masked_in & ~torch.nn.functional.pad(masked_in[:, :-1], (1, 0))[:, : masked_in.shape[-1]]
        segment = starts.cumsum(dim=-1)
        return segment, _segment_sum(self._valid.double(), segment).clamp(min=1.0)

    def _by_segment(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the mean over each run of masked-in tokens, at each of its tokens: float32 ``(B, T)``."""
        segment, n = self._segments
        coarse, rest = halves(values)  # each sums exactly, so that the order of the scatter is immaterial
        return _float32((_segment_sum(coarse, segment) + _segment_sum(rest, segment)) / n)

    def _acts(self, stage: Stage) -> torch.Tensor:
        """Finds the tokens that a stage may act on by their advantage: bool ``(B, T)`` or ``(B, 1)``."""
        if self._observation.advantages is None:
            msg = f"got no advantages; expected one for each row, since a stage {stage.words()}"
            raise ValueError(msg)
        advantage = self._observation.advantages.unsqueeze(-1)
        if stage.advantage == "outward":
            return advantage * self._observation.log_ratio > 0
        return advantage > 0 if stage.advantage == "positive" else advantage < 0


def _segment_sum(values: torch.Tensor, segment: torch.Tensor) -> torch.Tensor:
    """Returns the sum over each segment, at each of its tokens."""
    width = segment.shape[-1] + 1
    return values.new_zeros(len(values), width).scatter_add_(1, segment, values).gather(1, segment)


def _float32(values: torch.Tensor) -> torch.Tensor:
    """Rounds to float32; what exceeds its range becomes its largest finite number, not an infinity."""
    return values.clamp(-FLOAT32_MAX, FLOAT32_MAX).float()
