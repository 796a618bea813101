"""Figures of statistics over the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.metrics.catalogue import keys
from ratioscope.report.figures.panel import Absent, Panel, link_of
from ratioscope.report.figures.style import BOUND, COLORS, DASHES, Run, base_layout, faint, points_of, step_axis
from ratioscope.report.figures.thinning import thin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FEW = 40
"""Lines of no more points show each as a marker."""

_DASH_NAMES = {"solid": "Solid", "dot": "Dotted", "dash": "Dashed", "dashdot": "Dash-dotted", "longdash": "Long-dashed"}


@dataclass(frozen=True)
class Stat:
    """A statistic of a figure.

    Attributes:
        key: its full key; ``{level}`` stands for the level of a run's mode.
        label: in the legend and on hover.
        color: where there is one run; runs have the colours where there are several.
        dash: where there is one run.
        several: its dash where there are several runs.
        width: of the line.
        fill: opacity of the area up to the statistic before this one, where there is one run; 0 for none.
        instead: key that is used where a run lacks the first.
        alone: whether it is left out where there are several runs.
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

    def key_in(self, run: Run) -> str:
        """The key under which a run has it."""
        key = self.key.format(level=run.level)
        scalars = run.timeline.scalars
        return key if key in scalars or f"eval/{key}" in scalars or not self.instead else self.instead


@dataclass(frozen=True)
class Chart:
    """A figure of statistics.

    Attributes:
        key: of the panel.
        title: of the panel.
        sentence: of the panel.
        stats: what is drawn, in the order of legend and hover.
        unit: title of the vertical axis.
        form: how numbers on hover are written, as d3-format has it.
        axis: further settings of the vertical axis.
        log: whether the vertical axis is logarithmic; what is not above 0 is left out then.
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


@dataclass(frozen=True)
class Points:
    """A statistic as it is drawn: int ``steps`` and float64 ``values``, and whether points were left out."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    thinned: bool


def points(run: Run, key: str, limit: int, *, positive: bool = False) -> Points | None:
    """A statistic of a run with at most ``limit`` points; None if it has none.

    Args:
        run: the run.
        key: full key.
        limit: most points.
        positive: whether values up to 0 are left out, for a logarithmic axis.
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


def line_panel(chart: Chart, runs: Sequence[Run]) -> Panel | Absent:
    """A figure of statistics over the steps, of one run or of several laid over each other."""
    import plotly.graph_objects as go

    traces: list[dict[str, Any]] = []
    several, limit, thinned, drawn = len(runs) > 1, points_of(runs), False, set()
    for run in runs:
        for stat in chart.stats:
            if several and stat.alone:
                continue
            key = stat.key_in(run)
            for full in (key, f"eval/{key}")[: 1 + stat.evaluated]:
                found = points(run, full, limit, positive=chart.log)
                if found is None:
                    continue
                trace = _trace(found, stat, run, chart, key=full, several=several)
                traces.append(trace)
                thinned = thinned or found.thinned
                drawn.add(stat)
    if not traces:
        return Absent(chart.key, chart.title, _reason(chart, runs))
    span = [float(min(trace["x"].min() for trace in traces)), float(max(trace["x"].max() for trace in traces))]
    margin = 0.02 * (span[1] - span[0]) if any("markers" in trace["mode"] for trace in traces) else 0.0
    margin = margin if span[0] < span[1] else 1.0
    _shorten_legend(traces)
    if chart.bounded:
        traces += _bounds(runs, span)
    axis = {"title": {"text": chart.unit}, **dict(chart.axis)}
    if chart.log:
        axis |= {"type": "log", "tickformat": "~g", "nticks": 6}
    layout = base_layout(
        xaxis=step_axis(span[0] - margin, span[1] + margin),
        yaxis=axis,
        hovermode="x unified" if len(runs) <= 6 else "closest",
    )
    sentence = f"{chart.sentence} {_legend(chart, drawn)}" if several else chart.sentence
    note = f"Thinned to at most {limit:,} points a line; every stretch keeps its smallest and its largest value."
    metrics = tuple(dict.fromkeys(stat.key_in(run) for stat in chart.stats for run in runs))
    figure = go.Figure(traces, layout)
    return Panel(chart.key, chart.title, sentence.strip(), link_of(chart.key), figure, metrics, note if thinned else "")


def bound_line(name: str, value: float, x: list[float], y: list[float], *, at: str = "") -> dict[str, Any]:
    """A dashed line for a bound, with its name at the end.

    Args:
        name: ``"lower"`` or ``"upper"``.
        value: the ratio.
        x: both ends.
        y: both ends.
        at: where the name stands beside the second end; above the upper bound and below the lower one by default.
    """
    return {
        "type": "scatter",
        "mode": "lines+text",
        "x": x,
        "y": y,
        "text": ["", f"{name} {value:g}"],
        "textposition": at or ("bottom left" if name == "lower" else "top left"),
        "textfont": {"color": BOUND, "size": 11},
        "line": {"color": BOUND, "width": 1.6, "dash": "dash"},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _bounds(runs: Sequence[Run], span: list[float]) -> list[dict[str, Any]]:
    """A line for each bound; of two on the same side the second has its name at the other end, clear of the first's."""
    lines: list[dict[str, Any]] = []
    names: list[str] = []
    for name, value in dict.fromkeys(bound for run in runs for bound in run.bounds):
        left = names.count(name) % 2 == 1
        at = f"{'bottom' if name == 'lower' else 'top'} {'right' if left else 'left'}"
        lines.append(bound_line(name, value, span[::-1] if left else span, [value, value], at=at))
        names.append(name)
    return lines


