"""Histogram of the raw and the corrected ratios, with a slider over the steps."""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.report.figures.heat import MIN_LOG_SHARE
from ratioscope.report.figures.panel import Absent, Panel, link_of
from ratioscope.report.figures.style import COLORS, base_layout, bound_line, spread, step_label
from ratioscope.text import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.report.figures.style import RunStyle
    from ratioscope.runs.history import Series, Window

MAX_STOPS = 60
"""Steps of the slider at most."""

EMPTY_SHARE = 1e-9
"""Height of an empty bin: below the visible range of the logarithmic axis, which has no 0."""

KEY, TITLE = "histogram", "Raw and corrected ratios"
_CORRECTED = "ratioscope/hist/corrected_log_ratio"


class _Histograms:
    """The raw and the corrected histogram of one run.

    Args:
        run: the run.
        key: key of the raw histogram.
        raw: windows of the raw histogram.
    """

    def __init__(self, run: RunStyle, key: str, raw: Series) -> None:
        self.run = run
        self.key = key
        self.raw = raw
        self.corrected = run.series(_CORRECTED) if run.corrected else None

    def traces(self, *, several: bool) -> list[dict[str, Any]]:
        """Returns the traces without values: bars and a line for a single run, lines for several runs."""
        run, edges = self.run, self.raw.edges
        raw = self._trace(self.raw, "raw", run.color if several else COLORS[0], several=several)
        if not several:
            del raw["mode"], raw["line"]
            raw |= {"type": "bar", "width": float(edges[1] - edges[0])}
            raw["marker"] = {"color": COLORS[0], "opacity": 0.55, "line": {"width": 0}}
        if self.corrected is None:
            return [raw]
        corrected = self._trace(self.corrected, "corrected", run.color if several else COLORS[1], several=several)
        if several:
            corrected["showlegend"] = False
            corrected["line"]["dash"] = "dot"
        return [raw, corrected]

    def _trace(self, series: Series, name: str, color: str, *, several: bool) -> dict[str, Any]:
        label = self.run.label if several else name
        return {
            "type": "scatter",
            "mode": "lines",
            "x": (series.edges[:-1] + series.edges[1:]) / 2,
            "name": label,
            "line": {"color": color, "width": 1.6, "shape": "hvh"},
            "legendgroup": label,
            "hovertemplate": (
                f"%{{fullData.name}}, {name}: %{{customdata}}<extra></extra>" if several else "%{customdata}"
            ),
            "meta": {"key": self.key if name == "raw" else _CORRECTED},
        }

    def values(self, step: int) -> list[dict[str, Any]]:
        """Returns shares and counts of the window at a step, for each trace.

        Both histograms are shares of all raw ratios, so that masked ratios are missing from the corrected one.
        """
        raw = _window(self.raw, step)
        total = int(raw.counts.sum()) if raw is not None else 0
        values = [_values(self.raw, raw, total)]
        if self.corrected is not None:
            values.append(_values(self.corrected, _window(self.corrected, step), total))
        return values


