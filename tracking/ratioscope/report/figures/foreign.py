"""Figures of third-party runs, whose logs have other statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ratioscope.report.figures.lines import Chart, Stat, line_panel
from ratioscope.report.figures.panel import Absent, Panel
from ratioscope.report.figures.style import COLORS, GRAY, run_styles
from ratioscope.runs.foreign import adopt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.runs.timeline import Timeline

NOTICE = (
    "These are another trainer's numbers. There are no histograms, and statistics that are not in the log are not "
    "drawn; a statistic that stands in for one of ratioscope's names the number that it was read from."
)
"""Sentence above the figures of a third-party run."""

_BLUE, _VERMILION, *_ = COLORS
_CHARTS = (
    Chart(
        "apart",
        "Mismatch between the engines",
        "Absolute log-ratio of tokens, mean and largest, in nats, on a logarithmic axis.",
        (
            Stat("ratioscope/log_ratio/abs_mean", "mean", _BLUE),
            Stat("ratioscope/token/log_ratio/abs_max", "largest", _VERMILION, several="dot", width=1.2),
        ),
        "nats",
        log=True,
    ),
    Chart(
        "after-the-cut",
        "Ratio after the cut",
        "Importance weights in the loss, where the correction has truncated or masked them already.",
        (
            Stat("ratioscope/corrected/max", "largest", GRAY, "dot", several="dot", width=1.2),
            Stat("ratioscope/corrected/mean", "mean", _BLUE),
            Stat("ratioscope/corrected/min", "smallest", GRAY, "dot", several="dash", width=1.2),
        ),
        "weight",
        axis=(("rangemode", "tozero"),),
    ),
    Chart(
        "perplexity",
        "Perplexity",
        "Perplexity of the sampled tokens under the trainer, and under the engine that sampled them.",
        (
            Stat("ratioscope/perplexity/train", "trainer", _BLUE),
            Stat("ratioscope/perplexity/rollout", "rollout", _VERMILION, several="dot"),
        ),
        "perplexity",
    ),
    Chart(
        "probability",
        "Probability difference",
        "Mean absolute difference between the two engines' probabilities of the sampled tokens.",
        (Stat("ratioscope/probability/abs_mean", "mean", _BLUE),),
        "probability",
        axis=(("rangemode", "tozero"),),
    ),
)


def foreign_entries(timelines: Sequence[Timeline], usual: Sequence[Panel | Absent]) -> list[Panel | Absent]:
    """Returns the figures of runs of which at least one is third-party.

    Args:
        timelines: the runs.
        usual: figures of ratioscope's own runs; missing ones are kept only if one of the runs is ratioscope's own.
    """
    runs = run_styles(timelines)
    own = any(not timeline.foreign for timeline in timelines)
    panels = [panel for chart in _CHARTS if isinstance(panel := line_panel(chart, runs), Panel)]
    entries = [*panels, *(entry for entry in usual if own or isinstance(entry, Panel))]
    return [_noted(entry, timelines) if isinstance(entry, Panel) else entry for entry in entries]


def _noted(panel: Panel, timelines: Sequence[Timeline]) -> Panel:
    """Adds the sources of a figure's statistics to its note."""
    read = dict.fromkeys(adopt.read_as(timeline, key) for timeline in timelines for key in panel.metrics)
    sources = "; ".join(filter(None, read))
    return replace(panel, note=f"{panel.note} Read from {sources}.".strip()) if sources else panel
