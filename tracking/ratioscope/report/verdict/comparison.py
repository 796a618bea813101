"""Comparison of runs: key figures side by side, settings that differ, and the run that drifted first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from ratioscope.config.flatten import flatten
from ratioscope.report.verdict.line import MISMATCH, curve
from ratioscope.report.verdict.verdict import common_label, key_figures
from ratioscope.text import number, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.runs.timeline import Timeline

NOT_SET = "not set"
"""Text for a setting that a run does not have."""

LABEL_LENGTH = 40
"""Characters of a run's label."""

FIRST = 5
"""Windows of a run's beginning, and windows whose median must confirm a drift."""

DRIFTED = 2.0
"""Factor over a run's beginning that counts as drift."""


@dataclass(frozen=True)
class Difference:
    """One statistic of several runs.

    Attributes:
        label: short description.
        key: full key.
        values: one value per run, in the order of the runs; None where it was never measured.
    """

    label: str
    key: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class ConfigDifference:
    """A setting whose value differs between runs.

    Attributes:
        key: dotted name.
        values: one value per run as text, in the order of the runs; :data:`NOT_SET` where a run lacks the setting.
    """

    key: str
    values: tuple[str, ...]


def differences(timelines: Sequence[Timeline]) -> list[Difference]:
    """Returns key figures side by side, each as median and as newest value; figures without any value are left out."""
    rows = []
    for figures in zip(*map(key_figures, timelines), strict=True):
        label, key = common_label(figures), figures[0].key
        if any(figure.latest is not None for figure in figures):
            rows.append(Difference(f"{label}, median", key, tuple(figure.median for figure in figures)))
            rows.append(Difference(f"{label}, latest", key, tuple(figure.latest for figure in figures)))
    return rows


def config_differences(timelines: Sequence[Timeline]) -> list[ConfigDifference]:
    """Returns every setting that differs, sorted by name; nested settings have dotted names."""
    configs = [{key: _setting_text(value) for key, value in flatten(run.config).items()} for run in timelines]
    rows = {key: tuple(config.get(key, NOT_SET) for config in configs) for key in sorted(set().union(*configs))}
    return [ConfigDifference(key, values) for key, values in rows.items() if len(set(values)) > 1]


def _setting_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def first_to_drift(timelines: Sequence[Timeline]) -> str:
    """Names the run that drifted first, with step and size, in one sentence.

    A run's beginning is the median mean absolute log-ratio of its first five windows. The run has drifted from the
    first later window that lies above twice its beginning, if the median of the five windows from there on does so
    too; one odd window is no drift. Runs of fewer than ten windows are not judged.

    Steps are compared as they are, also between runs that log at different steps.
    """
    drifts, short = [], []
    for timeline, label in zip(timelines, labels(timelines), strict=True):
        mismatch = curve(timeline, MISMATCH)
        if mismatch is None or len(mismatch.values) < 2 * FIRST:
            short.append(label)
        elif (index := _drift(mismatch.values)) is not None:
            drifts.append((mismatch.steps[index], label, _drift_size(mismatch.values, index)))
    if len(short) == len(timelines):
        return f"Too few windows to say which run drifted first: each needs {2 * FIRST} that have valid tokens."
    unknown = f" Too few windows with a mean |log-ratio| to judge {', '.join(short)}." if short else ""
    if not drifts:
        return f"No run drifted: the mean |log-ratio| stays below {number(DRIFTED)} times its beginning.{unknown}"
    (step, label, size), *rest = sorted(drifts)
    others = "".join(f"; {label} from step {step} on ({size})" for step, label, size in rest)
    alone = not rest and len(timelines) - len(short) > 1
    run = f"Only {label} drifted, from step {step} on" if alone else f"{label} drifted first, from step {step} on"
    return f"{run}: its mean |log-ratio| is {size} there{others}.{unknown}"


def _drift(values: Sequence[float]) -> int | None:
    """Returns the index of the first window from which a run stays above twice its beginning, or None."""
    limit = DRIFTED * median(values[:FIRST])
    for index in range(FIRST, len(values) - FIRST + 1):
        if values[index] > limit and median(values[index : index + FIRST]) > limit:
            return index
    return None


def _drift_size(values: Sequence[float], index: int) -> str:
    """Describes how far the windows from an index on lie above the beginning."""
    beginning, then = median(values[:FIRST]), median(values[index : index + FIRST])
    factor = f"{number(then / beginning)} times its beginning" if beginning else "up from nothing"
    return f"{factor}, {number(then)} against {number(beginning)} nats"


def labels(timelines: Sequence[Timeline]) -> list[str]:
    """Returns a short, unique name for each run: the middle of long names is cut out, equal names are numbered."""
    names = [plain(timeline.name, LABEL_LENGTH).strip() or "unnamed" for timeline in timelines]
    unique_names: list[str] = []
    for name in names:
        unique, n = name, 1
        while unique in unique_names or (n == 1 and names.count(name) > 1):
            unique = f"{name} ({n})"
            n += 1
        unique_names.append(unique)
    return unique_names
