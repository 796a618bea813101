"""A sentence of a verdict, and how the numbers in it are read off a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ratioscope.runs.timeline import Curve, Timeline

Level = Literal["good", "note", "warning", "bad"]

APART = "ratioscope/log_ratio/abs_mean"
"""How far the engines are apart: mean absolute log-ratio of tokens, in nats."""


@dataclass(frozen=True)
class Line:
    """One sentence of a verdict.

    Attributes:
        level: how it bears on the run; what was not measured is never ``"good"``.
        text: the sentence, with numbers and steps.
        link: address within the page where more is said; empty if nowhere.
    """

    level: Level
    text: str
    link: str = ""


def curve(timeline: Timeline, key: str) -> Curve | None:
    """A statistic with at least one value, or None."""
    found = timeline.scalars.get(key)
    return found if found and found.values else None


def total(timeline: Timeline, name: str) -> int:
    """One of ``ratioscope/counts/`` over all windows."""
    found = curve(timeline, f"ratioscope/counts/{name}")
    return round(sum(found.values)) if found else 0


def rule(timeline: Timeline) -> Mapping[str, Any]:
    """The correction as the run config has it; empty if it says nothing."""
    found = timeline.config.get("correction")
    return found if isinstance(found, Mapping) else {}
