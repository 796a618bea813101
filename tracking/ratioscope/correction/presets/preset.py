"""What a preset is, and how its options are read."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ratioscope.correction.bounds import Correction
from ratioscope.correction.rule import Rule
from ratioscope.correction.stages import Stage, StageAction, StageLevel

Build = Callable[..., Rule]
"""Makes a rule from options by keyword; an option without a default must be given."""


@dataclass(frozen=True)
class Preset:
    """Another framework's rule.

    Attributes:
        name: ``framework/rule``.
        source: the file of that framework that it was read from, in July and August 2026.
        build: makes the rule; its keyword arguments are the framework's options, with its defaults.
        note: what to know of it; empty where there is nothing.
        example: options for the tables of the documentation, where some have no default.
    """

    name: str
    source: str
    build: Build
    note: str = ""
    example: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """Default of each option; ``inspect.Parameter.empty`` where it must be given."""
        return {name: option.default for name, option in inspect.signature(self.build).parameters.items()}

    def make(self, given: Mapping[str, Any]) -> Rule:
        """The rule under the options given.

        Raises:
            ValueError: if an option is unknown or missing, or a value is none that the framework takes.
            TypeError: if a value is of a type that the framework refuses.
        """
        known = self.options
        for name in given:
            if name not in known:
                msg = f"got option {name!r} of preset {self.name!r}; expected {_listed(known)}{near(name, known)}"
                raise ValueError(msg)
        missing = [name for name, default in known.items() if default is inspect.Parameter.empty and name not in given]
        if missing:
            msg = f"got preset {self.name!r} without {_listed(missing)}; {self.name.partition('/')[0]} has no default"
            raise ValueError(msg)
        return self.build(**given).with_sources(self.name, {name: f"{self.name}: {name}" for name in given})


@dataclass(frozen=True)
class Refusal:
    """A rule of another framework that no stages express.

    Attributes:
        name: ``framework/rule``.
        reason: why not.
    """

    name: str
    reason: str


def near(name: str, known: Mapping[str, Any]) -> str:
    """A hint at the nearest known name; empty if none is near."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f". Did you mean {found[0]!r}?" if found else ""


def rejecting(statistic: str, level: str, action: StageAction, lower: float | None, upper: float | None) -> list[Stage]:
    """One stage, or none where both sides are open."""
    if lower is None and upper is None:
        return []
    return [Stage(statistic, level, action, lower, upper)]  # type: ignore[arg-type]


def ratio_stage(
    level: StageLevel, action: StageAction, lower: float | None, upper: float | None, *, name: str | None = None
) -> Stage:
    """A stage of the ratio."""
    return Stage("ratio", level, action, lower, upper, name=name)


def only(build: Build, fixed: Mapping[str, Any], *options: str) -> Build:
    """A build with some options set, and only those named left."""

    def made(**given: Any) -> Rule:
        return build(**{**fixed, **given})

    own = inspect.signature(build)
    made.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[own.parameters[name] for name in options]
    )
    return made


def opsm(threshold: float) -> Rule:
    """Off-policy sequence masking: a row of negative advantage with a mean of -l above the threshold weighs nothing."""
    return Correction.of([Stage("k1", "mean", "zero", upper=threshold, advantage="negative")], weight="one")


def pair(name: str, value: Any) -> tuple[float, float]:
    """Two numbers, in order.

    Raises:
        ValueError: if it is anything else.
    """
    numbers = [] if isinstance(value, str) else list(value)
    if len(numbers) != 2 or not all(isinstance(one, int | float) for one in numbers):
        msg = f"got {name}={value!r}; expected two numbers"
        raise ValueError(msg)
    return float(numbers[0]), float(numbers[1])


def positive(name: str, value: Any) -> float:
    """A finite number above 0.

    Raises:
        ValueError: if it is anything else.
    """
    number = float(value)
    if not 0.0 < number < math.inf:
        msg = f"got {name}={value!r}; expected a number above 0"
        raise ValueError(msg)
    return number


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"
