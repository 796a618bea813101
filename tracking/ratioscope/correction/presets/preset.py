"""Presets and their options, with the stages that several frameworks share."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ratioscope.correction.checks import listed, near
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage, StageAction, StageLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratioscope.correction.rule import Rule

LEVELS: dict[str, StageLevel] = {"token": "token", "sequence": "product", "geometric": "geometric"}
"""Level of a ratio by the name that several frameworks give it."""


@dataclass(frozen=True)
class Preset:
    """Another framework's rule, made from options by that framework's names.

    Attributes:
        name: ``framework/rule``.
        source: the file of that framework that it was read from, in July and August 2026.
        build: makes the rule; its keyword arguments are the framework's options, with its defaults; one without a
            default must be given. A partial function sets some of them itself.
        note: a remark for the documentation; may be empty.
        example: options for the tables of the documentation, where some have no default.
        names: the options it has; empty for all of ``build``.
    """

    name: str
    source: str
    build: Callable[..., Rule]
    note: str = ""
    example: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Default of each option; ``inspect.Parameter.empty`` where it must be given."""
        parameters = inspect.signature(self.build).parameters
        return {name: parameters[name].default for name in self.names or parameters}

    def make(self, given: Mapping[str, Any]) -> Rule:
        """Makes the rule with the options given.

        Raises:
            ValueError: if an option is unknown or missing, or a value is none that the framework takes.
            TypeError: if a value is of a type that the framework refuses.
        """
        known = self.options
        for name in given:
            if name not in known:
                hint = near(name, list(known))
                msg = f"got option {name!r} of preset {self.name!r}; expected {listed(list(known)) or 'none'}{hint}"
                raise ValueError(msg)
        missing = [name for name, default in known.items() if default is inspect.Parameter.empty and name not in given]
        if missing:
            msg = f"got preset {self.name!r} without {listed(missing)}; {self.name.partition('/')[0]} has no default"
            raise ValueError(msg)
        sources = {name: f"{self.name}: {name}" for name in given}
        return self.build(**given).with_sources(self.name, sources)


class Refusal(NamedTuple):
    """A rule of another framework that no stages express.

    Attributes:
        name: ``framework/rule``.
        reason: the reason, as the error gives it.
    """

    name: str
    reason: str


def rejecting(
    statistic: str, level: str, action: StageAction, lower: float | None, upper: float | None
) -> tuple[Stage, ...]:
    """Returns one stage in a tuple; an empty tuple where both sides are open."""
    if lower is None and upper is None:
        return ()
    return (Stage(statistic, level, action, lower, upper),)  # type: ignore[arg-type]  # the stage checks both


def opsm(threshold: float) -> StagedCorrection:
    """Makes off-policy sequence masking: zeroes sequences of negative advantage with a mean of -l above it."""
    return StagedCorrection((Stage("k1", "mean", "zero", upper=threshold, advantage="negative"),), "one")


def pair(name: str, value: Any) -> tuple[float, float]:
    """Returns two numbers, in order; raises ValueError for anything else."""
    numbers = [] if isinstance(value, str) else list(value)
    if len(numbers) != 2 or not all(isinstance(number, int | float) for number in numbers):
        msg = f"got {name}={value!r}; expected two numbers"
        raise ValueError(msg)
    return float(numbers[0]), float(numbers[1])


def positive(name: str, value: Any) -> float:
    """Returns a finite number above 0; raises ValueError for anything else."""
    number = float(value)
    if not 0.0 < number < math.inf:
        msg = f"got {name}={value!r}; expected a number above 0"
        raise ValueError(msg)
    return number
