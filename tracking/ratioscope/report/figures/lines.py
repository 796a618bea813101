"""Figures of statistics over the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ratioscope.metrics.catalogue import keys
from ratioscope.report.figures.panel import Absent, Panel, link_of
from ratioscope.report.figures.style import (
    COLORS,
    DASHES,
    base_layout,
    bound_line,
    faint,
    max_points,
    points,
    step_axis,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratioscope.report.figures.style import Points, RunStyle

FEW = 40
"""Most points of a line that is drawn with markers."""

_DASH_NAMES = {"solid": "Solid", "dot": "Dotted", "dash": "Dashed", "dashdot": "Dash-dotted", "longdash": "Long-dashed"}


@dataclass(frozen=True)
class Stat:
    """A statistic of a figure.

    Attributes:
        key: its full key; ``{level}`` stands for the level of a run's mode.
        label: in the legend and on hover.
        color: colour for a single run; several runs have their own colours.
        dash: dash for a single run.
        several: dash for several runs.
        width: width of the line.
        fill: opacity of the area up to the statistic before this one, for a single run; 0 for none.
        instead: key to use where a run lacks the first.
        alone: whether only a single run displays it.
        evaluated: whether evaluations are drawn too.
    """

    key: str
    label: str
    color: str = COLORS[0]
    dash: str = "solid"
    several: str = "solid"
    width: float = 1.6
    fill: float = 0.0
    instead: str = ""
    alone: bool = False
    evaluated: bool = True

    def key_in(self, run: RunStyle) -> str:
        """Returns the key of the statistic in a run."""
        key = self.key.format(level=run.level)
        scalars = run.timeline.scalars
        return key if key in scalars or f"eval/{key}" in scalars or not self.instead else self.instead


@dataclass(frozen=True)
class Chart:
    """A figure of statistics.

    Attributes:
        key: key of the panel.
        title: title of the panel.
        sentence: sentence of the panel.
        stats: statistics, in the order of legend and hover.
        unit: title of the vertical axis.
        form: d3-format of numbers on hover.
        axis: further settings of the vertical axis.
        log: whether the vertical axis is logarithmic; values that are not above 0 are left out then.
        bounded: whether the correction's bounds are drawn.
    """

    key: str
    title: str
    sentence: str
    stats: tuple[Stat, ...]
    unit: str
    form: str = ".4~g"
    axis: tuple[tuple[str, Any], ...] = ()
    log: bool = False
    bounded: bool = False


class _Line(NamedTuple):
    """A statistic of one run, of training or of evaluations, with its points."""

    run: RunStyle
    stat: Stat
    key: str
    points: Points

    @property
    def evaluation(self) -> bool:
        return self.key.startswith("eval/")


def line_panel(chart: Chart, runs: Sequence[RunStyle]) -> Panel | Absent:
    """Draws statistics over the steps, of one run or of several runs in the same axes."""
    import plotly.graph_objects as go

    several, limit = len(runs) > 1, max_points(runs)
    lines = list(_lines(chart, runs, limit))
    if not lines:
        return Absent(chart.key, chart.title, _reason(chart, runs))
    traces = [_trace(line, chart, several=several) for line in lines]
    steps = np.concatenate([line.points.steps for line in lines])
    span = [float(steps.min()), float(steps.max())]
    # Markers at the ends need some space; a single step has no width of its own.
    marked = any("markers" in trace["mode"] for trace in traces)
    margin = 1.0 if span[0] == span[1] else 0.02 * (span[1] - span[0]) * marked
    _shorten_legend(traces)
    if chart.bounded:
        traces += _bounds(runs, span)
    axis = {"title": {"text": chart.unit}, **dict(chart.axis)}
    if chart.log:
        axis |= {"type": "log", "tickformat": "~g", "nticks": 6}
    steps_axis = step_axis(span[0] - margin, span[1] + margin)
    layout = base_layout(xaxis=steps_axis, yaxis=axis, hovermode="x unified" if len(runs) <= 6 else "closest")
    sentence = f"{chart.sentence} {_legend(chart, {line.stat for line in lines}) if several else ''}".strip()
    thinned = any(line.points.thinned for line in lines)
    note = f"Thinned to at most {limit:,} points a line; every stretch keeps its extremes." if thinned else ""
    metrics = tuple(dict.fromkeys(stat.key_in(run) for stat in chart.stats for run in runs))
    return Panel(chart.key, chart.title, sentence, link_of(chart.key), go.Figure(traces, layout), metrics, note)


def _lines(chart: Chart, runs: Sequence[RunStyle], limit: int) -> Iterator[_Line]:
    """Yields the lines that have a point, run by run."""
    for run in runs:
        for stat in chart.stats:
            if stat.alone and len(runs) > 1:
                continue
            key = stat.key_in(run)
            for full in (key, f"eval/{key}") if stat.evaluated else (key,):
                if (thinned := points(run, full, limit, positive=chart.log)) is not None:
                    yield _Line(run, stat, full, thinned)


def _trace(line: _Line, chart: Chart, *, several: bool) -> dict[str, Any]:
    run, stat, evaluation, steps = line.run, line.stat, line.evaluation, line.points.steps
    label = f"{stat.label}, evaluation" if evaluation else stat.label
    color = run.color if several else stat.color
    hover = f"{label}: %{{y:{chart.form}}}" if several or evaluation else f"%{{y:{chart.form}}}"
    if several:
        # A run's name is any text. Only plotly may insert it, or the name could be read as part of the template.
        hover = f"%{{fullData.name}}, {hover}"
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if evaluation or len(steps) <= FEW else "lines",
        "x": steps.astype(np.int32) if steps.max() < 2**31 else steps,  # half the size in the page
        "y": line.points.values,
        "name": run.label if several else "evaluation" if evaluation else label,
        "line": {"color": color, "width": stat.width, "dash": stat.several if several else stat.dash},
        "marker": {"size": 4.5, "color": color},
        "legendgroup": run.label if several else "evaluation" if evaluation else line.key,
        "hovertemplate": f"{hover}<extra></extra>" if several or evaluation else hover,
        "meta": {"key": line.key},
    }
    if evaluation:
        trace["line"] = {"color": color, "width": 1, "dash": "dot"}
        trace["marker"] = {"size": 8, "color": color, "symbol": "diamond-open", "line": {"width": 1.5}}
    elif stat.fill and not several:
        trace |= {"fill": "tonexty", "fillcolor": faint(stat.color, stat.fill)}
    return trace


def _bounds(runs: Sequence[RunStyle], span: list[float]) -> list[dict[str, Any]]:
    """Draws each bound; every second bound of a side has its name at the other end, to avoid overlaps."""
    lines: list[dict[str, Any]] = []
    names: list[str] = []
    for name, value in dict.fromkeys(bound for run in runs for bound in run.bounds):
        left = names.count(name) % 2 == 1
        position = f"{'bottom' if name == 'lower' else 'top'} {'right' if left else 'left'}"
        lines.append(bound_line(name, value, span[::-1] if left else span, [value, value], position=position))
        names.append(name)
    return lines


def _shorten_legend(traces: Sequence[dict[str, Any]]) -> None:
    """Keeps one legend entry for each group: a run, a statistic, or all evaluations."""
    entries: dict[str, dict[str, Any]] = {}
    for trace in traces:
        trace["showlegend"] = False
        group = trace["legendgroup"]
        # A solid line represents a run better than a dotted one.
        if group not in entries or (entries[group]["line"]["dash"], trace["line"]["dash"]) == ("dot", "solid"):
            entries[group] = trace
    for trace in entries.values():
        trace["showlegend"] = True


def _legend(chart: Chart, drawn: set[Stat]) -> str:
    """Explains the dashes, where the colours stand for runs."""
    if len(drawn) < 2:
        return ""
    by_dash: dict[str, list[str]] = {}
    for stat in chart.stats:
        if stat in drawn:
            by_dash.setdefault(stat.several, []).append(stat.label)
    return " ".join(f"{_DASH_NAMES[dash]}: {', '.join(by_dash[dash])}." for dash in DASHES if dash in by_dash)


def _reason(chart: Chart, runs: Sequence[RunStyle]) -> str:
    wanted = [stat.key_in(runs[0]) for stat in chart.stats]
    detail = "" if keys("headline") & set(wanted) else '; trackers receive these with detail="standard"'
    return f"No window has {', '.join(wanted)}{detail}."
