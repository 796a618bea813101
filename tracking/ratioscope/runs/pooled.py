"""A run's windows of training, pooled while they are read: neighbours merge, so memory stays bounded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from ratioscope.runs.course import Course
from ratioscope.state.host_tables import HostTables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ratioscope.correction.rule import Rule
    from ratioscope.record import Record
    from ratioscope.summary.host import HostSummary

MOST_PARTS = 64
"""Parts that a run is kept in: enough to see when something began, and little memory for 10 000 windows."""

MOST_UNMERGED = 32
"""Windows that wait to be merged: one merge of many costs little more than one of two."""

TOKENS = "ratioscope/counts/tokens"


@dataclass(frozen=True, eq=False)
class Part:
    """Neighbouring windows of training as one.

    Attributes:
        first: step of the first.
        last: step of the last.
        windows: how many they are.
        summary: their merged state, with the rule if all windows had the same; None where only scalars are known.
        known: scalars by full key, where there is no state.
    """

    first: int
    last: int
    windows: int
    summary: HostSummary | None
    known: Mapping[str, float]

    def merge(self, *later: Part) -> Part:
        """Merges this part with later ones. Means of mere scalars are weighted by tokens."""
        parts = (self, *later)
        summaries = [part.summary for part in parts if part.summary is not None]
        complete = len(summaries) == len(parts)
        return Part(
            self.first,
            parts[-1].last,
            sum(part.windows for part in parts),
            _merged(summaries) if complete else None,
            {} if complete else reduce(_mixed, (part.known for part in parts)),
        )

    def compact(self, total: HostSummary | None) -> Part:
        """Returns the part without what a merge with a total would drop."""
        summary = self.summary and self.summary.compact(HostTables.empty() if total is None else total.top)
        return Part(self.first, self.last, self.windows, summary, self.known)


class PooledRun:
    """The windows of training of one run, from the first to the last in at most :data:`MOST_PARTS` parts.

    Attributes:
        windows: number of windows.
        without_tokens: steps of the windows that hold no valid token, and in which no observation failed.
        course: the mismatch of each window.
    """

    def __init__(self) -> None:
        self.windows = 0
        self.course = Course()
        self.without_tokens: list[int] = []
        self._parts: list[Part] = []
        self._waiting: list[Part] = []
        self._rules: dict[Rule | None, None] = {}
        self._span = 1

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> PooledRun:
        """Pools the windows of training among records."""
        pooled = cls()
        for record in records:
            pooled.add(record)
        return pooled

    @classmethod
    def of_parts(cls, parts: Iterable[Part]) -> PooledRun:
        """Takes some of a run's parts, without its rules and the mismatch of each window."""
        pooled = cls()
        pooled._parts = list(parts)
        pooled.windows = sum(part.windows for part in pooled._parts)
        return pooled

    def add(self, record: Record) -> None:
        """Appends a window of training; evaluations and logs without a window are left out."""
        if record.split != "train" or not record.scalars:
            return
        self._rules.pop(record.correction, None)
        self._rules[record.correction] = None
        self._append(Part(record.step, record.step, 1, record.summary, {}), record.scalars)

    def add_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends a window of which only scalars are known."""
        self._append(Part(step, step, 1, None, scalars), scalars)

    @property
    def parts(self) -> list[Part]:
        """Parts in the order of their steps."""
        self._merge_waiting()
        return self._parts

    @property
    def rules(self) -> tuple[Rule | None, ...]:
        """Every rule that was in force, the newest last; None where nothing was corrected."""
        return tuple(self._rules)

    @property
    def correction(self) -> Rule | None:
        """The newest rule; None if there never was one."""
        return next((rule for rule in reversed(self._rules) if rule is not None), None)

    @property
    def steps(self) -> tuple[int, int] | None:
        """Steps of the first and last window."""
        return (parts[0].first, parts[-1].last) if (parts := self.parts) else None

    def _append(self, window: Part, scalars: Mapping[str, float]) -> None:
        self.windows += 1
        self.course.add(window.last, window.summary, scalars)
        if not scalars.get(TOKENS, 1.0) and not (window.summary and window.summary.count("errors")):
            self.without_tokens.append(window.last)
        parts = self._parts
        if parts and parts[-1].windows + len(self._waiting) < self._span:
            self._waiting.append(window.compact(parts[-1].summary))
            if len(self._waiting) == MOST_UNMERGED:
                self._merge_waiting()
            return
        self._merge_waiting()
        parts.append(window.compact(None))
        if len(parts) > MOST_PARTS:
            pairs = [parts[index : index + 2] for index in range(0, len(parts), 2)]
            parts[:] = [pair[0].merge(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
            self._span *= 2

    def _merge_waiting(self) -> None:
        if self._waiting:
            self._parts[-1] = self._parts[-1].merge(*self._waiting)
            self._waiting.clear()


def _merged(summaries: Sequence[HostSummary]) -> HostSummary:
    first, *others = summaries
    if any(other.correction != first.correction for other in others):
        # What different rules did cannot be pooled; the raw ratios can.
        first, *others = (summary.with_correction(None) for summary in summaries)
    return first.merge(*others) if others else first


def _mixed(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Pools the scalars of two windows: counts add, extremes are extremes, the rest is weighted by tokens."""
    weights = one.get(TOKENS, 1.0), other.get(TOKENS, 1.0)
    total = sum(weights) or 1.0
    mixed = {**one, **other}
    for name in one.keys() & other.keys():
        if name.startswith("ratioscope/counts/"):
            mixed[name] = one[name] + other[name]
        elif name.endswith(("max", "/min")):
            mixed[name] = (min if name.endswith("/min") else max)(one[name], other[name])
        else:
            mixed[name] = (one[name] * weights[0] + other[name] * weights[1]) / total
    return mixed
