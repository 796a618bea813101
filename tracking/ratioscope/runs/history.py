"""The histograms of a whole training, bounded in memory, for pictures that show all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.state.histogram import Bins

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

MAX_WINDOWS = 512
"""Windows kept per histogram; when there are more, neighbours are pooled in pairs, all but the newest."""


@dataclass
class Window:
    """One window, or several neighbouring ones pooled.

    Attributes:
        first_step: step at which the first of them was closed.
        last_step: step at which the last of them was closed.
        records: how many they are.
        counts: int64, their sum.
    """

    first_step: int
    last_step: int
    records: int
    counts: NDArray[np.int64]

    def pooled(self, later: Window) -> Window:
        """Pools the window with a later one."""
        records = self.records + later.records
        return Window(self.first_step, later.last_step, records, self.counts + later.counts)

    def to_json(self) -> dict[str, Any]:
        """Steps, number of records and counts."""
        return {"steps": [self.first_step, self.last_step], "records": self.records, "counts": self.counts.tolist()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Window:
        """Inverse of :meth:`to_json`."""
        first_step, last_step = data["steps"]
        return cls(first_step, last_step, data["records"], np.asarray(data["counts"], np.int64))


@dataclass
class Series:
    """Windows of one histogram with the same edges, in the order of their steps."""

    edges: NDArray[np.float64]
    windows: list[Window] = field(default_factory=list)

    def bins(self) -> list[Bins]:
        """The windows as bins."""
        return [Bins(window.counts, self.edges) for window in self.windows]

    def steps(self) -> list[int]:
        """The last step of each window."""
        return [window.last_step for window in self.windows]

    def _add(self, step: int, counts: NDArray[np.int64]) -> None:
        # Keep all windows about the size of the oldest one, so that a long run is displayed evenly.
        if len(self.windows) > 1 and sum(w.records for w in self.windows[-2:]) <= self.windows[0].records:
            newest = self.windows.pop()
            self.windows[-1] = self.windows[-1].pooled(newest)
        self.windows.append(Window(step, step, 1, counts))
        if len(self.windows) > MAX_WINDOWS:
            *older, newest = self.windows
            pairs = [first.pooled(second) for first, second in zip(older[::2], older[1::2], strict=False)]
            self.windows = [*pairs, *older[2 * len(pairs) :], newest]

    def _forget_from(self, step: int) -> None:
        while self.windows and self.windows[-1].last_step >= step:
            self.windows.pop()


class History:
    """Series of windows by histogram key; a new one begins only where the edges changed, which a run avoids.

    A step that comes again, after a retry or a resume from a checkpoint, replaces all that was known from it on.
    """

    def __init__(self) -> None:
        self._series: dict[str, list[Series]] = {}

    def add(self, key: str, step: int, bins: Bins) -> None:
        """Appends one window."""
        known = self._series.setdefault(key, [])
        for series in known:
            series._forget_from(step)
        if not known or not (known[-1].edges is bins.edges or np.array_equal(known[-1].edges, bins.edges)):
            known.append(Series(bins.edges))
        known[-1]._add(step, bins.counts)

    def forget_from(self, step: int) -> None:
        """Drops what is known from a step on, under every key."""
        for known in self._series.values():
            for series in known:
                series._forget_from(step)

    def keys(self) -> list[str]:
        """Every key that has a window."""
        return [key for key, known in self._series.items() if known[-1].windows]

    def latest(self, key: str) -> Series:
        """The series that a picture shows.

        Raises:
            KeyError: if nothing was ever added under this key.
        """
        return self._series[key][-1]

    def to_json(self) -> dict[str, Any]:
        """Counts and edges as plain lists."""
        return {
            key: [
                {"edges": series.edges.tolist(), "windows": [window.to_json() for window in series.windows]}
                for series in known
                if series.windows
            ]
            for key, known in self._series.items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> History:
        """Inverse of :meth:`to_json`."""
        history = cls()
        for key, known in data.items():
            history._series[key] = [
                Series(np.asarray(series["edges"], np.float64), [Window.from_json(w) for w in series["windows"]])
                for series in known
            ]
        return history


class Cadence:
    """Says which records get a picture: the first three, then one each time their number has grown by a quarter."""

    def __init__(self) -> None:
        self._seen = 0
        self._drawn = 0

    def due(self) -> bool:
        """Counts a record and returns whether it should get a picture."""
        self._seen += 1
        if self._seen > 3 and self._seen < 1.25 * self._drawn:
            return False
        self._drawn = self._seen
        return True
