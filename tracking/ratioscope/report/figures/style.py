"""Shared parts of all figures: style of each run, colours, axes, bound lines, and thinning of long lines."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.report.verdict.comparison import labels
from ratioscope.report.verdict.line import rule
from ratioscope.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ratioscope.runs.history import Series
    from ratioscope.runs.timeline import Timeline

COLORS = ("#1F83C4", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of Okabe and Ito, distinguishable with colour blindness; those visible on white and on black."""

BOUND = "#E5484D"
"""Colour of the correction's bounds."""

MAX_POINTS = 2000
"""Points of a line on a page at most."""

GRAY = "#8B949E"
DASHES = ("solid", "dot", "dash", "dashdot", "longdash")
_SHADES = (1.0, 0.62, 1.3)
_POINTS_OF_A_PAGE = 60_000
_LINES_OF_A_RUN = 27


@dataclass(frozen=True)
class RunStyle:
    """A run as figures draw it.

    Attributes:
        name: short, different from the names of the other runs.
        label: the name, escaped for a figure.
        color: colour of the run's lines where there are several runs.
        timeline: the run.
        level: ``"token"`` or ``"sequence"``: the level of its mode.
        corrected: whether its config names a correction.
        bounds: name and value of each bound, as in ``("upper", 2.0)``.
    """

    name: str
    label: str
    color: str
    timeline: Timeline
    level: str
    corrected: bool
    bounds: tuple[tuple[str, float], ...]

    def series(self, key: str) -> Series | None:
        """Returns the windows of a histogram with the newest edges, or None if there is none."""
        try:
            series = self.timeline.history.latest(key)
        except KeyError:
            return None
        return series if series.windows else None


@dataclass(frozen=True)
class Points:
    """Points of a statistic to draw: int64 ``steps``, float64 ``values``, and whether some were left out."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    thinned: bool


def run_styles(timelines: Sequence[Timeline]) -> list[RunStyle]:
    """Returns the style of each run, in the order of the runs."""
    names = labels(timelines)
    return [_run_style(timeline, name, n) for n, (timeline, name) in enumerate(zip(timelines, names, strict=True))]


def _run_style(timeline: Timeline, name: str, index: int) -> RunStyle:
    settings = rule(timeline)
    if not settings.get("enabled", True):
        settings = {}
    level = "sequence" if settings.get("level") == "sequence" else "token"
    values = {side: _bound(settings.get(side)) for side in ("lower", "upper")}
    bounds = tuple((side, value) for side, value in values.items() if value is not None)
    return RunStyle(name, in_figure(name), color_of(index), timeline, level, bool(settings), bounds)


def _bound(value: Any) -> float | None:
    """Returns a bound that excludes some ratio; a lower bound of 0 excludes none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)


def color_of(index: int) -> str:
    """Returns the colour of a run by its number; after six runs darker, then lighter shades follow."""
    base, shade = COLORS[index % len(COLORS)], _SHADES[index // len(COLORS) % len(_SHADES)]
    channels = (min(255, round(int(base[start : start + 2], 16) * shade)) for start in (1, 3, 5))
    return "#" + "".join(f"{channel:02X}" for channel in channels)


def faint(color: str, opacity: float) -> str:
    """Makes a colour transparent."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def in_figure(text: str, limit: int = 60) -> str:
    """Escapes text for a figure, because plotly interprets some tags and entities in every label."""
    return html.escape(plain(text, limit), quote=False)


def base_layout(**extra: Any) -> dict[str, Any]:
    """Returns the layout of a figure without a template; the page sets the colours of text, axes and background."""
    return {
        "template": None,
        "margin": {"l": 64, "r": 16, "t": 16, "b": 48},
        "hovermode": "x unified",
        "hoverlabel": {"namelength": -1},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        **extra,
    }


def step_axis(start: float, end: float) -> dict[str, Any]:
    """Returns the axis of the trainer's steps, with ticks at whole steps only."""
    extra = {"range": [start, end], **({"dtick": 1} if end - start < 8 else {})}
    return {"title": {"text": "step"}, "tickformat": ",d", "unifiedhovertitle": {"text": "step %{x:,d}"}, **extra}


def step_label(first: int, last: int) -> str:
    """Returns the steps of a window as a label."""
    return f"{last:,}" if first >= last else f"{first:,} to {last:,}"


def bound_line(name: str, value: float, x: list[float], y: list[float], *, position: str = "") -> dict[str, Any]:
    """Returns a dashed line for a bound, with its name at the second end.

    Args:
        name: ``"lower"`` or ``"upper"``.
        value: the bound, a ratio.
        x: both ends.
        y: both ends.
        position: plotly's ``textposition`` of the name; by default above an upper bound and below a lower one.
    """
    return {
        "type": "scatter",
        "mode": "lines+text",
        "x": x,
        "y": y,
        "text": ["", f"{name} {value:g}"],
        "textposition": position or ("bottom left" if name == "lower" else "top left"),
        "textfont": {"color": BOUND, "size": 11},
        "line": {"color": BOUND, "width": 1.6, "dash": "dash"},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def max_points(runs: Sequence[RunStyle]) -> int:
    """Returns the number of points that a line may have, so that a page of many runs stays small."""
    return min(MAX_POINTS, max(120, _POINTS_OF_A_PAGE // (_LINES_OF_A_RUN * max(1, len(runs)))))


def points(run: RunStyle, key: str, limit: int, *, positive: bool = False) -> Points | None:
    """Returns the finite values of a statistic with at most ``limit`` points, or None if it has none.

    Args:
        run: the run.
        key: full key.
        limit: most points.
        positive: whether only values above 0 count, as a logarithmic axis needs.
    """
    curve = run.timeline.scalars.get(key)
    if curve is None:
        return None
    steps, values = np.asarray(curve.steps, np.int64), np.asarray(curve.values, np.float64)
    usable = np.isfinite(values) & (values > 0) if positive else np.isfinite(values)
    steps, values = steps[usable], values[usable]
    if not len(values):
        return None
    kept = thin(values, limit)
    return Points(steps[kept], values[kept], len(kept) < len(values))


def thin(values: NDArray[np.float64], limit: int = MAX_POINTS) -> NDArray[np.intp]:
    """Selects the points of a line to keep: both ends, and the minimum and maximum of each of many even stretches.

    Args:
        values: float64 ``(n,)``, finite.
        limit: most points to keep, at least 4.

    Returns:
        Ascending indices; all ``n`` of them if ``n`` is at most the limit.
    """
    n = len(values)
    if n <= limit:
        return np.arange(n)
    edges = np.linspace(0, n, (limit - 2) // 2 + 1).astype(np.intp)  # two points a stretch, and the two ends
    kept = {0, n - 1}
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        stretch = values[start:end]
        kept.update((start + int(stretch.argmin()), start + int(stretch.argmax())))
    return np.array(sorted(kept), dtype=np.intp)


def spread(n: int, limit: int) -> list[int]:
    """Selects at most ``limit`` of the indices below ``n``, evenly spaced, with the first and the last."""
    return sorted(set(np.linspace(0, n - 1, min(n, limit)).round().astype(int).tolist()))
