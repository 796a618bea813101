"""Timeline: a run as reports see it, every statistic and histogram over its steps, wherever it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ratioscope.runs.history import History
from ratioscope.runs.worst import WorstOfRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ratioscope.runs.foreign.names import Name
    from ratioscope.runs.pooled import PooledRun
    from ratioscope.state.histogram import Bins


@dataclass
class Curve:
    """One statistic over a run, in the order of its steps.

    Attributes:
        steps: the trainer's global step of each window that has the statistic.
        times: milliseconds since the epoch at which each was closed.
        values: finite floats.
        origin: another trainer's name that it was read from; empty if it is our own.
    """

    steps: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    origin: str = ""

    def add(self, step: int, time: int, value: float) -> None:
        """Appends one window."""
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)


@dataclass
class Timeline:
    """A run, window by window.

    Attributes:
        name: what people call it; any text.
        source: where it was read from; any text.
        config: the run config, as :mod:`ratioscope.config.snapshot` makes it.
        scalars: each statistic by full key; those of evaluations have ``eval/`` in front.
        history: even bins of each histogram by key, ``ratioscope/hist/...``; bounded, so that old windows are pooled.
        events: step and text.
        windows: number of windows of each split.
        pooled: the windows of training with their full state, for diagnosis and thresholds; None where only scalars
            and even bins are known.
        worst: the worst tokens and rows.
        foreign: by another trainer's key, what it is in our terms; empty for a run that ratioscope logged.
    """

    name: str = ""
    source: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    scalars: dict[str, Curve] = field(default_factory=dict)
    history: History = field(default_factory=History)
    events: list[tuple[int, str]] = field(default_factory=list)
    windows: dict[str, int] = field(default_factory=dict)
    pooled: PooledRun | None = field(default=None, repr=False, compare=False)
    worst: WorstOfRun = field(default_factory=WorstOfRun)
    foreign: dict[str, Name] = field(default_factory=dict)

    def add(
        self,
        step: int,
        split: str,
        time: float,
        scalars: Mapping[str, float],
        histograms: Mapping[str, Bins],
        events: Iterable[str] = (),
    ) -> None:
        """Appends one window, whose step is not below that of the last one of its split.

        Args:
            step: the trainer's global step.
            split: ``"train"`` or ``"eval"``.
            time: seconds since the epoch.
            scalars: by full key.
            histograms: by full key.
            events: texts.
        """
        self.windows[split] = self.windows.get(split, 0) + 1
        milliseconds = int(1000 * time)
        for key, value in scalars.items():
            curve = self.scalars.get(key)
            if curve is None:
                curve = self.scalars[key] = Curve()
            curve.steps.append(step)  # as Curve.add does; half a million calls would be a tenth of a report's time
            curve.times.append(milliseconds)
            curve.values.append(value)
        for key, bins in histograms.items():
            self.history.add(key, step, bins)
        self.events += [(step, event) for event in events]

    def last(self, key: str) -> float | None:
        """The newest value of a statistic; None if it never had one."""
        curve = self.scalars.get(key)
        return curve.values[-1] if curve else None
