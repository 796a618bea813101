"""What every figure shares: a run as figures see it, its colour, and how text and axes are written."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratioscope.report.figures.thinning import MAX_POINTS
from ratioscope.report.verdict.comparison import labels
from ratioscope.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.runs.timeline import Timeline

COLORS = ("#1F83C4", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, which the colour-blind tell apart, those that are seen on white and on black."""

BOUND = "#E5484D"
"""Colour of the correction's bounds."""

GRAY = "#8B949E"
DASHES = ("solid", "dot", "dash", "dashdot", "longdash")
_SHADES = (1.0, 0.62, 1.3)
_POINTS_OF_A_PAGE = 60_000
_LINES_OF_A_RUN = 27


@dataclass(frozen=True)
class Run:
    """A run as figures see it.

    Attributes:
        name: short, unlike the other runs'.
        label: the same, safe inside a figure.
        color: of its lines where there are several runs.
        timeline: the run.
        level: ``"token"`` or ``"sequence"``: the level of its mode.
        corrected: whether its config names a correction.
        bounds: name and value of each bound that there is, ``("upper", 2.0)``.
    """

    name: str
    label: str
    color: str
    timeline: Timeline
    level: str
    corrected: bool
    bounds: tuple[tuple[str, float], ...]


def runs_of(timelines: Sequence[Timeline]) -> list[Run]:
    """The runs in their order."""
    names = labels(timelines)
    return [_run(timeline, name, index) for index, (timeline, name) in enumerate(zip(timelines, names, strict=True))]


def points_of(runs: Sequence[Run]) -> int:
    """Points that a line has at most, so that a page of many runs stays small."""
    return min(MAX_POINTS, max(120, _POINTS_OF_A_PAGE // (_LINES_OF_A_RUN * max(1, len(runs)))))


def color_of(index: int) -> str:
    """Colour of a run by its number; after six of them come darker, then lighter ones."""
    base, shade = COLORS[index % len(COLORS)], _SHADES[index // len(COLORS) % len(_SHADES)]
    channels = (min(255, round(int(base[at : at + 2], 16) * shade)) for at in (1, 3, 5))
    return "#" + "".join(f"{channel:02X}" for channel in channels)


def faint(color: str, opacity: float) -> str:
    """The same colour, see-through."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def in_figure(text: str, limit: int = 60) -> str:
    """Any text as a figure shows it: plotly reads some tags and entities in every label, and these are none."""
    return html.escape(plain(text, limit), quote=False)


def base_layout(**extra: Any) -> dict[str, Any]:
    """Layout of a figure without a template; colours of text, axes and background are the page's to choose."""
    return {
        "template": None,
        "margin": {"l": 64, "r": 16, "t": 16, "b": 48},
        "hovermode": "x unified",
        "hoverlabel": {"namelength": -1},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        **extra,
    }


def step_axis(start: float, end: float) -> dict[str, Any]:
    """The axis of the trainer's steps, which are whole."""
    extra = {"range": [start, end], **({"dtick": 1} if end - start < 8 else {})}
    return {"title": {"text": "step"}, "tickformat": ",d", "unifiedhovertitle": {"text": "step %{x:,d}"}, **extra}


def label_of(first: int, last: int) -> str:
    """A window's steps."""
    return f"{last:,}" if first >= last else f"{first:,} to {last:,}"


def _run(timeline: Timeline, name: str, index: int) -> Run:
    rule = timeline.config.get("correction")
    rule = rule if isinstance(rule, Mapping) and rule.get("enabled", True) else {}
    level = "sequence" if rule.get("level") == "sequence" else "token"
    values = {side: _positive(rule.get(side)) for side in ("lower", "upper")}
    bounds = tuple((side, value) for side, value in values.items() if value is not None)
    return Run(name, in_figure(name), color_of(index), timeline, level, bool(rule), bounds)


def _positive(value: Any) -> float | None:
    """A bound that bounds something: a lower one of 0 keeps every ratio."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)
