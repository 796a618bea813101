"""Heat map of a run's log-ratios over its steps, overlaid with quantile lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.report.figures.panel import Absent, Panel, link_of
from ratioscope.report.figures.style import base_layout, bound_line, max_points, points, spread, step_axis, step_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.report.figures.style import RunStyle
    from ratioscope.runs.history import Series, Window

MIN_LOG_SHARE = -5
"""log10 of the smallest share of a window that has a colour of its own."""

TITLES = {"token": "Token log-ratio over training", "sequence": "Sequence log-ratio over training"}
"""Title of the heat maps of each level."""

_CELLS_OF_A_PAGE = 40_000
_QUANTILES = {"p99": "dot", "p95": "dash", "p50": "solid", "p05": "dash", "p01": "dot"}


@dataclass(frozen=True)
class _HeatMap:
    """Everything that one heat map is drawn from; columns and points are upper limits."""

    run: RunStyle
    series: Series
    level: str
    key: str
    group: str
    columns: int
    points: int
    span: tuple[int, int] | None  # first and last step of all runs; None for a single run
    note: str


def heat_panels(runs: Sequence[RunStyle], level: str) -> list[Panel | Absent]:
    """Draws one heat map per run, with the same axes and colours where the bins are the same."""
    key, name = f"ratioscope/hist/{level}_log_ratio", f"heat-{level}"
    reason = f"No window has the histogram {key}."
    series = {run.label: found for run in runs if (found := run.series(key))}
    if not series:
        return [Absent(name, TITLES[level], reason)]
    several = len(runs) > 1
    windows = [found.windows for found in series.values()]
    span = (min(each[0].first_step for each in windows), max(each[-1].last_step for each in windows))
    common_bins = len({tuple(found.edges.tolist()) for found in series.values()}) == 1
    columns, line_points = max(48, _CELLS_OF_A_PAGE // (65 * len(runs))), min(400, max_points(runs))
    panels: list[Panel | Absent] = []
    for number, run in enumerate(runs, start=1):
        if run.label not in series:
            panels.append(Absent(f"{name}-{number}", run.name, reason, name))
            continue
        heat_map = _HeatMap(
            run,
            series[run.label],
            level,
            key=f"{name}-{number}" if several else name,
            group=name if several else "",
            columns=columns,
            points=line_points,
            span=span if several else None,
            note="" if common_bins else "Its bins differ from another run's, so the axis is its own.",
        )
        panels.append(_panel(heat_map))
    return panels


def _panel(heat_map: _HeatMap) -> Panel:
    import plotly.graph_objects as go

    run, series, level, span = heat_map.run, heat_map.series, heat_map.level, heat_map.span
    windows = _pooled(series.windows, heat_map.columns)
    starts = _starts(windows)
    quantiles, thinned = _quantile_lines(run, level, heat_map.points)
    bounds, outside = _bound_lines(heat_map, [starts[0], starts[-1]])
    layout = base_layout(
        xaxis={
            **(step_axis(min(starts[0], span[0]), span[1]) if span else step_axis(starts[0], starts[-1])),
            "showgrid": False,
        },
        yaxis={
            "title": {"text": "log-ratio"},
            "range": [float(series.edges[0]), float(series.edges[-1])],
            "zeroline": False,
            "showgrid": False,
        },
        hovermode="closest",
        margin={"l": 64, "r": 16, "t": 30, "b": 48},
    )
    most = max(window.records for window in windows)
    pooled = f"A column pools up to {most:,} windows." if most > 1 else ""
    thinning = f"Lines are thinned to {heat_map.points:,} points; every stretch keeps its extremes." if thinned else ""
    sentence = (
        f"Colour is the share of a step's {level}s in each bin of log-ratio, train minus rollout; lines are their "
        "p01, p05, p50, p95 and p99, and the outermost bins also hold what lies beyond the axis."
    )
    return Panel(
        heat_map.key,
        f"{level.capitalize()} log-ratio: {run.name}" if heat_map.group else TITLES[level],
        sentence,
        link_of(heat_map.group or heat_map.key),
        go.Figure([_cells(series, windows), *quantiles, *bounds], layout),
        (f"ratioscope/hist/{level}_log_ratio", *(f"ratioscope/{level}/raw/{name}" for name in _QUANTILES)),
        " ".join(part for part in (heat_map.note, *outside, pooled, thinning) if part),
        heat_map.group,
        tall=True,
        run=run.name if heat_map.group else "",
    )


def _bound_lines(heat_map: _HeatMap, steps: list[float]) -> tuple[list[dict[str, Any]], list[str]]:
    """Draws the bounds of the map's level; returns the lines, and a sentence for each bound outside the axis."""
    low, high = float(heat_map.series.edges[0]), float(heat_map.series.edges[-1])
    lines, outside = [], []
    for name, value in heat_map.run.bounds if heat_map.level == heat_map.run.level else ():
        log_bound = math.log(value)
        if low < log_bound < high:
            lines.append(bound_line(name, value, steps, [log_bound] * 2))
        else:
            outside.append(f"{name.capitalize()} bound {value:g} (log-ratio {log_bound:.3g}) lies outside the axis.")
    return lines, outside


