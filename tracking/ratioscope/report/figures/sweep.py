"""Figure of the sweep: outcome of every cap at either level, truncated or masked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratioscope.correction.bounds import MODES
from ratioscope.report.figures.panel import Absent, Panel, link_of
from ratioscope.report.figures.style import BOUND, COLORS, base_layout, faint
from ratioscope.state.histogram import BOUNDARIES
from ratioscope.sweep.grid import CAPS, POINTS, geomspace
from ratioscope.sweep.recommend import advise, grid, pool_of
from ratioscope.text import number, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ratioscope.correction.bounds import Correction
    from ratioscope.runs.timeline import Timeline
    from ratioscope.sweep.bounds import Bounded
    from ratioscope.sweep.outcome import Outcome
    from ratioscope.sweep.recommend import SweptRun

KEY, TITLE = "thresholds", "Other caps"
LEAST, MOST = 1.1, 100.0
"""Ends of the axis; it ends at 5 if no ratio is larger."""
EDGE_STRIDE = 4
"""One of so many bucket edges is a point of the line; at an edge the modified fraction is exact."""

_SENTENCE = (
    "Share of the ratios that another upper bound would have changed, mean weight after it, and effective sample size "
    "of these weights, over all windows of training. Points are the caps of ratioscope sweep, bars and bands hold the "
    "true number, and the diamond is the run's own rule as the training counted it."
)
_NUMBERS = (("modified", "modified"), ("mean", "mean weight"), ("ess", "ESS / n"))


def advice_of(pooled: SweptRun) -> str:
    """Returns the recommendation of ``ratioscope sweep`` without options."""
    return advise([pooled.outcome(rule) for rule in _swept(pooled, _mode(pooled))]).text


def sweep_panel(timeline: Timeline) -> Panel | Absent:
    """Draws modified fraction, mean weight and effective sample size over the cap, one mode at a time."""
    import plotly.graph_objects as go

    pooled = pool_of(timeline.pooled) if timeline.pooled is not None else None
    if pooled is None or not pooled.view.counts["token/n"]:
        why = (
            "No window holds a valid token."
            if timeline.pooled is not None
            else "A tracker has scalars and even bins only, from which no other threshold follows. On the machine that "
            "has the run's output directory: ratioscope report PATH, or ratioscope sweep PATH."
        )
        return Absent(KEY, TITLE, why)
    largest = max(pooled.view.maximum(level) or 0.0 for level in ("token", "sequence"))
    end = min(MOST, max(5.0, math.exp(min(largest, 10.0))))
    curves = [curve for mode in MODES for curve in _curves(pooled, mode, end)]
    traces = [trace for curve in curves for trace in curve.traces(visible=curve.mode == _mode(pooled))]
    metrics = ("ratioscope/modified/fraction", "ratioscope/ess/corrected")
    own, note = pooled.mode_rule, ""
    if own is not None and own.lower is not None:
        note = f"At the level of the run's rule its lower bound {own.lower:g} is kept."
    figure = go.Figure(traces, _layout(pooled, end))
    return Panel(KEY, TITLE, _SENTENCE, link_of(KEY), figure, metrics, note, tall=True)


def _layout(pooled: SweptRun, end: float) -> dict[str, Any]:
    n = max(pooled.view.counts["token/n"], pooled.view.counts["sequence/n"])
    floor = max(-6.0, math.floor(math.log10(1.0 / n)))  # the smallest fraction that n ratios can have
    exponents = range(0, int(floor) - 1, -2)
    return base_layout(
        showlegend=False,
        hovermode="closest",
        grid={"rows": 3, "columns": 1, "subplots": [["xy"], ["xy2"], ["xy3"]], "roworder": "top to bottom"},
        xaxis={
            "title": {"text": "cap, the largest weight that is kept"},
            "type": "log",
            "range": [math.log10(LEAST) - 0.01, math.log10(end) + 0.01],
            "tickvals": [value for value in (1.1, 2, 5, 10, 20, 50, 100) if value <= end * 1.01],
            "tickangle": 0,
        },
        yaxis={
            "domain": [0.7, 1.0],
            "title": {"text": "modified"},
            "type": "log",
            "range": [floor, 0.05],
            "tickvals": [10.0**exponent for exponent in exponents],
            "ticktext": [f"{100 * 10.0**exponent:g} %" for exponent in exponents],
        },
        yaxis2={"domain": [0.36, 0.64], "title": {"text": "mean weight"}},
        yaxis3={"domain": [0.0, 0.3], "title": {"text": "ESS / n"}, "tickformat": ".4~%"},
    )


def _mode(pooled: SweptRun) -> str:
    return pooled.mode_rule.mode if pooled.mode_rule else MODES[0]


def _swept(pooled: SweptRun, mode: str) -> list[Correction]:
    """Returns the rules of a mode that ``ratioscope sweep`` tries by default."""
    own = pooled.mode_rule
    same_level = own if own is not None and own.level == mode.partition("_")[0] else None
    return grid(mode, lowers=[same_level.lower if same_level else None], uppers=geomspace(*CAPS, POINTS), own=own)


@dataclass(frozen=True)
class _Curve:
    """One of the three numbers over the cap, in one mode.

    Attributes:
        mode: the mode.
        row: 1 to 3, from the top.
        name: attribute of an :class:`Outcome`.
        label: on hover.
        line: outcomes at bucket edges, for the line and its band.
        points: outcomes of ``ratioscope sweep``.
        own: outcome of the run's own rule; empty if another mode or no cap.
    """

    mode: str
    row: int
    name: str
    label: str
    line: Sequence[Outcome]
    points: Sequence[Outcome]
    own: Sequence[Outcome]

    def traces(self, *, visible: bool) -> Iterator[dict[str, Any]]:
        """Yields the band, the line, the points and the run's own rule."""
        color = COLORS[self.row - 1]
        common = {
            "type": "scatter",
            "visible": visible,
            "yaxis": f"y{self.row if self.row > 1 else ''}",
            "meta": {"choice": self.mode.replace("_", " "), "number": self.name},
        }
        caps = [outcome.correction.upper for outcome in self.line]
        for side, fill in (("low", None), ("high", "tonexty")):
            ends = [None if bounded is None else getattr(bounded, side) for bounded in self._numbers(self.line)]
            look = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "fillcolor": faint(color, 0.22)}
            yield {**common, "x": caps, "y": ends, **look, "fill": fill}
        yield {**common, "mode": "lines", "line": {"color": color, "width": 1.6}, **self._values(self.line)}
        if self.points:
            yield {**common, "mode": "markers", "marker": {"color": color, "size": 6}, **self._values(self.points)}
        if self.own:
            marker = {"color": BOUND, "size": 11, "symbol": "diamond"}
            yield {**common, "mode": "markers", "marker": marker, **self._values(self.own, "this run's rule, ")}

    def _numbers(self, outcomes: Sequence[Outcome]) -> list[Bounded | None]:
        return [getattr(outcome, self.name) for outcome in outcomes]

    def _values(self, outcomes: Sequence[Outcome], title: str = "") -> dict[str, Any]:
        """Returns positions, hover texts and, for few points, error bars."""
        numbers = self._numbers(outcomes)
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [0.0 if bounded is None else bounded.high - bounded.value for bounded in numbers],
            "arrayminus": [0.0 if bounded is None else bounded.value - bounded.low for bounded in numbers],
            "thickness": 1,
            "width": 3,
        }
        return {
            "x": [outcome.correction.upper for outcome in outcomes],
            "y": [None if bounded is None else bounded.value for bounded in numbers],
            "customdata": [_text(bounded, number if self.name == "mean" else percent) for bounded in numbers],
            "hovertemplate": f"{title}cap %{{x:.4~g}}<br>{self.label} %{{customdata}}<extra></extra>",
            "error_y": bars if len(outcomes) <= 2 * POINTS else None,
        }