def _trace(found: Points, stat: Stat, run: Run, chart: Chart, *, key: str, several: bool) -> dict[str, Any]:
    evaluation = key.startswith("eval/")
    label = f"{stat.label}, evaluation" if evaluation else stat.label
    color, few = run.color if several else stat.color, len(found.steps) <= FEW
    line = {"color": color, "width": stat.width, "dash": stat.several if several else stat.dash}
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if few or evaluation else "lines",
        "x": found.steps.astype(np.int32) if found.steps.max() < 2**31 else found.steps,
        "y": found.values,
        "name": run.label if several else label,
        "line": line,
        "marker": {"size": 4.5, "color": color},
        "legendgroup": run.label if several else "evaluation" if evaluation else key,
        "hovertemplate": f"%{{y:{chart.form}}}",
        "meta": {"key": key},
    }
    if several:
        # The name is a run's, any text: only plotly itself may put it in, or it could be read as a template.
        trace["hovertemplate"] = f"%{{fullData.name}}, {label}: %{{y:{chart.form}}}<extra></extra>"
    if evaluation:
        who = "%{fullData.name}, " if several else ""
        trace["hovertemplate"] = f"{who}{label}: %{{y:{chart.form}}}<extra></extra>"
        trace["name"] = run.label if several else "evaluation"
        trace["line"] = {"color": color, "width": 1, "dash": "dot"}
        trace["marker"] = {"size": 8, "color": color, "symbol": "diamond-open", "line": {"width": 1.5}}
    elif stat.fill and not several:
        trace |= {"fill": "tonexty", "fillcolor": faint(stat.color, stat.fill)}
    return trace


def _shorten_legend(traces: Sequence[dict[str, Any]]) -> None:
    """Leaves one entry for each group: a run, a statistic, or all that is of evaluations."""
    entries: dict[str, dict[str, Any]] = {}
    for trace in traces:
        trace["showlegend"] = False
        group = trace["legendgroup"]
        if group not in entries or (entries[group]["line"]["dash"], trace["line"]["dash"]) == ("dot", "solid"):
            entries[group] = trace
    for trace in entries.values():
        trace["showlegend"] = True


def _legend(chart: Chart, drawn: set[Stat]) -> str:
    """What the dashes mean where colours are the runs'."""
    told: dict[str, list[str]] = {}
    for stat in chart.stats:
        if stat in drawn:
            told.setdefault(stat.several, []).append(stat.label)
    if len(drawn) < 2:
        return ""
    return " ".join(f"{_DASH_NAMES[dash]}: {', '.join(told[dash])}." for dash in DASHES if dash in told)


def _reason(chart: Chart, runs: Sequence[Run]) -> str:
    wanted = [stat.key_in(runs[0]) for stat in chart.stats]
    sent = "" if keys("headline") & set(wanted) else '; trackers receive these with detail="standard"'
    return f"No window has {', '.join(wanted)}{sent}."
