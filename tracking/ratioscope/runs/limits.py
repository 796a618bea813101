"""A gate: whether a run's statistics keep within limits."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from ratioscope.journal.reader import JournalReader
from ratioscope.metrics.catalogue import CATALOGUE
from ratioscope.metrics.metric import PREFIX
from ratioscope.runs.foreign.adopt import origin_text
from ratioscope.runs.read import journal_of, read
from ratioscope.runs.timeline import Curve
from ratioscope.trackers.base import prefix_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from pathlib import Path

Kind = Literal["max", "min"]
"""Kind of a limit: the largest or the smallest value that holds; the limit itself holds."""

At = Literal["worst", "last", "median", "any"]
"""Windows that must hold: every window, the last, the median of the windows, or at least one window."""

Status = Literal["holds", "violated", "not measured"]

_EVAL = "eval/"


@dataclass(frozen=True)
class Limit:
    """Upper or lower limit on a statistic.

    Attributes:
        key: of the statistic, in full.
        kind: ``"max"`` or ``"min"``.
        value: the limit.
    """

    key: str
    kind: Kind
    value: float

    def holds(self, value: float) -> bool:
        """True if a value is within the limit."""
        return value <= self.value if self.kind == "max" else value >= self.value

    def worst(self, values: Iterable[float]) -> float:
        """The value that is farthest out."""
        return max(values) if self.kind == "max" else min(values)

    def best(self, values: Iterable[float]) -> float:
        """The value that is farthest in."""
        return min(values) if self.kind == "max" else max(values)


@dataclass(frozen=True)
class Verdict:
    """Result of checking a limit.

    Attributes:
        limit: what was asked.
        status: ``"holds"``, ``"violated"`` or ``"not measured"``.
        value: what was judged; None where nothing was measured.
        step: step of the window that has it, the first if there are several; None for a median.
        windows: in how many windows the statistic was measured.
        violations: how many of these are outside the limit.
        read_from: another trainer's name that the statistic was read from, and in what it differs; empty if it is ours.
    """

    limit: Limit
    status: Status
    value: float | None = None
    step: int | None = None
    windows: int = 0
    violations: int = 0
    read_from: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, with the limit's fields."""
        return {
            "key": self.limit.key,
            "kind": self.limit.kind,
            "limit": self.limit.value,
            "status": self.status,
            "value": self.value,
            "step": self.step,
            "windows": self.windows,
            "violations": self.violations,
            "read_from": self.read_from or None,
        }


def read_curves(address: str | Path) -> Mapping[str, Curve]:
    """Every statistic of a run over its windows, by key; those of evaluations have ``eval/`` in front.

    A journal has all of them, a tracker what it was sent.

    Args:
        address: as :func:`ratioscope.runs.read.read` takes it.

    Raises:
        FileNotFoundError: if there is no journal, and the address names no tracker either.
        JournalError: if the file is no journal, or of a newer version.
        ImportError: if the tracker's package is missing.
        LookupError: if the tracker has no such run.
    """
    path = journal_of(address)
    if path is None:
        return read(address).scalars
    curves: dict[str, Curve] = {}
    with JournalReader(path) as journal:
        for record in journal.records():
            prefix, milliseconds = prefix_of(record.split), int(1000 * record.time)
            for key, value in record.scalars.items():
                curves.setdefault(prefix + key, Curve()).add(record.step, milliseconds, value)
    return curves


def full_key(name: str, curves: Mapping[str, Curve]) -> str:
    """The key that a name stands for, which may lack ``ratioscope/``.

    Args:
        name: as given.
        curves: what the run has, which may be more than the catalogue.

    Raises:
        KeyError: if there is no such statistic; names the nearest.
    """
    catalogue = {metric.key for metric in CATALOGUE}
    known = {*catalogue, *(_EVAL + key for key in catalogue), *curves}
    inner = name.removeprefix(_EVAL)
    split = name[: len(name) - len(inner)]
    found = next((key for key in (name, f"{split}{PREFIX}{inner}") if key in known), None)
    if found is None:
        short = sorted({key.replace(PREFIX, "", 1) for key in known if key.startswith(_EVAL) == bool(split)})
        near = difflib.get_close_matches(name.replace(PREFIX, "", 1), short, n=3, cutoff=0.5)
        nearest = f"nearest: {', '.join(near)}" if near else "the reference of metrics has all names"
        msg = f"got {name!r}, which is no statistic; {nearest}"
        raise KeyError(msg)
    return found


def judge(limit: Limit, curve: Curve | None, *, at: At = "worst", steps: Container[int] | None = None) -> Verdict:
    """Checks a limit.

    Args:
        limit: the limit.
        curve: the statistic over the run; None if it never had a value.
        at: what must hold.
        steps: the only ones to look at; None for all.
    """
    windows = [] if curve is None else list(zip(curve.steps, curve.values, strict=True))
    windows = [(step, value) for step, value in windows if math.isfinite(value) and (steps is None or step in steps)]
    if not windows:
        return Verdict(limit, "not measured")
    values = [value for _, value in windows]
    step: int | None
    if at == "median":
        step, value = None, median(values)
    elif at == "last":
        step, value = windows[-1]
    else:
        value = limit.worst(values) if at == "worst" else limit.best(values)
        step = windows[values.index(value)][0]
    status: Status = "holds" if limit.holds(value) else "violated"
    outside = sum(not limit.holds(each) for each in values)
    return Verdict(limit, status, value, step, len(values), outside, origin_text(curve.origin) if curve else "")
