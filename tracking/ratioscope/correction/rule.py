"""The rule: which importance ratios are kept, truncated or masked.

The short form is a level and an action; :meth:`Correction.of` makes a rule of stages. The short form's arithmetic
follows TRL's ``GRPOTrainer`` step by step in float32, so that on the same tensors the weights are
the same bits (``trl/trainer/grpo_trainer.py``, TRL 1.16).
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from ratioscope.correction.stages import MAX_STAGES, Stage, check_choice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Level = Literal["token", "sequence"]
"""What one ratio belongs to: a token, or a whole row (exp of the *sum* of its log-ratios)."""

Action = Literal["truncate", "mask", "stages"]
"""What happens to a ratio outside the bounds: it is clamped to the bound, or set to zero; or what the stages say."""

Weight = Literal["token", "sequence", "geometric", "segment", "one"]
"""What a general rule's weight of a token is before any stage: its ratio; the product of its row's ratios, their
geometric mean, that over its run of masked-in tokens; 1, where the stages only reject."""

_WEIGHT_WORDS = {
    "token": "are token ratios",
    "sequence": "are products of a row's ratios",
    "geometric": "are geometric means of a row's ratios",
    "segment": "are geometric means of a segment's ratios",
    "one": "are 1",
}

WEIGHT_LEVELS = {"token": "token", "sequence": "product", "geometric": "geometric", "segment": "segment"}
"""Level of the ratio that each weight is, by which a stage can truncate it."""


@dataclass(frozen=True)
class Correction:
    """Keeps the ratios in ``[lower, upper]`` and truncates or masks the others: the short form of a rule.

    Attributes:
        level: ``"token"`` or ``"sequence"``; ``"token"`` of a rule of stages, whose statistics are of tokens.
        action: ``"truncate"`` or ``"mask"``; ``"stages"`` of a rule that :meth:`of` made.
        lower: smallest ratio that is kept; None for no lower bound.
        upper: largest ratio that is kept; None for no upper bound.
        sources: for each field, the name of the setting it was read from, as in ``{"upper": "clip_max"}``.
        stages: the stages of a general rule; empty in the short form, as all that follows is as it stands.
        weight: a general rule's weight before any stage.
        log_clamp: logarithms are clamped to plus or minus this before they are exponentiated; None for no clamp.
        batch_normalize: whether weights are divided by their mean over the batch.
        name: a preset's name.

    Raises:
        ValueError: if a level or action is unknown, a bound is NaN, infinite or negative, the bounds are not in
            order, or ``"truncate"`` has no bound at all.
    """

    level: Level
    action: Action
    lower: float | None = None
    upper: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    _: KW_ONLY
    stages: tuple[Stage, ...] = ()
    weight: Weight = "token"
    log_clamp: float | None = None
    batch_normalize: bool = False
    name: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_choice("level", self.level, get_args(Level))
        check_choice("action", self.action, get_args(Action))
        if self.is_general:
            self._check_stages()
            return
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _checked_bound(name, getattr(self, name)))
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            msg = f"got lower={self.lower} and upper={self.upper}; expected lower < upper. Swap them or drop one."
            raise ValueError(msg)
        if self.action == "truncate" and self.lower is None and self.upper is None:
            msg = 'got action="truncate" without a bound, which changes nothing; give upper (TRL\'s default is 3.0), '
            msg += "lower or both, or pass correction=None to watch raw ratios only."
            raise ValueError(msg)

    @classmethod
    def of(
        cls,
        stages: Sequence[Stage],
        *,
        weight: Weight = "token",
        log_clamp: float | None = None,
        batch_normalize: bool = False,
        name: str | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> Correction:
        """The general form: a weight of each token, and the stages that it goes through in order.

        Every stage decides on the raw values of all valid tokens, whatever the stages before it did. Weights are
        float32 ``(B, T)``, and every statistic of them is of tokens.

        Args:
            stages: at most :data:`ratioscope.correction.stages.MAX_STAGES`; none at all leaves the weights as they are.
            weight: ``"token"``, ``"sequence"``, ``"geometric"``, ``"segment"`` or ``"one"``.
            log_clamp: logarithms are clamped to plus or minus this, in nats, before they are exponentiated.
            batch_normalize: divides the weights by their mean over the batch that is passed.
            name: what reports call it.
            sources: for each option of a preset, the name of the setting it was read from.

        Raises:
            ValueError: if there are too many stages, a stage truncates another ratio than the weight, or an argument
                is none of those named.
        """
        return cls(
            "token",
            "stages",
            sources={} if sources is None else sources,
            stages=tuple(stages),
            weight=weight,
            log_clamp=log_clamp,
            batch_normalize=batch_normalize,
            name=name,
        )

    @classmethod
    def preset(cls, name: str, **options: Any) -> Correction:
        """Another framework's rule, by its name and under that framework's own names of its options.

        Args:
            name: one of :meth:`presets`, such as ``"openrlhf/icepop"``.
            **options: the options that are not as the framework has them by default.

        Raises:
            ValueError: if the name or an option is unknown, a value is not one that the framework takes, or the rule
                cannot be expressed; it says why.
            TypeError: if a value is of a type that the framework refuses.
        """
        from ratioscope.correction.presets import make  # presets are made of this class

        return make(name, options)

    @staticmethod
    def presets() -> tuple[str, ...]:
        """Names of all presets, by framework."""
        from ratioscope.correction.presets import PRESETS

        return tuple(PRESETS)

    @property
    def is_general(self) -> bool:
        """Whether it is a rule of stages."""
        return self.action == "stages"

    @property
    def mode(self) -> str:
        """The name TRL gives this level and action, such as ``"token_truncate"``; a general rule's own name."""
        return self.name or "stages" if self.is_general else f"{self.level}_{self.action}"

    @property
    def drops(self) -> bool:
        """Whether a stage takes tokens out of the mask, so that the loss divides by fewer."""
        return any(stage.action == "drop" for stage in self.stages)

    def words(self) -> str:
        """What it does, in a line."""
        if not self.is_general:
            sides = (("lower", self.lower), ("upper", self.upper))
            return " ".join([self.mode, *(f"{name} {bound:g}" for name, bound in sides if bound is not None)])
        parts = [f"weights {_WEIGHT_WORDS[self.weight]}"]
        parts += [f"{stage.name} {stage.words()}" if stage.name else stage.words() for stage in self.stages]
        if self.log_clamp is not None:
            parts.append(f"logarithms end at {self.log_clamp:g} nats")
        if self.batch_normalize:
            parts.append("weights are divided by their mean over the batch")
        return "; ".join(parts)

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
        if level not in get_args(Level) or action not in {"truncate", "mask"}:
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
        """Fields as plain JSON; those of stages only where there are any."""
        short = {
            "level": self.level,
            "action": self.action,
            "lower": self.lower,
            "upper": self.upper,
            "sources": dict(self.sources),
        }
        if not self.is_general:
            return short
        return {
            **short,
            "stages": [stage.to_json() for stage in self.stages],
            "weight": self.weight,
            "log_clamp": self.log_clamp,
            "batch_normalize": self.batch_normalize,
            "name": self.name,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Correction:
        """Inverse of :meth:`to_json`."""
        return cls(**{**data, "stages": tuple(Stage.from_json(stage) for stage in data.get("stages", ()))})

    def _check_stages(self) -> None:
        check_choice("weight", self.weight, get_args(Weight))
        if self.level != "token" or self.lower is not None or self.upper is not None:
            msg = 'got a level or bounds beside action="stages"; expected them in its stages, see Correction.of'
            raise ValueError(msg)
        if len(self.stages) > MAX_STAGES:
            msg = f"got {len(self.stages)} stages; expected at most {MAX_STAGES}"
            raise ValueError(msg)
        if self.log_clamp is not None and not 0 < self.log_clamp < math.inf:
            msg = f"got log_clamp={self.log_clamp!r}; expected a number of nats above 0, or None for no clamp"
            raise ValueError(msg)
        own = WEIGHT_LEVELS.get(self.weight)
        for stage in self.stages:
            if stage.action == "truncate" and stage.level != own:
                msg = f"got a truncation at level {stage.level!r} of weight={self.weight!r}; "
                msg += "expected " + (f"level={own!r}" if own else "no truncation, since the weight is 1")
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
