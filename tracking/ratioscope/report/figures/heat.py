"""Heat map of a run's log-ratios over its steps, with the quantile fan over it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.report.figures.lines import bound_line, points
from ratioscope.report.figures.panel import Absent, Panel, link_of
from ratioscope.report.figures.style import Run, base_layout, label_of, points_of, step_axis
from ratioscope.report.figures.thinning import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.runs.history import Series, Window

MIN_LOG_SHARE = -5
"""log10 of the smallest share of a window that the colours tell apart."""

_CELLS_OF_A_PAGE = 40_000
_FAN = {"p99": "dot", "p95": "dash", "p50": "solid", "p05": "dash", "p01": "dot"}
_TITLES = {"token": "Token log-ratio over training", "sequence": "Sequence log-ratio over training"}


def heat_panels(runs: Sequence[Run], level: str) -> list[Panel | Absent]:
    """One heat map a run, on the same axes and colours where their bins are the same."""
    key = f"ratioscope/hist/{level}_log_ratio"
    group = f"heat-{level}"
    series = {run.label: found for run in runs if (found := series_of(run, key))}
    if not series:
        return [Absent(group, _TITLES[level], f"No window has the histogram {key}.")]
    edges = {tuple(found.edges.tolist()) for found in series.values()}
    common = len(edges) == 1
    ends = [(windows[0].first_step, windows[-1].last_step) for windows in (s.windows for s in series.values())]
    span = (min(first for first, _ in ends), max(last for _, last in ends)) if len(runs) > 1 else None
    limit = max(48, _CELLS_OF_A_PAGE // (65 * len(runs)))
    panels: list[Panel | Absent] = []
    for index, run in enumerate(runs):
        several = len(runs) > 1
        if run.label not in series:
            panels.append(Absent(f"{group}-{index + 1}", run.name, f"No window has the histogram {key}.", group))
            continue
        panels.append(
            _panel(
                run,
                series[run.label],
                level,
                key=f"{group}-{index + 1}" if several else group,
                title=f"{level.capitalize()} log-ratio: {run.name}" if several else _TITLES[level],
                group=group if several else "",
                limit=limit,
                points_limit=min(400, points_of(runs)),
                span=span,
                note="" if common else "Its bins differ from another run's, so the axis is its own.",
            )
        )
    return panels


def title_of(level: str) -> str:
    """Title of the heat maps of a level."""
    return _TITLES[level]


def series_of(run: Run, key: str) -> Series | None:
    """Windows of a histogram with the newest edges; None if there are none."""
    try:
        series = run.timeline.history.latest(key)
    except KeyError:
        return None
    return series if series.windows else None


def _panel(
    run: Run,
    series: Series,
    level: str,
    *,
    key: str,
    title: str,
    group: str,
    limit: int,
    points_limit: int,
    span: tuple[int, int] | None,
    note: str,
) -> Panel:
    import plotly.graph_objects as go

    windows = _pooled(series.windows, limit)
    fan, thinned = _fan(run, level, points_limit)
    traces = [_cells(series, windows), *fan]
    low, high = float(series.edges[0]), float(series.edges[-1])
    starts = _starts(windows)
    hidden = []
    for name, value in run.bounds if level == run.level else ():
        if low < math.log(value) < high:
            traces.append(bound_line(name, value, [starts[0], starts[-1]], [math.log(value)] * 2))
        else:
            hidden.append(f"{name} bound {value:g} (log-ratio {math.log(value):.3g}) lies outside the axis.")
    axis = step_axis(starts[0], starts[-1]) if span is None else step_axis(min(starts[0], span[0]), span[1])
    layout = base_layout(
        xaxis={**axis, "showgrid": False},
        yaxis={"title": {"text": "log-ratio"}, "range": [low, high], "zeroline": False, "showgrid": False},
        hovermode="closest",
        margin={"l": 64, "r": 16, "t": 30, "b": 48},
    )
    most = max(window.records for window in windows)
    pooled = f"A column pools up to {most:,} windows." if most > 1 else ""
    told = f"Lines are thinned to {points_limit:,} points; every stretch keeps its extremes." if thinned else ""
    where = "tokens" if level == "token" else "sequences"
    sentence = (
        f"Colour is the share of a step's {where} in each bin of log-ratio, train minus rollout; lines are their "
        "p01, p05, p50, p95 and p99, and the outermost bins also hold what lies beyond the axis."
    )
    notes = " ".join(part for part in (note, *map(str.capitalize, hidden), pooled, told) if part)
    figure = go.Figure(traces, layout)
    metrics = (f"ratioscope/hist/{level}_log_ratio", *(f"ratioscope/{level}/raw/{name}" for name in _FAN))
    return Panel(
        key,
        title,
        sentence,
        link_of(group or key),
        figure,
        metrics,
        notes,
        group,
        tall=True,
        run=run.name if group else "",
    )


def _pooled(windows: Sequence[Window], limit: int) -> list[Window]:
    """At most ``limit`` windows, neighbours pooled."""
    if len(windows) <= limit:
        return list(windows)
    starts = [*spread(len(windows), limit), len(windows)]
    groups = [windows[start:end] for start, end in pairwise(starts)]
    pooled = []
    for first, *rest in groups:
        for window in rest:
            first = first.pooled(window)
        pooled.append(first)
    return pooled


def _starts(windows: Sequence[Window]) -> list[float]:
    """Where each window begins and the last one ends: a window reaches back to the one before it."""
    ends = [float(window.last_step) for window in windows]
    usual = float(np.median(np.diff(ends))) if len(ends) > 1 else 1.0
    return [min(ends[0] - usual, windows[0].first_step - 1.0) if len(ends) > 1 else ends[0] - 1.0, *ends]


def _cells(series: Series, windows: Sequence[Window]) -> dict[str, Any]:
    counts = np.stack([window.counts for window in windows], axis=1)
    share = counts / np.maximum(counts.sum(axis=0, keepdims=True), 1)
    with np.errstate(divide="ignore"):
        log_share = np.where(counts > 0, np.log10(share), np.nan)
    middles = (series.edges[:-1] + series.edges[1:]) / 2
    return {
        "type": "heatmap",
        "x": np.asarray(_starts(windows)),
        "y": series.edges,
        "z": log_share.astype(np.float32),
        "zmin": MIN_LOG_SHARE,
        "zmax": 0,
        "colorscale": "Viridis",
        "hoverongaps": False,
        # The page writes each cell's text from `meta`, which would be long to have here.
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {
            "steps": [_told(window) for window in windows],
            "rows": [f"log-ratio {middle:.4g}, ratio {_ratio(middle)}" for middle in middles.tolist()],
        },
        "colorbar": {
            "orientation": "h",
            "y": -0.16,
            "yanchor": "top",
            "thickness": 10,
            "outlinewidth": 0,
            "tickfont": {"size": 11},
            "tickvals": list(range(MIN_LOG_SHARE, 1)),
            "ticktext": ["≤ 0.001 %", "0.01 %", "0.1 %", "1 %", "10 %", "100 %"],
        },
    }


def _told(window: Window) -> str:
    steps = label_of(window.first_step, window.last_step)
    return f"step {steps}" if window.records == 1 else f"steps {steps}, {window.records:,} windows"


def _ratio(log_ratio: float) -> str:
    return f"{math.exp(log_ratio):.4g}" if abs(log_ratio) < 700 else f"exp({log_ratio:.4g})"


def _fan(run: Run, level: str, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """The quantiles, and whether they were thinned; all but p50, on the brightest cells, are white on a dark page."""
    traces, thinned = [], False
    for name, dash in _FAN.items():
        key = f"ratioscope/{level}/raw/{name}"
        found = points(run, key, limit, positive=True)
        if found is None:
            continue
        thinned = thinned or found.thinned
        few = len(found.steps) <= 3
        line = {"x": found.steps, "y": np.log(found.values), "type": "scatter", "mode": "markers" if few else "lines"}
        traces.append(
            line
            | {
                "name": name,
                "line": {"color": "#000000", "width": 1.6 if name == "p50" else 1.1, "dash": dash},
                "marker": {"color": "#FFFFFF", "size": 7, "line": {"color": "#000000", "width": 1}},
                "customdata": found.values,
                "hovertemplate": (
                    f"step %{{x:,d}}<br>{name}: log-ratio %{{y:.4~g}}, ratio %{{customdata:.4~g}}<extra></extra>"
                ),
                "meta": {"key": key, "ink": name != "p50"},
                "showlegend": False,
            }
        )
    return traces, thinned
