"""Rule by bounds, and the ways to make a rule of either kind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, get_args

from ratioscope.correction.bounded_batch import Action, BoundedBatch, Bounds, Level
from ratioscope.correction.staged import StagedCorrection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratioscope.batch.observation import Observation
    from ratioscope.correction.stages import Stage, Weight

MODES = tuple(f"{level}_{action}" for level in get_args(Level) for action in get_args(Action))
"""TRL's names of every level with every action."""


@dataclass(frozen=True)
class Correction(Bounds):
    """Rule that keeps the ratios in ``[lower, upper]``, and truncates or masks the others.

    :meth:`of` makes a rule of stages, :meth:`preset` another framework's rule, and :meth:`from_trl` that of a config.

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

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @staticmethod
    def of(
        stages: Sequence[Stage],
        *,
        weight: Weight = "token",
        log_clamp: float | None = None,
        batch_normalize: bool = False,
        name: str | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> StagedCorrection:
        """Makes a rule of stages, through which the weight of each token goes in order.

        Every stage decides on the raw values of all valid tokens, whatever the stages before it did. Weights are
        float32 ``(B, T)``, and every statistic of them is of tokens.

        Args:
            stages: at most :data:`ratioscope.correction.stages.MAX_STAGES`; none at all leaves the weights as they are.
            weight: ``"token"``, ``"sequence"``, ``"geometric"``, ``"segment"`` or ``"one"``.
            log_clamp: logarithms are clamped to plus or minus this, in nats, before they are exponentiated.
            batch_normalize: divides the weights by their mean over the batch that is passed.
            name: name of the rule in reports.
            sources: for each option of a preset, the name of the setting it was read from.

        Raises:
            ValueError: if there are too many stages, a stage truncates another ratio than the weight, or an argument
                is none of those named.
        """
        given = {} if sources is None else sources
        return StagedCorrection(tuple(stages), weight, log_clamp, batch_normalize, name, given)

    @staticmethod
    def preset(name: str, **options: Any) -> Correction | StagedCorrection:
        """Makes another framework's rule, by its name and under that framework's own names of its options.

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
        """Returns the names of all presets, by framework."""
        from ratioscope.correction.presets import PRESETS

        return tuple(PRESETS)

    @classmethod
    def from_trl(cls, args: Any) -> Self | None:
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
        if mode not in MODES:
            msg = f"got {prefix}mode={mode!r}; expected {', '.join(MODES[:-1])} or {MODES[-1]}"
            raise ValueError(msg)
        lower, upper = f"{prefix}clip_min", f"{prefix}clip_max"
        if getattr(args, f"{prefix}cap", None) is not None:
            upper = f"{prefix}cap"
        sources = {"level": f"{prefix}mode", "action": f"{prefix}mode", "lower": lower, "upper": upper}
        return cls.from_mode(mode, getattr(args, lower, None), getattr(args, upper, None), sources=sources)

    @classmethod
    def from_mode(
        cls, mode: str, lower: float | None, upper: float | None, *, sources: Mapping[str, str] | None = None
    ) -> Self:
        """Makes a rule of one of :data:`MODES`."""
        level, _, action = mode.partition("_")
        return cls(level, action, lower, upper, sources or {})  # type: ignore[arg-type]  # both are checked

    @property
    def bounds(self) -> Correction:
        """The rule itself."""
        return self

    @property
    def stages(self) -> tuple[Stage, ...]:
        """No stages."""
        return ()

    @property
    def batch_normalize(self) -> bool:
        """False: bounds do not normalise."""
        return False

    @property
    def drops(self) -> bool:
        """False: a masked token stays in the mask with weight 0."""
        return False

    def correct(self, observation: Observation) -> BoundedBatch:
        """Applies the bounds to a batch, without a host sync."""
        return BoundedBatch(self, observation)

    def words(self) -> str:
        """Describes the rule in one line."""
        sides = (("lower", self.lower), ("upper", self.upper))
        return " ".join([self.mode, *(f"{name} {bound:g}" for name, bound in sides if bound is not None)])

    def with_sources(self, name: str, sources: Mapping[str, str]) -> Self:
        """Returns the rule with the settings that its fields were read from; its name stays TRL's."""
        del name
        return replace(self, sources=sources)

    def to_json(self) -> dict[str, Any]:
        """Returns all fields as plain JSON."""
        return {**vars(self), "sources": dict(self.sources)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Correction | StagedCorrection:
        """Reads what :meth:`to_json` wrote, of either kind of rule."""
        if data["action"] == "stages":
            return StagedCorrection.from_json(data)
        return Correction(**data)

    def to_config(self) -> dict[str, Any]:
        """Returns the settings as a run's config shows them."""
        return {"mode": self.mode, **self.to_json()}