def _curves(pooled: SweptRun, mode: str, end: float) -> list[_Curve]:
    """Computes the outcomes of one mode, and returns the curve of each number."""
    own = pooled.mode_rule
    swept = _swept(pooled, mode)
    # At bucket edges the modified fraction has no error, so the line of the first number has no band.
    edges = BOUNDARIES[(math.log(LEAST) <= BOUNDARIES) & (math.log(end) >= BOUNDARIES)].tolist()
    caps = [math.exp(edge) for edge in (*edges[:-1:EDGE_STRIDE], edges[-1])]
    line = [pooled.outcome(rule) for rule in grid(mode, lowers=[swept[0].lower], uppers=caps)]
    points = [pooled.outcome(rule) for rule in swept if rule.upper is not None and rule != own]
    diamond = [pooled.outcome(own)] if own in swept and own and own.upper else []
    rows = enumerate(_NUMBERS, start=1)
    return [_Curve(mode, row, name, label, line, points, diamond) for row, (name, label) in rows]


def _text(bounded: Bounded | None, written: Callable[[float], str]) -> str:
    """Writes a number, followed by its interval if it is not exact."""
    if bounded is None:
        return "no data"
    exact = bounded.error <= 1e-9 * abs(bounded.value)
    return written(bounded.value) + ("" if exact else f", {written(bounded.low)} to {written(bounded.high)}")
