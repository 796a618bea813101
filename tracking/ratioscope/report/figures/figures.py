"""All figures of a report, of one run or of several runs in the same axes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ratioscope.extras import require
from ratioscope.metrics.metric import PREFIX
from ratioscope.report.figures.heat import heat_panels
from ratioscope.report.figures.histogram import histogram_panel
from ratioscope.report.figures.lines import Chart, Stat, line_panel
from ratioscope.report.figures.panel import Absent, Panel
from ratioscope.report.figures.style import COLORS, GRAY, run_styles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.report.figures.style import RunStyle
    from ratioscope.runs.timeline import Timeline

__all__ = ["Absent", "Panel", "drawn", "panels"]

BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = COLORS
_RAW = "sampling/raw_importance_sampling_ratio/"
_SHARE = (("tickformat", ".4~%"), ("rangemode", "tozero"))


def _fan(prefix: str, *, ends: bool, instead: str = "") -> tuple[Stat, ...]:
    """Returns quantiles from the largest to the smallest, because each fill reaches up to the line before."""
    looks = {"p99": (0.0, 0.9), "p95": (0.16, 0.9), "p50": (0.32, 1.9), "p05": (0.32, 0.9), "p01": (0.16, 0.9)}
    stats = [
        Stat(
            f"{prefix}{name}",
            name,
            BLUE,
            several="solid" if name == "p50" else "dot",
            width=width,
            fill=fill,
            instead=f"{instead}{name}" if instead and name in {"p01", "p50", "p99"} else "",
            alone=name in {"p05", "p95"},
            evaluated=name == "p50",
        )
        for name, (fill, width) in looks.items()
    ]
    if not ends:
        return tuple(stats)
    largest = Stat(f"{_RAW}max", "largest", GRAY, "dot", width=1.0, alone=True, evaluated=False)
    smallest = Stat(f"{_RAW}min", "smallest", GRAY, "dot", width=1.0, alone=True, evaluated=False)
    return (largest, *stats, smallest)


FAN = Chart(
    "fan",
    "Raw ratio",
    "Quantiles of the ratio before the correction, at the level of the mode, on a logarithmic axis.",
    _fan(f"{PREFIX}{{level}}/raw/", ends=True, instead=f"{PREFIX}raw/"),
    "raw ratio",
    log=True,
    bounded=True,
)
MODIFIED = Chart(
    "modified",
    "Modified fraction",
    "Share of the ratios that the correction changes, those below the lower bound and those above the upper one.",
    (
        Stat(f"{PREFIX}modified/high", "above upper", VERMILION),
        Stat(f"{PREFIX}modified/low", "below lower", BLUE, several="dot"),
    ),
    "share of the ratios",
    ".3~%",
    _SHARE,
)
ESS = Chart(
    "ess",
    "Effective sample size",
    "Effective share of the sample when weighted by the ratios, before and after the correction; 100 % if the "
    "engines agree.",
    (
        Stat(f"{PREFIX}ess/raw", "raw", BLUE, several="dot"),
        Stat(f"{PREFIX}ess/corrected", "corrected", VERMILION),
    ),
    "ESS / n",
    ".4~%",
    (("tickformat", ".4~%"),),
)
KL = Chart(
    "kl",
    "KL divergence",
    "Two estimates of KL(rollout || trainer) per token, in nats: k1 is unbiased and noisy, k3 never negative.",
    (Stat(f"{PREFIX}kl/k3", "k3", VERMILION), Stat(f"{PREFIX}kl/k1", "k1", BLUE, several="dot", width=1.2)),
    "nats",
    axis=(("exponentformat", "power"),),
)
SEQUENCE = Chart(
    "sequence",
    "Sequence log-ratio",
    "Mean and standard deviation over completions of the summed log-ratio.",
    (
        Stat(f"{PREFIX}sequence/log_ratio/std", "standard deviation", VERMILION),
        Stat(f"{PREFIX}sequence/log_ratio/mean", "mean", BLUE, several="dot"),
    ),
    "nats",
    axis=(("exponentformat", "power"),),
)
SEQUENCE_RATIO = Chart(
    "sequence-ratio",
    "Sequence ratio",
    "Quantiles of the ratio of whole completions, the product of their tokens' ratios.",
    _fan(f"{PREFIX}sequence/raw/", ends=False),
    "sequence ratio",
    log=True,
)
SEQUENCE_SHARE = Chart(
    "sequence-share",
    "Largest sequence weight",
    "Share of the window's total weight that belongs to its heaviest completion.",
    (Stat(f"{PREFIX}sequence/max_weight_share", "largest share", BLUE),),
    "share of the weight",
    ".3~%",
    _SHARE,
)
EXCLUDED = Chart(
    "excluded",
    "Excluded share",
    "Share of the masked-in tokens without a usable log-probability, and of the completions without a valid token.",
    (
        Stat(f"{PREFIX}tokens/invalid", "invalid tokens", VERMILION),
        Stat(f"{PREFIX}rows/empty", "empty completions", BLUE, several="dot"),
    ),
    "share",
    ".3~%",
    _SHARE,
)
COUNTS = Chart(
    "excluded-counts",
    "Excluded by reason",
    "Number of tokens and completions of each window that all statistics leave out, by reason.",
    (
        Stat(f"{PREFIX}counts/nan", "NaN", VERMILION),
        Stat(f"{PREFIX}counts/inf", "infinite", PINK, several="dot"),
        Stat(f"{PREFIX}counts/missing", "missing", ORANGE, several="dash"),
        Stat(f"{PREFIX}counts/positive_logp", "rollout logp above 0", GREEN, several="dashdot"),
        Stat(f"{PREFIX}counts/rows_empty", "empty completions", BLUE, several="longdash"),
        Stat(f"{PREFIX}counts/overflow", "ratio overflows float32", SKY, several="solid"),
    ),
    "tokens or completions",
    ",d",
    (("rangemode", "tozero"), ("tickformat", ",d")),
)


def panels(timelines: Sequence[Timeline]) -> list[Panel]:
    """Returns the figures that can be drawn, in the order of the page.

    Args:
        timelines: one run, or several runs in the same axes; their heat maps are placed side by side.

    Raises:
        ImportError: if plotly is missing.
    """
    return [entry for entry in drawn(timelines) if isinstance(entry, Panel)]


def drawn(timelines: Sequence[Timeline]) -> list[Panel | Absent]:
    """Returns all figures, with the reason in place of each one that cannot be drawn.

    Raises:
        ImportError: if plotly is missing.
    """
    require("plotly")
    runs = run_styles(timelines)
    entries: list[Panel | Absent] = heat_panels(runs, "token")
    if any(run.level == "sequence" for run in runs):
        entries += heat_panels(runs, "sequence")
    entries += [line_panel(FAN, runs), line_panel(MODIFIED, runs), histogram_panel(runs)]
    entries += [line_panel(chart, runs) for chart in (ESS, KL, SEQUENCE)]
    if any(run.level == "token" for run in runs):  # for sequence modes alone, the fan shows these ratios
        entries.append(line_panel(SEQUENCE_RATIO, runs))
    entries.append(line_panel(SEQUENCE_SHARE, runs))
    return entries + [_nonzero_panel(chart, runs) for chart in (EXCLUDED, COUNTS)]


def _nonzero_panel(chart: Chart, runs: Sequence[RunStyle]) -> Panel | Absent:
    """Draws the statistics of a chart that are not 0 in every window."""
    curves = {
        stat: [run.timeline.scalars.get(prefix + stat.key) for run in runs for prefix in ("", "eval/")]
        for stat in chart.stats
    }
    if not any(curve for group in curves.values() for curve in group):
        return line_panel(chart, runs)  # which names what is missing
    nonzero = tuple(stat for stat, group in curves.items() if any(curve and any(curve.values) for curve in group))
    if not nonzero:
        return Absent(chart.key, chart.title, "Nothing was left out: every one of these is 0 in every window.")
    return line_panel(replace(chart, stats=nonzero), runs)
