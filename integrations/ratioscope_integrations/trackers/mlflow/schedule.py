"""Schedule of an MLflow run's pictures: which windows are plotted, at which steps, and what is left for the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ratioscope.runs.history import Cadence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratioscope.trackers.base import Row


class Pictures(NamedTuple):
    """Pictures of one window to log.

    Attributes:
        row: the window.
        steps: steps at which its histogram is logged; may be empty.
        over_training: whether the heat map of the training up to this window is logged too.
    """

    row: Row
    steps: list[int]
    over_training: bool


@dataclass
class _Split:
    """State of one split.

    Attributes:
        newest: the newest window.
        cadence: chooses the windows that get pictures.
        due: chosen windows whose pictures have not been logged, oldest first.
        logged: the newest window whose pictures have been logged.
        opening: the window whose histogram stands at step 0.
    """

    newest: Row
    cadence: Cadence = field(default_factory=Cadence)
    due: list[Row] = field(default_factory=list)
    logged: Row | None = None
    opening: Row | None = None


class PictureSchedule:
    """Decides which windows get pictures and remembers which have been logged."""

    def __init__(self) -> None:
        self._splits: dict[str, _Split] = {}

    def add(self, row: Row) -> None:
        """Takes in one window."""
        split = self._splits.setdefault(row.split, _Split(row))
        split.newest = row
        if split.cadence.due():
            split.due.append(row)

    @property
    def is_due(self) -> bool:
        """True if a window's pictures are to be logged now."""
        return any(split.due for split in self._splits.values())

    @property
    def newest_of_training(self) -> Row | None:
        """The newest window of the training; None without one."""
        split = self._splits.get("train")
        return None if split is None else split.newest

    def due(self) -> Iterator[Pictures]:
        """Yields the pictures that are due. Each counts as logged once the next one is asked for."""
        for split in self._splits.values():
            while split.due:
                row = split.due[0]
                # MLflow's image chart opens at step 0, where the first window stands until the training ends.
                steps = [row.step, 0] if split.logged is None else [row.step]
                yield Pictures(row, steps, over_training=len(split.due) == 1)
                split.opening = split.opening or row
                split.logged = split.due.pop(0)

    def final(self) -> Iterator[Pictures]:
        """Yields what is left at the end: the newest window of each split, at its own step and at step 0."""
        for split in self._splits.values():
            row = split.newest
            is_logged = split.logged is row
            steps = ([] if split.opening is row else [0]) + ([] if is_logged else [row.step])
            yield Pictures(row, steps, over_training=not is_logged)
