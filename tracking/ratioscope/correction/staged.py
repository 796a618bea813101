"""Rule of stages: a weight of each token, and the stages that it goes through in order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from ratioscope.correction.checks import check_choice
from ratioscope.correction.stage_pipeline import apply_stages
from ratioscope.correction.stages import MAX_STAGES, WEIGHT_LEVELS, Stage, Weight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.batch.observation import Observation
    from ratioscope.correction.stage_pipeline import StagedBatch

_WEIGHT_WORDS = {
    "token": "are token ratios",
    "sequence": "are products of a row's ratios",
    "geometric": "are geometric means of a row's ratios",
    "segment": "are geometric means of a segment's ratios",
    "one": "are 1",
}

# Stored beside the stages since the first version of the journal.
_FIXED_JSON = {"level": "token", "action": "stages", "lower": None, "upper": None}


@dataclass(frozen=True)
class StagedCorrection:
    """Rule of stages; ``Correction.of`` makes one.

    Attributes:
        stages: the stages in order.
        weight: weight of a token before any stage, as in :data:`Weight`.
        log_clamp: logarithms are clamped to plus or minus this, in nats, before they are exponentiated; None for no
            clamp.
        clamp_tokens: whether the clamp reaches tokens before their geometric mean is taken, and not the mean.
        batch_normalize: whether weights are divided by their mean over the batch.
        name: a preset's name, or the user's; not compared.
        sources: for each option of a preset, the name of the setting it was read from; not compared.

    Raises:
        ValueError: if there are too many stages, a stage truncates another ratio than the weight, the weight is
            unknown, or the clamp is no finite number above 0.
    """

    stages: tuple[Stage, ...]
    weight: Weight = "token"
    log_clamp: float | None = None
    batch_normalize: bool = False
    name: str | None = field(default=None, compare=False)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    clamp_tokens: bool = False

    # A sequence's weight counts once for each of its tokens; stages decide on more than the ratios of one level.
    level: ClassVar[Literal["token"]] = "token"
    bounds: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_choice("weight", self.weight, get_args(Weight))
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

    @property
    def mode(self) -> str:
        """The rule's name; ``"stages"`` without one."""
        return self.name or "stages"

    @property
    def drops(self) -> bool:
        """True if a stage takes tokens out of the mask, so that the loss divides by fewer."""
        return any(stage.action == "drop" for stage in self.stages)

    def correct(self, observation: Observation) -> StagedBatch:
        """Sends a batch through the stages, without a host sync.

        Raises:
            ValueError: if a stage decides by the advantage, and the batch has none.
        """
        return apply_stages(observation, self.stages, **self._options())

    def words(self) -> str:
        """Describes the rule in one line."""
        parts = [f"weights {_WEIGHT_WORDS[self.weight]}"]
        parts += [f"{stage.name} {stage.words()}" if stage.name else stage.words() for stage in self.stages]
        if self.log_clamp is not None:
            whose = "tokens' logarithms" if self.clamp_tokens else "logarithms"
            parts.append(f"{whose} end at {self.log_clamp:g} nats")
        if self.batch_normalize:
            parts.append("weights are divided by their mean over the batch")
        return "; ".join(parts)

    def with_sources(self, name: str, sources: Mapping[str, str]) -> Self:
        """Returns the rule under a preset's name, with the settings that its options were read from."""
        return replace(self, name=name, sources=sources)

    def to_json(self) -> dict[str, Any]:
        """Returns all fields as plain JSON; ``Correction.from_json`` is the inverse."""
        stages = [stage.to_json() for stage in self.stages]
        return {**_FIXED_JSON, "sources": dict(self.sources), **self._options(), "stages": stages, "name": self.name}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads what :meth:`to_json` wrote."""
        fields = {name: value for name, value in data.items() if name not in _FIXED_JSON}
        return cls(**{**fields, "stages": tuple(Stage.from_json(stage) for stage in data["stages"])})

    def to_config(self) -> dict[str, Any]:
        """Returns the settings as a run's config shows them."""
        fields = {name: value for name, value in self.to_json().items() if name != "name"}
        return {"mode": self.mode, **fields, "words": self.words()}

    def _options(self) -> dict[str, Any]:
        return {
            "weight": self.weight,
            "log_clamp": self.log_clamp,
            "clamp_tokens": self.clamp_tokens,
            "batch_normalize": self.batch_normalize,
        }