def _pooled(windows: Sequence[Window], limit: int) -> list[Window]:
    """Pools neighbouring windows until at most ``limit`` are left."""
    if len(windows) <= limit:
        return list(windows)
    starts = [*spread(len(windows), limit), len(windows)]
    pooled = []
    for start, end in pairwise(starts):
        window, *rest = windows[start:end]
        for later in rest:
            window = window.pooled(later)
        pooled.append(window)
    return pooled


def _starts(windows: Sequence[Window]) -> list[float]:
    """Returns the edges of the columns: each window reaches back to the end of the window before it."""
    ends = [float(window.last_step) for window in windows]
    usual = float(np.median(np.diff(ends))) if len(ends) > 1 else 1.0
    return [min(ends[0] - usual, windows[0].first_step - 1.0) if len(ends) > 1 else ends[0] - 1.0, *ends]


def _cells(series: Series, windows: Sequence[Window]) -> dict[str, Any]:
    counts = np.stack([window.counts for window in windows], axis=1)
    share = counts / np.maximum(counts.sum(axis=0, keepdims=True), 1)
    with np.errstate(divide="ignore"):
        log_share = np.where(counts > 0, np.log10(share), np.nan)  # an empty cell has no colour
    middles = (series.edges[:-1] + series.edges[1:]) / 2
    return {
        "type": "heatmap",
        "x": np.asarray(_starts(windows)),
        "y": series.edges,
        "z": log_share.astype(np.float32),  # half the size in the page
        "zmin": MIN_LOG_SHARE,
        "zmax": 0,
        "colorscale": "Viridis",
        "hoverongaps": False,
        # The page's script makes the text of each cell from `meta`; stored texts would be far larger.
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {
            "steps": [_column_label(window) for window in windows],
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


def _column_label(window: Window) -> str:
    steps = step_label(window.first_step, window.last_step)
    return f"step {steps}" if window.records == 1 else f"steps {steps}, {window.records:,} windows"


def _ratio(log_ratio: float) -> str:
    return f"{math.exp(log_ratio):.4g}" if abs(log_ratio) < 700 else f"exp({log_ratio:.4g})"  # exp(710) overflows


def _quantile_lines(run: RunStyle, level: str, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Draws the quantiles; returns the lines, and whether they were thinned.

    The page draws them white when it is dark, except p50: the median lies on the brightest cells.
    """
    traces, thinned = [], False
    for name, dash in _QUANTILES.items():
        key = f"ratioscope/{level}/raw/{name}"
        found = points(run, key, limit, positive=True)
        if found is None:
            continue
        thinned = thinned or found.thinned
        traces.append(
            {
                "x": found.steps,
                "y": np.log(found.values),
                "type": "scatter",
                "mode": "markers" if len(found.steps) <= 3 else "lines",
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