def histogram_panel(runs: Sequence[RunStyle]) -> Panel | Absent:
    """Draws histograms of the log-ratio at the level of the mode, opened at the newest window."""
    import plotly.graph_objects as go

    keys = {run.label: f"ratioscope/hist/{run.level}_log_ratio" for run in runs}
    present = [_Histograms(run, keys[run.label], raw) for run in runs if (raw := run.series(keys[run.label]))]
    if not present:
        return Absent(KEY, TITLE, f"No window has the histogram {', '.join(dict.fromkeys(keys.values()))}.")
    several = len(runs) > 1
    stops = _stops(present, max(8, 120 // len(runs)) if several else MAX_STOPS)
    traces = [trace for histograms in present for trace in histograms.traces(several=several)]
    frames = [[values for histograms in present for values in histograms.values(step)] for step, _ in stops]
    for trace, values in zip(traces, frames[-1], strict=True):
        trace |= values
    layout = _layout(present, hovermode="x unified" if len(runs) <= 6 else "closest")
    if len(stops) > 1:
        layout["sliders"] = [_slider([label for _, label in stops], frames)]
    lines, notes = _bounds(present, layout["xaxis"]["range"])
    if len({tuple(histograms.raw.edges.tolist()) for histograms in present}) > 1:
        notes.append("The runs' bins are not equally wide, so compare shapes, not heights.")
    metrics = tuple(dict.fromkeys(key for histograms in present for key in (histograms.key, _CORRECTED)))
    sentence = _sentence(present, several=several)
    figure = go.Figure([*traces, *lines], layout)
    return Panel(KEY, TITLE, sentence, link_of(KEY), figure, metrics, " ".join(notes), tall=True)


def _layout(present: Sequence[_Histograms], *, hovermode: str) -> dict[str, Any]:
    low = min(float(histograms.raw.edges[0]) for histograms in present)
    high = max(float(histograms.raw.edges[-1]) for histograms in present)
    noun = " or ".join(dict.fromkeys(histograms.run.level for histograms in present))
    return base_layout(
        barmode="overlay",
        bargap=0,
        xaxis={
            "title": {"text": f"log-ratio of a {noun}"},
            "range": [low, high],
            "zeroline": False,
            "unifiedhovertitle": {"text": "log-ratio %{x:.4~g}"},
        },
        yaxis={
            "title": {"text": "share of the window"},
            "type": "log",
            "range": [MIN_LOG_SHARE, 0.35],
            "tickvals": [10.0**exponent for exponent in range(MIN_LOG_SHARE, 1)],
            "ticktext": ["0.001 %", "0.01 %", "0.1 %", "1 %", "10 %", "100 %"],
        },
        hovermode=hovermode,
    )


def _bounds(present: Sequence[_Histograms], axis: tuple[float, float]) -> tuple[list[dict[str, Any]], list[str]]:
    """Draws each bound; returns the lines, and a sentence for each bound outside the axis."""
    lines, notes = [], []
    for name, value in dict.fromkeys(bound for histograms in present for bound in histograms.run.bounds):
        x = math.log(value)
        if axis[0] < x < axis[1]:
            position = "top left" if name == "lower" else "top right"
            lines.append(bound_line(name, value, [x, x], [10.0**MIN_LOG_SHARE, 1.3], position=position))
        else:
            notes.append(f"The {name} bound {value:g} lies outside the axis, at log-ratio {x:.3g}.")
    return lines, notes


def _window(series: Series, step: int) -> Window | None:
    """Returns the window that contains a step, or None if the run has none there."""
    ends = series.steps()
    index = bisect.bisect_left(ends, step)
    if index == 0:
        # The first window reaches back by the usual length of a window.
        usual = float(np.median(np.diff(ends))) if len(ends) > 1 else 1.0
        return series.windows[0] if step > series.windows[0].first_step - usual else None
    return series.windows[index] if index < len(series.windows) else None


def _values(series: Series, window: Window | None, total: int) -> dict[str, Any]:
    if window is None or not total:
        n = len(series.edges) - 1
        return {"y": [None] * n, "customdata": ["no window"] * n}
    counts = window.counts.tolist()
    labels = [f"{percent(count / total)} ({count:,})" for count in counts]
    return {"y": [float(f"{count / total:.6g}") if count else EMPTY_SHARE for count in counts], "customdata": labels}


def _stops(present: Sequence[_Histograms], limit: int) -> list[tuple[int, str]]:
    """Returns step and label of each stop of the slider."""
    if len(present) == 1:
        windows = present[0].raw.windows
        chosen = [windows[index] for index in spread(len(windows), limit)]
        return [(window.last_step, step_label(window.first_step, window.last_step)) for window in chosen]
    steps = sorted({step for histograms in present for step in histograms.raw.steps()})
    return [(steps[index], f"{steps[index]:,}") for index in spread(len(steps), limit)]


def _slider(labels: Sequence[str], frames: Sequence[list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns a slider that replaces the values of all traces; the last stop is active."""
    traces = list(range(len(frames[0])))
    steps = [
        {
            "label": label,
            "method": "restyle",
            "args": [{name: [values[name] for values in frame] for name in ("y", "customdata")}, traces],
        }
        for label, frame in zip(labels, frames, strict=True)
    ]
    return {
        "active": len(steps) - 1,
        "currentvalue": {"prefix": "step ", "xanchor": "left"},
        "pad": {"t": 44, "b": 4},
        "ticklen": 3,
        "minorticklen": 0,
        "steps": steps,
    }


def _sentence(present: Sequence[_Histograms], *, several: bool) -> str:
    outer = "The outermost bins also hold what lies beyond."
    if all(histograms.corrected is None for histograms in present):
        return f"Share of the raw ratios in each bin, on a logarithmic scale; nothing is corrected. {outer}"
    lines = "solid lines are raw, dotted ones corrected" if several else "bars are raw, the line is corrected"
    return (
        f"Share of the ratios in each bin, on a logarithmic scale: {lines}, and what masking removes is missing "
        f"from the corrected. {outer}"
    )
