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
_COLOR_BAR = {
    "orientation": "h",
    "y": -0.16,
    "yanchor": "top",
    "thickness": 10,
    "outlinewidth": 0,
    "tickfont": {"size": 11},
    "tickvals": list(range(MIN_LOG_SHARE, 1)),
    "ticktext": ["≤ 0.001 %", "0.01 %", "0.1 %", "1 %", "10 %", "100 %"],
}
_QUANTILES = {"p99": "dot", "p95": "dash", "p50": "solid", "p05": "dash", "p01": "dot"}


@dataclass(frozen=True)
class _HeatMap:
    """Input of one heat map; its numbers of columns and points are upper limits."""

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
    series = {run.label: of_run for run in runs if (of_run := run.series(key))}
    if not series:
        return [Absent(name, TITLES[level], reason)]
    several = len(runs) > 1
    windows = [each.windows for each in series.values()]
    ends = (min(each[0].first_step for each in windows), max(each[-1].last_step for each in windows))
    span = ends if several else None
    common_bins = len({tuple(each.edges.tolist()) for each in series.values()}) == 1
    note = "" if common_bins else "Its bins differ from another run's, so the axis is its own."
    columns, line_points = max(48, _CELLS_OF_A_PAGE // (65 * len(runs))), min(400, max_points(runs))
    panels: list[Panel | Absent] = []
    for number, run in enumerate(runs, start=1):
        panel_key = f"{name}-{number}" if several else name
        if run.label not in series:
            panels.append(Absent(panel_key, run.name, reason, name))
            continue
        source = (run, series[run.label], level, panel_key)
        panels.append(_panel(_HeatMap(*source, name if several else "", columns, line_points, span, note)))
    return panels


def _panel(heat_map: _HeatMap) -> Panel:
    import plotly.graph_objects as go

    run, level = heat_map.run, heat_map.level
    windows = _pooled(heat_map.series.windows, heat_map.columns)
    starts = _starts(windows)
    quantiles, thinned = _quantile_lines(run, level, heat_map.points)
    bounds, outside = _bound_lines(heat_map, [starts[0], starts[-1]])
    most = max(window.records for window in windows)
    pooled = f"A column pools up to {most:,} windows." if most > 1 else ""
    thinning = f"Lines are thinned to {heat_map.points:,} points; every stretch keeps its extremes." if thinned else ""
    return Panel(
        heat_map.key,
        f"{level.capitalize()} log-ratio: {run.name}" if heat_map.group else TITLES[level],
        f"Colour is the share of a step's {level}s in each bin of log-ratio, train minus rollout; lines are their "
        "p01, p05, p50, p95 and p99, and the outermost bins also hold what lies beyond the axis.",
        link_of(heat_map.group or heat_map.key),
        go.Figure([_cells(heat_map.series, windows), *quantiles, *bounds], _layout(heat_map, starts)),
        (f"ratioscope/hist/{level}_log_ratio", *(f"ratioscope/{level}/raw/{name}" for name in _QUANTILES)),
        " ".join(part for part in (heat_map.note, *outside, pooled, thinning) if part),
        heat_map.group,
        tall=True,
        run=run.name if heat_map.group else "",
    )


def _layout(heat_map: _HeatMap, starts: list[float]) -> dict[str, Any]:
    span, edges = heat_map.span, heat_map.series.edges
    x = step_axis(starts[0], starts[-1]) if span is None else step_axis(min(starts[0], span[0]), span[1])
    y = {"title": {"text": "log-ratio"}, "range": [float(edges[0]), float(edges[-1])], "zeroline": False}
    return base_layout(
        xaxis={**x, "showgrid": False},
        yaxis={**y, "showgrid": False},
        hovermode="closest",
        margin={"l": 64, "r": 16, "t": 30, "b": 48},
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
        "colorbar": _COLOR_BAR,
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
        line = points(run, key, limit, positive=True)
        if line is None:
            continue
        thinned = thinned or line.thinned
        traces.append(
            {
                "x": line.steps,
                "y": np.log(line.values),
                "type": "scatter",
                "mode": "markers" if len(line.steps) <= 3 else "lines",
                "name": name,
                "line": {"color": "#000000", "width": 1.6 if name == "p50" else 1.1, "dash": dash},
                "marker": {"color": "#FFFFFF", "size": 7, "line": {"color": "#000000", "width": 1}},
                "customdata": line.values,
                "hovertemplate": (
                    f"step %{{x:,d}}<br>{name}: log-ratio %{{y:.4~g}}, ratio %{{customdata:.4~g}}<extra></extra>"
                ),
                "meta": {"key": key, "ink": name != "p50"},
                "showlegend": False,
            }
        )
    return traces, thinned
