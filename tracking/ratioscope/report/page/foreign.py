"""Runs that ratioscope did not log: their numbers as a table, and the figures of what there is."""

from __future__ import annotations

import html
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from ratioscope.report.figures.lines import Chart, Stat, line_panel
from ratioscope.report.figures.panel import Absent, Panel
from ratioscope.report.figures.style import COLORS, GRAY, runs_of
from ratioscope.report.page import parts
from ratioscope.report.verdict.line import curve
from ratioscope.runs.foreign import adopt
from ratioscope.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.runs.timeline import Timeline

NOTICE = (
    "These are another trainer's numbers. There are no histograms, and what is not in the log is not drawn; whatever "
    "stands in for a statistic of ratioscope's says what it was read from."
)
"""Above the figures of such a run."""

_P = "ratioscope/"
_BLUE, _VERMILION, *_ = COLORS
_CHARTS = (
    Chart(
        "apart",
        "Distance between the engines",
        "Absolute log-ratio of tokens, mean and largest, in nats, on a logarithmic axis.",
        (
            Stat(f"{_P}log_ratio/abs_mean", "mean", _BLUE),
            Stat(f"{_P}token/log_ratio/abs_max", "largest", _VERMILION, several="dot", width=1.2),
        ),
        "nats",
        log=True,
    ),
    Chart(
        "after-the-cut",
        "Ratio after the cut",
        "Importance weights as the loss sees them, when the correction has truncated or masked them already.",
        (
            Stat(f"{_P}corrected/max", "largest", GRAY, "dot", several="dot", width=1.2),
            Stat(f"{_P}corrected/mean", "mean", _BLUE),
            Stat(f"{_P}corrected/min", "smallest", GRAY, "dot", several="dash", width=1.2),
        ),
        "weight",
        axis=(("rangemode", "tozero"),),
    ),
    Chart(
        "perplexity",
        "Perplexity",
        "Of the sampled tokens, under the trainer and under the engine that sampled them.",
        (
            Stat(f"{_P}perplexity/train", "trainer", _BLUE),
            Stat(f"{_P}perplexity/rollout", "rollout", _VERMILION, several="dot"),
        ),
        "perplexity",
    ),
    Chart(
        "probability",
        "Probability difference",
        "Mean absolute difference between the two engines' probabilities of the sampled tokens.",
        (Stat(f"{_P}probability/abs_mean", "mean", _BLUE),),
        "probability",
        axis=(("rangemode", "tozero"),),
    ),
)


def table(timeline: Timeline) -> str:
    """The numbers of the log as it has them, and what they are in our terms, as HTML; empty for a run of our own."""
    rows = []
    for key, name in timeline.foreign.items():
        found = curve(timeline, key) or curve(timeline, f"{adopt.EVAL}{key}")
        if found is None:
            continue
        values = (found.values[-1], min(found.values), median(found.values), max(found.values))
        ours = f"<code>{html.escape(name.ours)}</code> " if name.ours else ""
        told = f"{ours}{parts.text(adopt.sentence(name), 400)}"
        rows.append((f"<code>{parts.text(key)}</code>", *map(number, values), told))
    if not rows:
        return ""
    head = ("In the log", "Latest", "Lowest", "Median", "Highest", "In our terms")
    return "<h2>What was read</h2>" + parts.table(head, rows, kinds=("number",) * 4 + ("setting",))


def entries(timelines: Sequence[Timeline], usual: Sequence[Panel | Absent]) -> list[Panel | Absent]:
    """The figures that can be drawn of runs of which one at least is somebody else's.

    Args:
        timelines: the runs.
        usual: the figures of our own runs; what cannot be drawn stays only where there is such a run.
    """
    runs = runs_of(timelines)
    found = [line_panel(chart, runs) for chart in _CHARTS]
    ours = any(not timeline.foreign for timeline in timelines)
    return [_noted(entry, timelines) for entry in found if isinstance(entry, Panel)] + [
        _noted(entry, timelines) if isinstance(entry, Panel) else entry
        for entry in usual
        if ours or isinstance(entry, Panel)
    ]


def _noted(panel: Panel, timelines: Sequence[Timeline]) -> Panel:
    """A figure with a word on what its statistics were read from."""
    read = dict.fromkeys(adopt.read_as(timeline, key) for timeline in timelines for key in panel.metrics)
    told = "; ".join(filter(None, read))
    return replace(panel, note=f"{panel.note} Read from {told}.".strip()) if told else panel
