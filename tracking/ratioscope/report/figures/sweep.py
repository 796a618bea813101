"""What another threshold would have done, as a figure: every cap at either level, truncated or masked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ratioscope.report.figures.panel import Absent, Panel, link_of
from ratioscope.report.figures.style import BOUND, COLORS, base_layout, faint
from ratioscope.state.histogram import BOUNDARIES
from ratioscope.sweep.grid import parse_bounds
from ratioscope.sweep.recommend import CAPS, MODES, POINTS, advise, grid, pool_of
from ratioscope.text import number, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.correction.rule import Correction
    from ratioscope.runs.timeline import Timeline
    from ratioscope.sweep.bounds import Bounded
    from ratioscope.sweep.outcome import Outcome
    from ratioscope.sweep.recommend import SweptRun

KEY, TITLE = "thresholds", "Other caps"
LEAST, MOST = 1.1, 100.0
"""Ends of the axis; it ends at 5 where no ratio is larger."""
EVERY = 4
"""Of the caps whose logarithm is a bucket's edge, where fractions are exact, one in so many is drawn."""

_ROWS = (("modified", "modified"), ("mean", "mean weight"), ("ess", "ESS / n"))


def advice_of(pooled: SweptRun) -> str:
    """The recommendation that ``ratioscope sweep`` gives without options."""
    mode = pooled.mode_rule.mode if pooled.mode_rule else MODES[0]
    return advise([pooled.outcome(rule) for rule in _swept(pooled, mode)]).text


def rules_panel(timeline: Timeline) -> Panel | Absent:
    """Modified fraction, mean weight and effective sample size over the cap, one mode shown at a time."""
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
    end = _end(pooled)
    shown = pooled.mode_rule.mode if pooled.mode_rule else MODES[0]
    traces = [trace for mode in MODES for trace in _traces(pooled, mode, end, visible=mode == shown)]
    n = max(pooled.view.counts["token/n"], pooled.view.counts["sequence/n"])
    floor = max(-6.0, math.floor(math.log10(1.0 / n)))
    layout = base_layout(
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
            "tickvals": [10.0**exponent for exponent in range(0, int(floor) - 1, -2)],
            "ticktext": [f"{100 * 10.0**exponent:g} %" for exponent in range(0, int(floor) - 1, -2)],
        },
        yaxis2={"domain": [0.36, 0.64], "title": {"text": "mean weight"}},
        yaxis3={"domain": [0.0, 0.3], "title": {"text": "ESS / n"}, "tickformat": ".4~%"},
    )
    metrics = ("ratioscope/modified/fraction", "ratioscope/ess/corrected")
    sentence = (
        "What another upper bound would have changed, the mean weight it would have left, and the effective sample "
        "size of these weights, over all windows of training. Points are the caps of ratioscope sweep, bars and bands "
        "hold the true number, and the diamond is the run's own rule as the training counted it."
    )
    note = ""
    if pooled.mode_rule is not None and pooled.mode_rule.lower is not None:
        note = f"At the level of the run's rule its lower bound {pooled.mode_rule.lower:g} is kept."
    return Panel(KEY, TITLE, sentence, link_of(KEY), go.Figure(traces, layout), metrics, note, tall=True)


def _swept(pooled: SweptRun, mode: str) -> list[Correction]:
    """The rules of a mode that ``ratioscope sweep`` tries."""
    own = pooled.mode_rule
    like = own if own is not None and own.level == mode.partition("_")[0] else None
    return grid(mode, lowers=[like.lower if like else None], uppers=parse_bounds(CAPS, POINTS), own=own)


def _end(pooled: SweptRun) -> float:
    largest = max(pooled.view.maximum(level) or 0.0 for level in ("token", "sequence"))
    return min(MOST, max(5.0, math.exp(min(largest, 10.0))))


def _traces(pooled: SweptRun, mode: str, end: float, *, visible: bool) -> list[dict[str, Any]]:
    """Band, line, points and the run's own rule, of each of the three numbers."""
    ours = pooled.mode_rule
    swept = _swept(pooled, mode)
    lower = next(iter(swept)).lower
    edges = BOUNDARIES[(math.log(LEAST) <= BOUNDARIES) & (math.log(end) >= BOUNDARIES)].tolist()
    caps = [math.exp(edge) for edge in (*edges[:-1:EVERY], edges[-1])]
    line = [pooled.outcome(rule) for rule in grid(mode, lowers=[lower], uppers=caps)]
    points = [pooled.outcome(rule) for rule in swept if rule.upper is not None and rule != ours]
    own = [pooled.outcome(ours)] if ours in swept and ours and ours.upper else []
    traces = []
    for at, (name, label) in enumerate(_ROWS, start=1):
        common = {
            "type": "scatter",
            "visible": visible,
            "yaxis": f"y{at if at > 1 else ''}",
            "meta": {"choice": mode.replace("_", " "), "number": name},
        }
        color = COLORS[at - 1]
        for side, fill in (("low", None), ("high", "tonexty")):
            curve = {"x": [one.correction.upper for one in line], "y": [_end_of(one, name, side) for one in line]}
            look = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "fillcolor": faint(color, 0.22)}
            traces.append({**common, **curve, **look, "fill": fill})
        for found, look in (
            (line, {"mode": "lines", "line": {"color": color, "width": 1.6}}),
            (points, {"mode": "markers", "marker": {"color": color, "size": 6}}),
            (own, {"mode": "markers", "marker": {"color": BOUND, "size": 11, "symbol": "diamond"}}),
        ):
            if found:
                traces.append({**common, **look, **_drawn(found, name, label, own=found is own)})
    return traces


def _drawn(outcomes: Sequence[Outcome], name: str, label: str, *, own: bool) -> dict[str, Any]:
    numbers: list[Bounded | None] = [getattr(one, name) for one in outcomes]
    written = percent if name != "mean" else number
    told = [
        "no data"
        if one is None
        else written(one.value) + (f", {written(one.low)} to {written(one.high)}" * _inexact(one))
        for one in numbers
    ]
    title = "this run's rule, " if own else ""
    return {
        "x": [one.correction.upper for one in outcomes],
        "y": [None if one is None else one.value for one in numbers],
        "customdata": told,
        "hovertemplate": f"{title}cap %{{x:.4~g}}<br>{label} %{{customdata}}<extra></extra>",
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [0.0 if one is None else one.high - one.value for one in numbers],
            "arrayminus": [0.0 if one is None else one.value - one.low for one in numbers],
            "thickness": 1,
            "width": 3,
        }
        if len(outcomes) <= 2 * POINTS
        else None,
    }


def _inexact(one: Bounded) -> bool:
    return one.error > 1e-9 * abs(one.value)


def _end_of(outcome: Outcome, name: str, side: str) -> float | None:
    found = getattr(outcome, name)
    return None if found is None else getattr(found, side)
