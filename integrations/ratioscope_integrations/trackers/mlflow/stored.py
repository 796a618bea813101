"""What an MLflow run keeps beside its metrics, as one artifact: windows, histograms, events and worst tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ratioscope.runs.history import History
from ratioscope.runs.worst import WorstOfRun
from ratioscope.state.histogram import even_bins
from ratioscope.trackers.base import prefix_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ratioscope.state.histogram import Bins
    from ratioscope.trackers.base import Row

HISTOGRAMS_ARTIFACT = "ratioscope/histograms.json"

MAX_EVENTS = 1000
"""Events kept of a run; the oldest go first."""

_RECENT = 128
"""Newest windows that are known one by one: twice what is sent together, so that what is sent again is not counted."""

RUNGS = (-5, -2, 1, 4)
"""Exponents of the widths that pictures' bins may have, so that most runs share one axis: it ends at about 1, 8, 64
or 512 nats."""

BEYOND = 0.001
"""Share of a level's first window that may lie beyond the axis of its pictures."""

DRAWN = ("token_log_ratio", "sequence_log_ratio")
"""Histograms that there are pictures of."""


def rung(counts: NDArray[np.int64]) -> int:
    """The finest rung whose axis holds all but 0.1 % of the values; the coarsest if none does."""
    for exponent in RUNGS[:-1]:
        bins = even_bins(counts, exponent)
        if int(bins.counts[0] + bins.counts[-1]) <= BEYOND * bins.total:
            return exponent
    return RUNGS[-1]


@dataclass
class Memory:
    """A run as its MLflow artifact holds it.

    Windows come in the order in which they were closed. A training that goes on from a checkpoint repeats steps: its
    first window then supersedes every earlier one from that step on, of either split. A window that is sent again is
    taken in once.

    Attributes:
        histograms: the bins that trackers receive, by key.
        pictures: the bins that pictures are drawn from, under ``pictures/<histogram>`` with the split's prefix.
        events: step and text of the newest events.
        steps: the step of each window that is not superseded, by split.
        last: step of the newest window of the training that has statistics.
        rungs: exponent of the pictures' bins by histogram.
        recent: split, step and time in milliseconds of the newest windows.
        worst: the worst tokens and rows.
    """

    histograms: History = field(default_factory=History)
    pictures: History = field(default_factory=History)
    events: list[tuple[int, str]] = field(default_factory=list)
    steps: dict[str, list[int]] = field(default_factory=dict)
    last: int | None = None
    rungs: dict[str, int] = field(default_factory=dict)
    recent: list[tuple[str, int, int]] = field(default_factory=list)
    worst: WorstOfRun = field(default_factory=WorstOfRun)

    def add(self, row: Row) -> bool:
        """Takes a window in; False if it is one of the newest already."""
        identity = (row.split, row.step, int(1000 * row.time))
        if identity in self.recent:
            return False
        self.recent = [*self.recent, identity][-_RECENT:]
        if row.split == "train" and row.record.scalars:
            if self.last is not None and row.step <= self.last:
                self._forget_from(row.step)
            self.last = row.step
        if row.record.scalars or row.record.events:  # else it is a log of the trainer's without a window
            self.steps.setdefault(row.split, []).append(row.step)
        self.events = [*self.events, *((row.step, event) for event in row.record.events)][-MAX_EVENTS:]
        self.worst.add(row.record)
        for key, bins in row.histograms.items():
            self.histograms.add(key, row.step, bins)
        for key in drawn(row):
            self.pictures.add(key, row.step, drawn_bins(self, row, key))
        return True

    def _forget_from(self, step: int) -> None:
        self.histograms.forget_from(step)
        self.pictures.forget_from(step)
        self.worst.forget_from(step)
        self.events = [event for event in self.events if event[0] < step]
        for split, steps in self.steps.items():
            self.steps[split] = [known for known in steps if known < step]

    def to_json(self) -> dict[str, Any]:
        """Plain lists; the steps as runs of even distance."""
        return {
            "histograms": self.histograms.to_json(),
            "pictures": self.pictures.to_json(),
            "events": self.events,
            "steps": {split: _packed(steps) for split, steps in self.steps.items()},
            "last": self.last,
            "rungs": self.rungs,
            "recent": self.recent,
            "worst": self.worst.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Memory:
        """Inverse of :meth:`to_json`; also takes the artifact of older versions, which has nothing but histograms.

        Raises:
            AttributeError: if it is something else, as all of the following.
            KeyError: as above.
            TypeError: as above.
            ValueError: as above.
        """
        if "histograms" not in data:
            return cls(_history(data))
        return cls(
            histograms=_history(data["histograms"]),
            pictures=_history(data["pictures"]),
            events=[(step, text) for step, text in data["events"]],
            steps={split: _unpacked(runs) for split, runs in data["steps"].items()},
            last=data["last"],
            rungs=dict(data["rungs"]),
            recent=[(split, step, time) for split, step, time in data["recent"]],
            worst=WorstOfRun.from_json(data.get("worst", {})),
        )


def drawn(row: Row) -> dict[str, str]:
    """The histograms of a window to draw, by the key of their pictures' bins: those that the row has values of."""
    prefix = prefix_of(row.split)
    return {f"{prefix}pictures/{name}": name for name in DRAWN if f"{prefix}ratioscope/hist/{name}" in row.histograms}


def drawn_bins(memory: Memory, row: Row, key: str) -> Bins:
    """A window's bins for pictures under a key of :func:`drawn`; their width is chosen at the run's first window."""
    name = drawn(row)[key]
    counts = row.record.counts(name)
    return even_bins(counts, memory.rungs.setdefault(name, rung(counts)))


def table_steps(last_steps: Sequence[int], limit: int = 12) -> dict[int, int]:
    """Steps for the rows of a table, such that runs of different length and logging interval share most of them.

    Args:
        last_steps: the last step of each window, ascending; a window reaches back to the one before it.
        limit: most rows.

    Returns:
        Position of the window by the step to write beside it: 1, 2, 5, 10, 20, 50 and so on, and the last one.
    """
    if not last_steps:
        return {}
    ladder = [factor * 10**power for power in range(len(str(max(1, last_steps[-1])))) for factor in (1, 2, 5)]
    rows: dict[int, int] = {}
    for step in [*(step for step in ladder if step < last_steps[-1]), last_steps[-1]]:
        position = next(index for index, last in enumerate(last_steps) if last >= step)
        rows[position] = step
    return {step: position for position, step in list(rows.items())[-limit:]}


def _packed(steps: Sequence[int]) -> list[list[int]]:
    """Runs of steps at the same distance: first step, distance, number."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and (runs[-1][2] == 1 or step == runs[-1][0] + runs[-1][1] * runs[-1][2]):
            first, distance, n = runs[-1]
            runs[-1] = [first, step - first if n == 1 else distance, n + 1]
        else:
            runs.append([step, 0, 1])
    return runs


def _unpacked(runs: Sequence[Sequence[int]]) -> list[int]:
    return [first + distance * index for first, distance, n in runs for index in range(n)]


def _history(data: Mapping[str, Any]) -> History:
    """The history, without keys that every window was superseded of."""
    return History.from_json({key: series for key, series in data.items() if series})
