"""Runs against each other: their key figures, their configs, and which drifted first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from ratioscope.report.verdict.line import APART, curve
from ratioscope.report.verdict.verdict import common_label, key_figures
from ratioscope.text import number, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratioscope.runs.timeline import Timeline

NOT_SET = "not set"
"""What stands for a setting that a run has not."""

LABEL_LENGTH = 40
"""Characters of a run's label."""

FIRST = 5
"""Windows at a run's beginning that the rest is measured against, and windows whose median counts as staying."""

DRIFTED = 2.0
"""Factor over the beginning that counts as drift."""


@dataclass(frozen=True)
class Difference:
    """A statistic of each run.

    Attributes:
        label: what people call it.
        key: its full key.
        values: one for each run, in their order; None where it was never measured.
    """

    label: str
    key: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class ConfigDifference:
    """A setting that is not the same in all runs.

    Attributes:
        key: its dotted name.
        values: one for each run, in their order, as text; :data:`NOT_SET` where a run lacks it.
    """

    key: str
    values: tuple[str, ...]


def differences(timelines: Sequence[Timeline]) -> list[Difference]:
    """Key figures side by side, each as the median over windows and as the newest window's; none that no run has."""
    found = []
    for figures in zip(*map(key_figures, timelines), strict=True):
        label, key = common_label(figures), figures[0].key
        if any(figure.latest is not None for figure in figures):
            found.append(Difference(f"{label}, median", key, tuple(figure.median for figure in figures)))
            found.append(Difference(f"{label}, latest", key, tuple(figure.latest for figure in figures)))
    return found


def config_differences(timelines: Sequence[Timeline]) -> list[ConfigDifference]:
    """Every setting that differs, by name; a nested one has a dotted name."""
    configs = [dict(_settings(timeline.config, ())) for timeline in timelines]
    rows = {key: tuple(config.get(key, NOT_SET) for config in configs) for key in sorted(set().union(*configs))}
    return [ConfigDifference(key, values) for key, values in rows.items() if len(set(values)) > 1]


def _settings(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Every value that is no mapping with content, under its dotted name."""
    if isinstance(value, Mapping) and (value or not path):
        for name, item in value.items():
            yield from _settings(item, (*path, str(name)))
    else:
        yield ".".join(path), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def first_to_drift(timelines: Sequence[Timeline]) -> str:
    """One sentence: which run drifted first, at which step and how far, or that none did.

    A run's beginning is the median of its first five windows' mean absolute log-ratio. It has drifted from the first
    later window on that is above twice this and is followed so: the median of the five windows from it on is above
    twice the beginning, too. A single odd window is no drift. A run of fewer than ten windows says nothing.

    Steps are compared as they are; where runs log at different steps, a lower step is still the earlier one.
    """
    drifts, short = [], []
    for timeline, label in zip(timelines, labels(timelines), strict=True):
        apart = curve(timeline, APART)
        if apart is None or len(apart.values) < 2 * FIRST:
            short.append(label)
        elif (index := _drift(apart.values)) is not None:
            beginning, then = median(apart.values[:FIRST]), median(apart.values[index : index + FIRST])
            size = f"{number(then / beginning)} times its beginning" if beginning else "up from nothing"
            drifts.append((apart.steps[index], label, f"{size}, {number(then)} against {number(beginning)} nats"))
    if len(short) == len(timelines):
        return f"Too few windows to say which run drifted first: each needs {2 * FIRST} that have valid tokens."
    unsaid = f" Too few windows with a mean |log-ratio| to say so of {', '.join(short)}." if short else ""
    if not drifts:
        return f"No run drifted: the mean |log-ratio| stays below {number(DRIFTED)} times its beginning.{unsaid}"
    (step, label, size), *rest = sorted(drifts)
    others = "".join(f"; {label} from step {step} on ({size})" for step, label, size in rest)
    alone = not rest and len(timelines) - len(short) > 1
    which = f"Only {label} drifted, from step {step} on" if alone else f"{label} drifted first, from step {step} on"
    return f"{which}: its mean |log-ratio| is {size} there{others}.{unsaid}"


def _drift(values: Sequence[float]) -> int | None:
    """Index of the window from which on a run stays above twice its beginning."""
    limit = DRIFTED * median(values[:FIRST])
    for index in range(FIRST, len(values) - FIRST + 1):
        if values[index] > limit and median(values[index : index + FIRST]) > limit:
            return index
    return None


def labels(timelines: Sequence[Timeline]) -> list[str]:
    """A short name for each run, unlike the others': long names lose their middle, equal ones are numbered."""
    names = [plain(timeline.name, LABEL_LENGTH).strip() or "unnamed" for timeline in timelines]
    found: list[str] = []
    for name in names:
        unique, n = name, 1
        while unique in found or (n == 1 and names.count(name) > 1):
            unique = f"{name} ({n})"
            n += 1
        found.append(unique)
    return found
