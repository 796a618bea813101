"""Verdict, key figures and exclusions of a run, in words and numbers.

The verdict describes; only its line on the cause repeats the diagnosis. All of it is about windows of training;
evaluations appear in the figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ratioscope.diagnosis.read import diagnosis_of
from ratioscope.report.verdict import cause
from ratioscope.report.verdict.line import Line, Tone, curve, total
from ratioscope.report.verdict.sentences import sentences
from ratioscope.runs.foreign import adopt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.diagnosis import Diagnosis
    from ratioscope.runs.timeline import Timeline

__all__ = ["EXCLUDED", "KEY_FIGURES", "Exclusion", "KeyFigure", "Line", "Tone", "excluded", "key_figures", "verdict"]

KEY_FIGURES = {
    "ratioscope/modified/fraction": "Modified fraction",
    "ratioscope/modified/low": "Modified, below the lower bound",
    "ratioscope/modified/high": "Modified, above the upper bound",
    "ratioscope/log_ratio/abs_mean": "Mean |log-ratio|, nats",
    "ratioscope/outside/0.9_1.1": "Token ratios outside 0.9 to 1.1",
    "sampling/raw_importance_sampling_ratio/min": "Raw ratio, smallest",
    "ratioscope/raw/p01": "Raw ratio, p01",
    "ratioscope/raw/p50": "Raw ratio, p50",
    "ratioscope/raw/p99": "Raw ratio, p99",
    "sampling/raw_importance_sampling_ratio/max": "Raw ratio, largest",
    "ratioscope/ess/raw": "ESS before the rule",
    "ratioscope/ess/corrected": "ESS after the rule",
    "ratioscope/kl/k1": "KL, k1, nats",
    "ratioscope/kl/k3": "KL, k3, nats",
    "ratioscope/tokens/invalid": "Tokens left out",
    "ratioscope/rows/empty": "Completions left out",
}
"""Label of each key figure, by key."""

EXCLUDED = {
    "missing": ("tokens without a log-probability", "a ratio needs both log-probabilities"),
    "nan": ("tokens with a NaN log-probability", "NaN is not a probability"),
    "inf": ("tokens with an infinite log-probability or difference", "the ratio would not be finite"),
    "positive_logp": ("tokens with a rollout log-probability above 0", "a probability cannot exceed 1"),
    "rows_empty": ("completions without a valid token", "an empty completion has no ratio, not a ratio of 1"),
}
"""Description and reason of each exclusion, by the name of its count."""


class Exclusion(NamedTuple):
    """Number of tokens or completions that no statistic includes, and the reason."""

    what: str
    total: int
    why: str


@dataclass(frozen=True)
class KeyFigure:
    """A statistic over a run; every value is None if it was never measured.

    Attributes:
        label: short description.
        key: full key.
        latest: value of the newest window that has the statistic.
        lowest: smallest value of all windows.
        median: median of all windows.
        highest: largest value of all windows.
        origin: third-party name that the statistic was read from; empty for a statistic of ratioscope.
    """

    label: str
    key: str
    latest: float | None
    lowest: float | None
    median: float | None
    highest: float | None
    origin: str = ""

    @property
    def full_label(self) -> str:
        """The label, followed by the third-party name if there is one."""
        return f"{self.label}, as {self.origin}" if self.origin else self.label


class ForeignFigure(NamedTuple):
    """A statistic of a third-party log.

    Attributes:
        key: the third-party key.
        values: latest, lowest, median and highest value.
        ours: key of the equal or similar statistic of ratioscope; empty if there is none.
        explanation: meaning of the statistic, in words.
    """

    key: str
    values: tuple[float, float, float, float]
    ours: str
    explanation: str


def verdict(timeline: Timeline, diagnosis: Diagnosis | None = None) -> list[Line]:
    """Returns all sentences about a run, the gravest first; among equals the cause comes first.

    Args:
        timeline: the run.
        diagnosis: diagnosis of the run; None to make it here.
    """
    lines = list(sentences(timeline))
    if timeline.windows.get("train"):
        lines.insert(0, cause.line(diagnosis_of(timeline) if diagnosis is None else diagnosis))
    order = ("bad", "warning", "note", "good")
    return sorted(lines, key=lambda line: order.index(line.level))


def key_figures(timeline: Timeline) -> list[KeyFigure]:
    """Returns one key figure for each of :data:`KEY_FIGURES`."""
    return [_key_figure(timeline, key, label) for key, label in KEY_FIGURES.items()]


def common_label(figures: Sequence[KeyFigure]) -> str:
    """Returns the label of one statistic of several runs, with all third-party names that it was read from."""
    origins = dict.fromkeys(figure.origin for figure in figures if figure.origin)
    return f"{figures[0].label} (in another trainer's log: {', '.join(origins)})" if origins else figures[0].label


def _key_figure(timeline: Timeline, key: str, label: str) -> KeyFigure:
    statistic = curve(timeline, key)
    if statistic is None:
        return KeyFigure(label, key, None, None, None, None)
    values = statistic.values
    return KeyFigure(label, key, values[-1], min(values), median(values), max(values), statistic.origin)


def excluded(timeline: Timeline) -> list[Exclusion]:
    """Returns every exclusion that occurred in the run, with its total."""
    exclusions = (Exclusion(what, total(timeline, name), why) for name, (what, why) in EXCLUDED.items())
    return [exclusion for exclusion in exclusions if exclusion.total]


def foreign_figures(timeline: Timeline) -> list[ForeignFigure]:
    """Returns the statistics that were read from a third-party log; none for a run of ratioscope."""
    figures = []
    for key, name in timeline.foreign.items():
        if statistic := curve(timeline, key) or curve(timeline, f"{adopt.EVAL}{key}"):
            values = (statistic.values[-1], min(statistic.values), median(statistic.values), max(statistic.values))
            figures.append(ForeignFigure(key, values, name.ours, adopt.sentence(name)))
    return figures
