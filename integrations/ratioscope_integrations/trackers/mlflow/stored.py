"""Windows, histograms, events and worst tokens of a run, which MLflow keeps as one artifact beside the metrics."""

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
"""Number of newest events kept of a run."""

_RECENT = 128
"""Newest windows kept one by one, to ignore windows sent again: twice the rows of one call of ``write_many``."""

BIN_EXPONENTS = (-5, -2, 1, 4)
"""Exponents of the bin widths that pictures may have. Few, so that most runs share an axis, which ends at about 1, 8,
64 or 512 nats."""

BEYOND = 0.001
"""Largest share of a level's first window that may lie beyond the axis of its pictures."""

PLOTTED = ("token_log_ratio", "sequence_log_ratio")
"""Histograms that get pictures."""


def choose_exponent(counts: NDArray[np.int64]) -> int:
    """Returns the smallest of :data:`BIN_EXPONENTS` whose axis holds all but 0.1 % of the values, else the largest."""
    for exponent in BIN_EXPONENTS[:-1]:
        bins = even_bins(counts, exponent)
        if int(bins.counts[0] + bins.counts[-1]) <= BEYOND * bins.total:
            return exponent
    return BIN_EXPONENTS[-1]


@dataclass
class StoredWindows:
    """Holds a run as its MLflow artifact has it.

    Windows are added in the order in which they were closed. A training that continues from a checkpoint repeats
    steps: its first window then supersedes all earlier ones from that step on, of either split. A window that is sent
    again is ignored.

    Attributes:
        histograms: the bins that trackers receive, by key.
        pictures: the bins that pictures are drawn from, under ``pictures/<histogram>`` with the split's prefix.
        events: step and text of the newest events.
        steps: the step of each window that is not superseded, by split.
        last: step of the newest window of the training that has statistics.
        exponents: exponent of the pictures' bin width by histogram.
        recent: split, step and time in milliseconds of the newest windows.
        worst: the worst tokens and rows.
    """

    histograms: History = field(default_factory=History)
    pictures: History = field(default_factory=History)
    events: list[tuple[int, str]] = field(default_factory=list)
    steps: dict[str, list[int]] = field(default_factory=dict)
    last: int | None = None
    exponents: dict[str, int] = field(default_factory=dict)
    recent: list[tuple[str, int, int]] = field(default_factory=list)
    worst: WorstOfRun = field(default_factory=WorstOfRun)

    def add(self, row: Row) -> bool:
        """Adds a window; returns False if it is one of the newest already."""
        identity = (row.split, row.step, int(1000 * row.time))
        if identity in self.recent:
            return False
        self.recent = [*self.recent, identity][-_RECENT:]
        if row.split == "train" and row.record.scalars:
            if self.last is not None and row.step <= self.last:
                self._forget_from(row.step)
            self.last = row.step
        if row.record.scalars or row.record.events:  # otherwise the row is a log of the trainer's without a window
            self.steps.setdefault(row.split, []).append(row.step)
        self.events = [*self.events, *((row.step, event) for event in row.record.events)][-MAX_EVENTS:]
        self.worst.add(row.record)
        for key, bins in row.histograms.items():
            self.histograms.add(key, row.step, bins)
        for key in plotted(row):
            self.pictures.add(key, row.step, plotted_bins(self, row, key))
        return True

    def _forget_from(self, step: int) -> None:
        self.histograms.forget_from(step)
        self.pictures.forget_from(step)
        self.worst.forget_from(step)
        self.events = [event for event in self.events if event[0] < step]
        for split, steps in self.steps.items():
            self.steps[split] = [earlier for earlier in steps if earlier < step]

    def to_json(self) -> dict[str, Any]:
        """Returns plain lists; steps are packed as runs at equal distance."""
        return {
            "histograms": self.histograms.to_json(),
            "pictures": self.pictures.to_json(),
            "events": self.events,
            "steps": {split: _packed(steps) for split, steps in self.steps.items()},
            "last": self.last,
            "rungs": self.exponents,
            "recent": self.recent,
            "worst": self.worst.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StoredWindows:
        """Inverts :meth:`to_json`; also reads artifacts of older versions, which have histograms only.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: if the data has another form.
        """
        if "histograms" not in data:
            return cls(_history(data))
        return cls(
            histograms=_history(data["histograms"]),
            pictures=_history(data["pictures"]),
            events=[(step, text) for step, text in data["events"]],
            steps={split: _unpacked(runs) for split, runs in data["steps"].items()},
            last=data["last"],
            exponents=dict(data["rungs"]),
            recent=[(split, step, time) for split, step, time in data["recent"]],
            worst=WorstOfRun.from_json(data.get("worst", {})),
        )


def plotted(row: Row) -> dict[str, str]:
    """Returns the histograms of :data:`PLOTTED` that a row has, by the key of their bins in ``pictures``."""
    prefix = prefix_of(row.split)
    return {f"{prefix}pictures/{name}": name for name in PLOTTED if f"{prefix}ratioscope/hist/{name}" in row.histograms}


def plotted_bins(stored: StoredWindows, row: Row, key: str) -> Bins:
    """Returns a window's bins for pictures under a key of :func:`plotted`; the run's first window chooses the width."""
    name = plotted(row)[key]
    counts = row.record.counts(name)
    return even_bins(counts, stored.exponents.setdefault(name, choose_exponent(counts)))


def table_steps(last_steps: Sequence[int], limit: int = 12) -> dict[int, int]:
    """Chooses the steps of a table's rows so that runs of different length and logging interval share most of them.

    Args:
        last_steps: the last step of each window, ascending; a window reaches back to the one before it.
        limit: largest number of rows.

    Returns:
        Index of the window by the step that labels its row: 1, 2, 5, 10, 20, 50 and so on, and the last step.
    """
    if not last_steps:
        return {}
    ladder = [factor * 10**power for power in range(len(str(max(1, last_steps[-1])))) for factor in (1, 2, 5)]
    rows: dict[int, int] = {}
    for step in [*(step for step in ladder if step < last_steps[-1]), last_steps[-1]]:
        index = next(index for index, last in enumerate(last_steps) if last >= step)
        rows[index] = step
    return {step: index for index, step in list(rows.items())[-limit:]}


def _packed(steps: Sequence[int]) -> list[list[int]]:
    """Packs steps as runs at equal distance: first step, distance, number."""
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
    """Reads a history, without keys whose windows have all been superseded."""
    return History.from_json({key: series for key, series in data.items() if series})
