"""Verdict sentences as values, and access to the numbers that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ratioscope.runs.timeline import Curve, Timeline

Tone = Literal["good", "note", "warning", "bad"]

MISMATCH = "ratioscope/log_ratio/abs_mean"
"""Key of the mean absolute log-ratio of tokens, in nats: the size of the mismatch between the engines."""


@dataclass(frozen=True)
class Line:
    """One sentence of a verdict.

    Attributes:
        level: tone of the sentence; never ``"good"`` for anything that was not measured.
        text: the sentence, with numbers and steps.
        link: address within the page of further details; empty for none.
    """

    level: Tone
    text: str
    link: str = ""


def curve(timeline: Timeline, key: str) -> Curve | None:
    """Returns a statistic that has at least one value, or None."""
    curve = timeline.scalars.get(key)
    return curve if curve and curve.values else None


def total(timeline: Timeline, name: str) -> int:
    """Sums ``ratioscope/counts/{name}`` over all windows; 0 if it was never counted."""
    counts = curve(timeline, f"ratioscope/counts/{name}")
    return round(sum(counts.values)) if counts else 0


def rule(timeline: Timeline) -> Mapping[str, Any]:
    """Returns the correction as the run config stores it; empty if the config has none."""
    correction = timeline.config.get("correction")
    return correction if isinstance(correction, Mapping) else {}
