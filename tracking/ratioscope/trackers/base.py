"""What a tracker is: one small protocol, so that a backend is one file and a fake is one class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ratioscope.record import Record
    from ratioscope.state.histogram import Bins


@dataclass(frozen=True)
class RunContext:
    """The run that a tracker attaches to, or opens.

    Attributes:
        config: what goes beside the run under ``ratioscope``: nested, JSON-able, secrets already redacted.
        output_dir: where a run of our own keeps its files; None for the backend's default.
        run_name: name for a run of our own; None for the backend's default.
        reporter: the trainer's own callback for this backend; None where the trainer does not report there,
            so that the tracker attaches to a live run of the process or opens one.
        live: the run to attach to, as its own package made it, where another framework opened it and names it; its
            rows are at the steps that it is given.
        identity: what ``connect`` returned when an earlier process opened this run; None for a new run.
        patience: seconds that ``close`` may wait for an upload of a run of our own.
        ours: False if the run that ``identity`` names was opened by a trainer or user, and is theirs to end.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    output_dir: Path | None = None
    run_name: str | None = None
    reporter: object | None = None
    live: object | None = None
    identity: Mapping[str, str] | None = None
    ours: bool = True
    patience: float = 8.0


@dataclass(frozen=True)
class Row:
    """One window as a tracker receives it.

    Attributes:
        step: the trainer's global step.
        split: ``"train"`` or ``"eval"``.
        time: seconds since the epoch at which the window was closed; the same at every retry.
        scalars: finite floats by full key; the split's prefix (``eval/``) is included.
        histograms: even bins by full key, prefix included.
        record: all that is known of the window, for trackers that draw.
        logs: the trainer's own log of this step, as the trainer names it; empty where the trainer reports it itself.
    """

    step: int
    split: str
    time: float
    scalars: Mapping[str, float]
    histograms: Mapping[str, Bins]
    record: Record
    logs: Mapping[str, float] = field(default_factory=dict)


def prefix_of(split: str) -> str:
    """What stands before the keys of a split: nothing for the training, ``eval/`` for evaluations."""
    return "" if split == "train" else f"{split}/"


def grouped(logs: Mapping[str, float]) -> dict[str, float]:
    """A trainer's log under ``train/`` and ``eval/``, as transformers' reporters group it for W&B and TensorBoard."""
    return {
        f"eval/{key.removeprefix('eval_')}" if key.startswith("eval_") else f"train/{key}": value
        for key, value in logs.items()
    }


@runtime_checkable
class Tracker(Protocol):
    """One backend. Only the world's rank 0 ever holds one.

    A tracker may raise: the caller reports each kind of failure once, training goes on, and a tracker in the
    background is tried again later.

    A tracker may have further members, which are used where they are present:

    * ``connect() -> Mapping[str, str]``: called on the delivery thread before the first ``write``; opens the run, may
      wait for a network, and returns what is needed to find the run again (``RunContext.identity`` of a later process).
    * ``identity``: what ``connect`` will return, as far as it is known after ``open``; it is kept before the run is
      opened, so that a process that is broken off meanwhile leaves no second run behind.
    * ``buffers: bool``: True if ``write`` only hands rows on, so that they are not delivered until ``close`` returned
      without an error, or ``received`` says so.
    * ``received: int | None``: after ``connect``, how many rows the run already has, for a backend that can tell.
    * ``write_many(rows)``: sends rows that waited together; sending them again after a failure must do no harm.
    * ``attaches() -> bool``: whether ``open`` would attach to a run that is live in the process, without a reporter.
    * ``alert(event)``: tells a person of an :class:`~ratioscope.event.Event` of the diagnosis; called on the thread of
      ``write``, and again, up to three times, if it raises in the background. Some are no news (``event.is_news``).
    * ``keeps_alerts: bool``: True if ``alert`` only sets what the run says of itself, so that telling an event again,
      or long afterwards, does no harm; ``ratioscope sync`` does so.
    * ``merges: bool``: True if a row becomes part of the reporter's own, so that it cannot be sent in the background
      where there is a reporter, or another framework's run.
    """

    @property
    def name(self) -> str:
        """The name in ``report_to``."""
        ...

    @property
    def background(self) -> bool:
        """True if ``write`` and ``close`` may wait for a network or a picture: the delivery thread runs them then."""
        ...

    def open(self, run: RunContext) -> bool:
        """Attaches to the run that the trainer's reporter opened, else to a live one, else prepares our own.

        Called on the main thread and must not wait for a network if ``background`` is True.

        Returns:
            False if the trainer's reporter has not opened its run yet; the caller asks again later.
        """
        ...

    def write(self, row: Row) -> None:
        """Sends one window."""
        ...

    def close(self) -> None:
        """Sends what is held back and finishes the run only if this tracker opened it."""
        ...

    def where(self) -> str:
        """One line for a person: where this run can be looked at."""
        ...
