"""What a report says in words and numbers: the verdict, the key figures, and what was left out.

A verdict says what is so; why is the diagnosis's to say, which one of its lines repeats. All of it is of the training;
evaluations have their curves.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ratioscope.diagnosis.read import diagnosis_of
from ratioscope.report.verdict import cause
from ratioscope.report.verdict.line import Level, Line, curve, total
from ratioscope.report.verdict.sentences import sentences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.diagnosis import Diagnosis
    from ratioscope.runs.timeline import Timeline

__all__ = ["EXCLUDED", "KEY_FIGURES", "KeyFigure", "Level", "Line", "excluded", "key_figures", "verdict"]

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
    "ratioscope/rows/empty": "Rows left out",
}
"""What is shown at a glance: label by key."""

EXCLUDED = {
    "missing": ("tokens without a log-probability", "no ratio follows from one alone"),
    "nan": ("tokens with a NaN log-probability", "NaN is no probability"),
    "inf": ("tokens with an infinite log-probability or difference", "no finite ratio follows"),
    "positive_logp": ("tokens with a rollout log-probability above 0", "no probability is above 1"),
    "rows_empty": ("rows without a valid token", "such a row has no ratio, not a ratio of 1"),
}
"""What is in no statistic, by the name of its count: what it is, and why it is left out."""


@dataclass(frozen=True)
class KeyFigure:
    """A statistic over a run; None where it was never measured.

    Attributes:
        label: what people call it.
        key: its full key.
        latest: of the newest window that has it.
        lowest: smallest over windows.
        median: over windows.
        highest: largest over windows.
        origin: another trainer's name that it was read from; empty if it is our own.
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
        """The label, with whose number it is unless it is our own."""
        return f"{self.label}, as {self.origin}" if self.origin else self.label


def verdict(timeline: Timeline, diagnosis: Diagnosis | None = None) -> list[Line]:
    """What can be said of a run, the gravest first; of equals, the cause first.

    Args:
        timeline: the run.
        diagnosis: of the run, where it is already made.
    """
    lines = list(sentences(timeline))
    if timeline.windows.get("train"):
        lines.insert(0, cause.line(diagnosis_of(timeline) if diagnosis is None else diagnosis))
    order = ("bad", "warning", "note", "good")
    return sorted(lines, key=lambda line: order.index(line.level))


def key_figures(timeline: Timeline) -> list[KeyFigure]:
    """The statistics that are shown at a glance, one for each of :data:`KEY_FIGURES`."""
    return [_key_figure(timeline, key, label) for key, label in KEY_FIGURES.items()]


def common_label(figures: Sequence[KeyFigure]) -> str:
    """The label of a statistic of several runs, with the names that it has in the logs of other trainers."""
    origins = dict.fromkeys(figure.origin for figure in figures if figure.origin)
    return f"{figures[0].label} (in another trainer's log: {', '.join(origins)})" if origins else figures[0].label


def _key_figure(timeline: Timeline, key: str, label: str) -> KeyFigure:
    found = curve(timeline, key)
    if found is None:
        return KeyFigure(label, key, None, None, None, None)
    values = found.values
    return KeyFigure(label, key, values[-1], min(values), median(values), max(values), found.origin)


def excluded(timeline: Timeline) -> list[tuple[str, int, str]]:
    """What was left out over the run: what, how many, and why; only what there was."""
    totals = {name: total(timeline, name) for name in EXCLUDED}
    return [(what, totals[name], why) for name, (what, why) in EXCLUDED.items() if totals[name]]
