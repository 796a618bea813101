"""Presets: the rules of other frameworks, by name and under their own options' names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.correction.presets import clipped, divergences, filters, trl, verl
from ratioscope.correction.presets.preset import Preset, Refusal, near
from ratioscope.correction.presets.refused import REFUSED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.correction.rule import Rule

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in sorted(
        (*trl.presets(), *verl.presets(), *clipped.presets(), *filters.presets(), *divergences.presets()),
        key=lambda preset: preset.name.partition("/")[0],
    )
}
"""Every preset by name, by framework."""

__all__ = ["PRESETS", "REFUSED", "Preset", "Refusal", "make"]


def make(name: str, options: Mapping[str, Any]) -> Rule:
    """A preset's rule.

    Raises:
        ValueError: if the name or an option is unknown, a value is not one that the framework takes, or the rule
            cannot be expressed; it says why.
        TypeError: if a value is of a type that the framework refuses.
    """
    if name in PRESETS:
        return PRESETS[name].make(options)
    refused = {refusal.name: refusal for refusal in REFUSED}
    if name in refused:
        msg = f"got preset {name!r}, which stages cannot express: {refused[name].reason}"
        raise ValueError(msg)
    framework = name.partition("/")[0]
    own = [known for known in PRESETS if known.partition("/")[0] == framework]
    msg = f"got preset {name!r}; expected one of Correction.presets()"
    if own:
        msg = f"got preset {name!r}; expected one of {', '.join(own)}"
    raise ValueError(f"{msg}{near(name, PRESETS)}")
