"""The rule: which importance ratios are kept, truncated or masked.

The arithmetic follows TRL's ``GRPOTrainer`` step by step in float32, so that on the same tensors the weights are
the same bits (``trl/trainer/grpo_trainer.py``, TRL 1.16).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.layouts import Packing

Level = Literal["token", "sequence"]
"""What one ratio belongs to: a token, or a whole row (exp of the *sum* of its log-ratios)."""

Action = Literal["truncate", "mask"]
"""What happens to a ratio outside the bounds: it is clamped to the bound, or set to zero."""


@dataclass(frozen=True)
class Correction:
    """Keeps the ratios in ``[lower, upper]`` and truncates or masks the others.

    Attributes:
        level: ``"token"`` or ``"sequence"``.
        action: ``"truncate"`` or ``"mask"``.
        lower: smallest ratio that is kept; None for no lower bound.
        upper: largest ratio that is kept; None for no upper bound.
        sources: for each field, the name of the setting it was read from, as in ``{"upper": "clip_max"}``.

    Raises:
        ValueError: if a level or action is unknown, a bound is NaN, infinite or negative, the bounds are not in
            order, or ``"truncate"`` has no bound at all.
    """

    level: Level
    action: Action
    lower: float | None = None
    upper: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _check_choice("level", self.level, get_args(Level))
        _check_choice("action", self.action, get_args(Action))
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _checked_bound(name, getattr(self, name)))
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            msg = f"got lower={self.lower} and upper={self.upper}; expected lower < upper. Swap them or drop one."
            raise ValueError(msg)
        if self.action == "truncate" and self.lower is None and self.upper is None:
            msg = 'got action="truncate" without a bound, which changes nothing; give upper (TRL\'s default is 3.0), '
            msg += "lower or both, or pass correction=None to watch raw ratios only."
            raise ValueError(msg)

    @property
    def mode(self) -> str:
        """The name TRL gives this level and action, such as ``"token_truncate"``."""
        return f"{self.level}_{self.action}"

    @property
    def log_bounds(self) -> tuple[float | None, float | None]:
        """Natural logarithms of ``lower`` and ``upper``; minus infinity for a bound of 0."""
        bounds = (self.lower, self.upper)
        low, high = (None if bound is None else math.log(bound) if bound > 0 else -math.inf for bound in bounds)
        return low, high

    @classmethod
    def from_trl(cls, args: Any) -> Correction | None:
        """Reads the rule from a TRL config, or from anything that has the same attributes.

        ``vllm_importance_sampling_cap`` is TRL's deprecated name for ``vllm_importance_sampling_clip_max``; where
        both are present the old one wins, as it does in TRL.

        Args:
            args: a ``trl.GRPOConfig`` or an object with its ``vllm_importance_sampling_*`` attributes.

        Returns:
            The rule, or None if ``vllm_importance_sampling_correction`` is off.

        Raises:
            ValueError: if the mode is not one of TRL's four, or a bound is invalid.
        """
        prefix = "vllm_importance_sampling_"
        if not getattr(args, f"{prefix}correction", True):
            return None
        mode = str(getattr(args, f"{prefix}mode", "sequence_mask"))
        level, _, action = mode.partition("_")
        if level not in get_args(Level) or action not in get_args(Action):
            msg = f"got {prefix}mode={mode!r}; expected token_truncate, token_mask, sequence_truncate or sequence_mask"
            raise ValueError(msg)
        upper_source = f"{prefix}clip_max"
        if getattr(args, f"{prefix}cap", None) is not None:
            upper_source = f"{prefix}cap"
        sources = {
            "level": f"{prefix}mode",
            "action": f"{prefix}mode",
            "lower": f"{prefix}clip_min",
            "upper": upper_source,
        }
        return cls(
            level=level,  # type: ignore[arg-type]  # narrowed by the check above
            action=action,  # type: ignore[arg-type]
            lower=getattr(args, sources["lower"], None),
            upper=getattr(args, upper_source, None),
            sources=sources,
        )

    def raw_ratio(self, log_ratio: torch.Tensor) -> torch.Tensor:
        """Ratios before the rule.

        Args:
            log_ratio: float32 ``(B, T)`` in nats, exactly 0 at positions without a usable token.

        Returns:
            float32 ``(B, T)`` at the token level, ``(B, 1)`` at the sequence level.
        """
        if self.level == "sequence":
            log_ratio = log_ratio.sum(dim=-1, keepdim=True)
        return log_ratio.exp()

    def outside(self, ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which raw ratios are below ``lower`` and which above ``upper``: two bool tensors of the ratio's shape.

        The comparison is strict and made in float32: a ratio equal to a bound is kept.
        """
        none = torch.zeros_like(ratio, dtype=torch.bool)
        low = none if self.lower is None else ratio < self.lower
        high = none if self.upper is None else ratio > self.upper
        return low, high

    def apply(self, ratio: torch.Tensor) -> torch.Tensor:
        """Weights after the rule, of the ratio's shape."""
        if self.action == "truncate":
            return ratio.clamp(min=self.lower, max=self.upper)
        low, high = self.outside(ratio)
        return ratio.masked_fill(low | high, 0.0)

    def to_json(self) -> dict[str, Any]:
        """Fields as plain JSON."""
        return {
            "level": self.level,
            "action": self.action,
            "lower": self.lower,
            "upper": self.upper,
            "sources": dict(self.sources),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Correction:
        """Inverse of :meth:`to_json`."""
        return cls(**data)


def correct(
    train_logps: torch.Tensor,
    rollout_logps: torch.Tensor,
    mask: torch.Tensor,
    *,
    correction: Correction,
    packing: Packing | None = None,
) -> torch.Tensor:
    """Importance weights of the rollout's tokens under the trainer's policy: the correction step itself.

    Bit-identical to TRL's on the same tensors. In particular a token whose log-probability is NaN has a zero
    log-ratio, so its weight is that of a ratio of exactly 1.

    Args:
        train_logps: ``(B, T)`` log-probabilities of the sampled tokens under the trainer.
        rollout_logps: ``(B, T)`` the same under the engine that sampled them.
        mask: ``(B, T)`` bool or 0/1: completion tokens that the policy sampled (tool results excluded).
        correction: the rule.
        packing: where the rows lie, for ``(N,)`` tensors.

    Returns:
        float32 weights, detached: ``(B, T)`` at the token level, ``(B, 1)`` at the sequence level; with a packing
        always ``(N,)``, one for each token, 1 outside of all rows.

    Raises:
        ValueError: if the shapes differ or are not two-dimensional.
        TypeError: if the log-probabilities are not floating-point tensors.
    """
    from ratioscope.layouts import padded
    from ratioscope.observation import check_batch, step_log_ratio

    packed = train_logps
    if packing is not None:
        train_logps, rollout_logps, mask = padded(
            packing, train_logps=train_logps, rollout_logps=rollout_logps, mask=mask
        )
    check_batch(train_logps, rollout_logps, mask)
    with torch.no_grad():
        log_ratio = step_log_ratio(train_logps.detach().float(), rollout_logps.detach().float(), mask)
        weights = correction.apply(correction.raw_ratio(log_ratio))
    return weights if packing is None else packing.unpad(weights, total=len(packed))


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        msg = f"got {name}={value!r}; expected one of {', '.join(map(repr, choices))}"
        raise ValueError(msg)


def _checked_bound(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        msg = f"got {name}={value!r}; expected a finite ratio >= 0, or None for an open side"
        raise ValueError(msg)
    return number
