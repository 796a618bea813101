"""Histogram of the raw against the corrected ratios, with a slider over the steps."""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.report.figures.heat import MIN_LOG_SHARE, series_of
from ratioscope.report.figures.lines import bound_line
from ratioscope.report.figures.panel import Absent, Panel, link_of
from ratioscope.report.figures.style import COLORS, Run, base_layout, label_of
from ratioscope.report.figures.thinning import spread
from ratioscope.text import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ratioscope.runs.history import Series, Window

MAX_STOPS = 60
"""Steps of the slider at most."""

BELOW = 1e-9
"""Where an empty bin is drawn: below a logarithmic axis, which has no 0."""

KEY, TITLE = "histogram", "Raw and corrected ratios"


def histogram_panel(runs: Sequence[Run]) -> Panel | Absent:
    """Histograms on the log-ratio at the level of the mode, newest window first shown."""
    import plotly.graph_objects as go

    shown = [_Shown(run) for run in runs]
    present = [one for one in shown if one.raw is not None]
    if not present:
        keys = ", ".join(dict.fromkeys(one.key for one in shown))
        return Absent(KEY, TITLE, f"No window has the histogram {keys}.")
    several = len(runs) > 1
    stops = _stops(present, MAX_STOPS if not several else max(8, 120 // len(runs)))
    traces = [trace for one in present for trace in one.traces(several=several)]
    frames = [[values for one in present for values in one.values(step)] for step, _ in stops]
    for trace, values in zip(traces, frames[-1], strict=True):
        trace |= values
    moving = list(range(len(traces)))
    low = min(float(one.edges[0]) for one in present)
    high = max(float(one.edges[-1]) for one in present)
    notes = []
    for name, value in dict.fromkeys(bound for one in present for bound in one.run.bounds):
        x = math.log(value)
        if low < x < high:
            at = "top left" if name == "lower" else "top right"
            traces.append(bound_line(name, value, [x, x], [10.0**MIN_LOG_SHARE, 1.3], at=at))
        else:
            notes.append(f"The {name} bound {value:g} lies outside the axis, at log-ratio {x:.3g}.")
    if len({tuple(one.edges.tolist()) for one in present}) > 1:
        notes.append("The runs' bins are not equally wide, so compare shapes, not heights.")
    layout = base_layout(
        barmode="overlay",
        bargap=0,
        xaxis={"title": {"text": f"log-ratio of a {_noun(present)}"}, "range": [low, high], "zeroline": False},
        yaxis={
            "title": {"text": "share of the window"},
            "type": "log",
            "range": [MIN_LOG_SHARE, 0.35],
            "tickvals": [10.0**exponent for exponent in range(MIN_LOG_SHARE, 1)],
            "ticktext": ["0.001 %", "0.01 %", "0.1 %", "1 %", "10 %", "100 %"],
        },
        hovermode="x unified" if len(runs) <= 6 else "closest",
    )
    layout["xaxis"]["unifiedhovertitle"] = {"text": "log-ratio %{x:.4~g}"}
    if len(stops) > 1:
        layout["sliders"] = [_slider(stops, frames, moving)]
    figure = go.Figure(traces, layout)
    metrics = tuple(dict.fromkeys(key for one in present for key in (one.key, _CORRECTED)))
    sentence = _sentence(present, several=several)
    return Panel(KEY, TITLE, sentence, link_of(KEY), figure, metrics, " ".join(notes), tall=True)


_OUTER = "The outermost bins also hold what lies beyond."
_CORRECTED = "ratioscope/hist/corrected_log_ratio"


class _Shown:
    """A run's two histograms."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.key = f"ratioscope/hist/{run.level}_log_ratio"
        self.raw = series_of(run, self.key)
        self.corrected = series_of(run, _CORRECTED) if run.corrected else None

    @property
    def edges(self) -> NDArray[np.float64]:
        """Edges of the raw bins."""
        assert self.raw is not None
        return self.raw.edges

    def traces(self, *, several: bool) -> list[dict[str, Any]]:
        """The traces, without values."""
        label, color = self.run.label, self.run.color if several else COLORS[0]
        raw = self._trace(self.raw, "raw", color, several=several)
        if not several:
            raw |= {"type": "bar", "marker": {"color": color, "opacity": 0.55, "line": {"width": 0}}}
            raw |= {"width": float(self.edges[1] - self.edges[0])}
            del raw["mode"], raw["line"]
        if self.corrected is None:
            return [raw]
        corrected = self._trace(self.corrected, "corrected", color if several else COLORS[1], several=several)
        if several:
            raw["name"] = label
            corrected |= {"name": label, "showlegend": False}
            corrected["line"]["dash"] = "dot"
        return [raw, corrected]

    def _trace(self, series: Series | None, name: str, color: str, *, several: bool) -> dict[str, Any]:
        assert series is not None
        middles = (series.edges[:-1] + series.edges[1:]) / 2
        who = "%{fullData.name}, " if several else ""
        extra = "<extra></extra>" if several else ""
        what = f"{who}{name}: " if several else ""
        return {
            "type": "scatter",
            "mode": "lines",
            "x": middles,
            "name": self.run.label if several else name,
            "line": {"color": color, "width": 1.6, "shape": "hvh"},
            "legendgroup": self.run.label if several else name,
            "hovertemplate": f"{what}%{{customdata}}{extra}",
            "meta": {"key": self.key if name == "raw" else _CORRECTED},
        }

    def values(self, step: int) -> list[dict[str, Any]]:
        """Shares and counts of the window that a step lies in, of the raw and of the corrected ratios.

        Both are shares of all raw ratios, so that what masking removes is missing from the second.
        """
        assert self.raw is not None
        raw = _window(self.raw, step)
        total = int(raw.counts.sum()) if raw is not None else 0
        found = [_values(self.raw, raw, total)]
        if self.corrected is not None:
            found.append(_values(self.corrected, _window(self.corrected, step), total))
        return found


def _window(series: Series, step: int) -> Window | None:
    """The window that a step lies in; None where the run has none there."""
    index = bisect.bisect_left(series.steps(), step)
    return series.windows[index] if index < len(series.windows) and (index or _begun(series, step)) else None


def _begun(series: Series, step: int) -> bool:
    ends = series.steps()
    usual = float(np.median(np.diff(ends))) if len(ends) > 1 else 1.0
    return step > series.windows[0].first_step - usual


def _values(series: Series, window: Window | None, total: int) -> dict[str, Any]:
    if window is None or not total:
        n = len(series.edges) - 1
        return {"y": [None] * n, "customdata": ["no window"] * n}
    counts = window.counts.tolist()
    told = [f"{percent(count / total)} ({count:,})" for count in counts]
    return {"y": [float(f"{count / total:.6g}") if count else BELOW for count in counts], "customdata": told}


def _stops(shown: Sequence[_Shown], limit: int) -> list[tuple[int, str]]:
    """Step and label of each stop of the slider."""
    if len(shown) == 1:
        assert shown[0].raw is not None
        windows = shown[0].raw.windows
        return [
            (windows[index].last_step, label_of(windows[index].first_step, windows[index].last_step))
            for index in spread(len(windows), limit)
        ]
    steps = sorted({step for one in shown if one.raw is not None for step in one.raw.steps()})
    return [(steps[index], f"{steps[index]:,}") for index in spread(len(steps), limit)]


def _slider(
    stops: Sequence[tuple[int, str]], frames: Sequence[list[dict[str, Any]]], moving: list[int]
) -> dict[str, Any]:
    steps = [
        {
            "label": label,
            "method": "restyle",
            "args": [{name: [values[name] for values in frame] for name in ("y", "customdata")}, moving],
        }
        for (_, label), frame in zip(stops, frames, strict=True)
    ]
    return {
        "active": len(steps) - 1,
        "currentvalue": {"prefix": "step ", "xanchor": "left"},
        "pad": {"t": 44, "b": 4},
        "ticklen": 3,
        "minorticklen": 0,
        "steps": steps,
    }


def _noun(shown: Sequence[_Shown]) -> str:
    return " or ".join(dict.fromkeys(one.run.level for one in shown))


def _sentence(shown: Sequence[_Shown], *, several: bool) -> str:
    corrected = any(one.corrected is not None for one in shown)
    if not corrected:
        return f"Share of the raw ratios in each bin, on a logarithmic scale; nothing is corrected. {_OUTER}"
    lines = "solid lines are raw, dotted ones corrected" if several else "bars are raw, the line is corrected"
    return (
        f"Share of the ratios in each bin, on a logarithmic scale: {lines}, and what masking removes is missing "
        f"from the corrected. {_OUTER}"
    )
