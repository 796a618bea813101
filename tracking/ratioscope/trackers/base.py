"""Tracker base class, and the two values that a tracker receives: the run's context and rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ratioscope.event import Event
    from ratioscope.record import Record
    from ratioscope.state.histogram import Bins

BATCH = 64
"""Largest number of rows in one call of ``Tracker.write_many``."""


@dataclass(frozen=True)
class RunContext:
    """Describes the run that a tracker attaches to, or opens.

    Attributes:
        config: settings to store beside the run under ``ratioscope``: nested, JSON-able, secrets already redacted.
        output_dir: folder for the files of a run that ratioscope opens; None for the backend's default.
        run_name: name of a run that ratioscope opens; None for the backend's default.
        reporter: the trainer's own callback for this backend; None where the trainer does not report there,
            so that the tracker attaches to a live run of the process or opens one.
        live: the run object of the backend's package, where another framework opened the run and passes it on; rows
            keep the steps that they come with.
        identity: what ``connect`` returned when an earlier process opened this run; None for a new run.
        close_timeout: seconds that ``close`` may wait for the upload of a run that ratioscope opened.
        ours: whether ratioscope opened the run that ``identity`` names and must end it.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    output_dir: Path | None = None
    run_name: str | None = None
    reporter: object | None = None
    live: object | None = None
    identity: Mapping[str, str] | None = None
    ours: bool = True
    close_timeout: float = 8.0


@dataclass(frozen=True)
class Row:
    """Holds one window as a tracker receives it.

    Attributes:
        step: the trainer's global step.
        split: ``"train"`` or ``"eval"``.
        time: seconds since the epoch at which the window was closed; identical at every retry.
        scalars: finite floats by full key; the split's prefix (``eval/``) is included.
        histograms: even bins by full key, prefix included.
        record: the complete window, for trackers that draw pictures.
        logs: the trainer's own log of this step under the trainer's names; empty where the trainer reports it itself.
    """

    step: int
    split: str
    time: float
    scalars: Mapping[str, float]
    histograms: Mapping[str, Bins]
    record: Record
    logs: Mapping[str, float] = field(default_factory=dict)

    def copy(self) -> Row:
        """Returns a row that a tracker may change without changing the record or what another tracker receives."""
        record = self.record
        return replace(
            self,
            scalars=dict(self.scalars),
            histograms={
                key: replace(bins, counts=bins.counts.copy(), edges=bins.edges.copy())
                for key, bins in self.histograms.items()
            },
            logs=dict(self.logs),
            record=replace(record, scalars=dict(record.scalars), logs=dict(record.logs), health=dict(record.health)),
        )


def prefix_of(split: str) -> str:
    """Returns the prefix of a split's keys: empty for training, ``eval/`` for evaluations."""
    return "" if split == "train" else f"{split}/"


def grouped(logs: Mapping[str, float]) -> dict[str, float]:
    """Puts a trainer's log under ``train/`` and ``eval/``, as transformers' reporters do for W&B and TensorBoard."""
    return {
        f"eval/{key.removeprefix('eval_')}" if key.startswith("eval_") else f"train/{key}": value
        for key, value in logs.items()
    }


class Tracker(ABC):
    """Base class of all backends. Only rank 0 of the whole training creates trackers.

    A subclass sets ``name`` and implements ``open``, ``write``, ``close`` and ``where``; everything else has a
    default. Any method may raise: the first failure of each kind is logged, training continues, and a tracker in the
    background is tried again later.

    Attributes:
        name: the name in ``report_to``.
        package: the import that must be available; ``name`` where this is empty.
        background: True if ``write`` and ``close`` may wait for a network or a picture; they then run on a delivery
            thread.
        buffers: True if ``write`` only queues rows. They count as delivered once ``close`` has returned without an
            error, or once ``received`` confirms them.
        merges: True if a row becomes part of the row that the trainer's reporter logs; it is then written on the
            training thread where there is such a reporter or another framework's run.
        keeps_alerts: True if ``alert`` only sets a state of the run, so that repeating an event, even long afterwards,
            does no harm; ``ratioscope sync`` then repeats all events.
        counts_rows: True if ``connect`` sets ``received`` for a backend that can count its rows.
        identity: what finds the run again, as far as it is known after ``open``. It is stored before the run is
            opened, so that a process which dies meanwhile leaves no second run behind.
        received: after ``connect``, the number of rows that the run already has; None if the backend cannot count them.
    """

    name: str
    package: str = ""
    background: bool = False
    buffers: bool = False
    merges: bool = False
    keeps_alerts: bool = False
    counts_rows: bool = False
    identity: Mapping[str, str] | None = None
    received: int | None = None

    @abstractmethod
    def open(self, run: RunContext) -> bool:
        """Attaches to the run that the trainer's reporter opened, else to a live one, else prepares a new one.

        Called on the main thread; must not wait for a network if ``background`` is True.

        Returns:
            False if the trainer's reporter has not opened its run yet; the caller asks again later.
        """

    @abstractmethod
    def write(self, row: Row) -> None:
        """Sends one window."""

    @abstractmethod
    def close(self) -> None:
        """Sends what is held back, and finishes the run only if this tracker opened it. May be called twice."""

    @abstractmethod
    def where(self) -> str:
        """Returns one line of text for the user: where this run can be looked at."""

    def attaches(self) -> bool:
        """Returns whether ``open`` without a reporter would attach to a run that is live in this process."""
        return False

    def connect(self) -> Mapping[str, str] | None:
        """Opens the run; called before the first ``write``, on the delivery thread, and may wait for a network.

        Returns:
            What finds the run again (``RunContext.identity`` of a later process); None if nothing does.
        """
        return self.identity

    def write_many(self, rows: Sequence[Row]) -> None:
        """Sends rows that waited together, at most :data:`BATCH`.

        An override must tolerate repetition: all rows are sent again after a failure.
        """
        for row in rows:
            self.write(row)

    def alert(self, event: Event) -> None:  # noqa: B027 - optional, as its docstring says
        """Reports an :class:`~ratioscope.event.Event` of the diagnosis; does nothing unless overridden.

        Called on the thread of ``write``; in the background up to three times if it raises. Skip events whose
        ``is_news`` is False if an alert interrupts a person.
        """

    def abandon(self) -> None:  # noqa: B027 - optional, as its docstring says
        """Frees what would hold up the end of the process; does nothing unless overridden.

        Called on the main thread while a call on the delivery thread hangs, once nobody waits for it any more.
        """

    @property
    def takes_alerts(self) -> bool:
        """True if the class overrides ``alert``; events are not queued for any other."""
        return type(self).alert is not Tracker.alert

    @property
    def takes_batches(self) -> bool:
        """True if the class overrides ``write_many``; rows of any other are marked as delivered one by one."""
        return type(self).write_many is not Tracker.write_many
