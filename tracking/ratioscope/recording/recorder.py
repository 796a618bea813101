"""Recorder: observes batches, merges windows over ranks, stores records and sends them to trackers."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ratioscope.alerts.confirmation import FindingChanges
from ratioscope.alerts.reaction import OnFinding, Reaction
from ratioscope.config.snapshot import snapshot
from ratioscope.incidents import Incidents
from ratioscope.metrics.catalogue import keys
from ratioscope.record import Record
from ratioscope.recording.accelerate import AcceleratorHost
from ratioscope.recording.given import numbers, whole_step
from ratioscope.recording.observer import Observer
from ratioscope.recording.output import RunSetup
from ratioscope.recording.ranks import is_main_rank
from ratioscope.recording.session import Session
from ratioscope.recording.token_texts import Decode, token_texts
from ratioscope.secrets import outgoing
from ratioscope.summary.host import HostSummary
from ratioscope.trackers.base import RunContext
from ratioscope.trackers.registry import ReportTo, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    import torch.distributed as dist

    from ratioscope.correction.rule import Rule


class Recorder(Observer):
    """Records the correction step of a training loop.

    Every rank has one and makes the same calls; only rank 0 talks to trackers.

    Example:
        >>> rule = Correction("token", "truncate", upper=2.0)
        >>> with Recorder(report_to="wandb", correction=rule) as recorder:  # doctest: +SKIP
        ...     weights = recorder.correct(train_logps, rollout_logps, mask)
        ...     record = recorder.flush(step=10)

    Args:
        report_to: trackers by name (``"wandb"``, ``"mlflow"``, ``"tensorboard"``), tracker objects, a list of
            either, ``"all"`` or ``"none"``; None for those of the accelerator, or none. A run that is live in the
            process is attached to and never finished; where none is live, one is opened and closed.
        correction: the rule; None to watch raw ratios only.
        config: further settings to keep beside the run. Secrets are redacted.
        output_dir: folder of the journal and of runs that the recorder opens; None for no journal.
        run_name: name of a run that the recorder opens.
        detail: which scalars trackers receive: ``"headline"``, ``"standard"`` or ``"full"``.
        close_timeout: seconds that ``close`` waits for trackers; the journal keeps the remaining records.
        decode: a fast tokenizer, or a function from a list of ids to text, with which rank 0 adds the texts of worst
            tokens and their neighbours to each record; None to keep ids only.
        group: process group to merge over; None for the accelerator's, or the default one.
        accelerator: an ``accelerate.Accelerator`` whose ranks are merged, and whose ``log_with`` trackers' runs are
            attached to and never finished.
        on_finding: the run's reaction to findings of the diagnosis: None for nothing, ``"warn"``, ``"stop"`` or a
            callable of one event, as in :mod:`ratioscope.alerts.reaction`.

    Attributes:
        incidents: failures during the run, counted by kind.
        correction: the rule.

    Raises:
        ValueError: if a tracker's name, the detail or ``on_finding`` is unknown.
        ImportError: if a named tracker's package is missing.
        TypeError: if ``decode`` cannot decode, or the accelerator is not one.
    """

    def __init__(  # noqa: PLR0913 - public keyword-only settings
        self,
        *,
        report_to: ReportTo = None,
        correction: Rule | None = None,
        config: Mapping[str, Any] | None = None,
        output_dir: str | Path | None = None,
        run_name: str | None = None,
        detail: str = "standard",
        close_timeout: float = 10.0,
        group: dist.ProcessGroup | None = None,
        decode: Decode | None = None,
        accelerator: Any = None,
        on_finding: OnFinding = None,
    ) -> None:
        keys(detail)
        run_name = None if run_name is None else outgoing(run_name)
        self._host = AcceleratorHost(accelerator)
        super().__init__(correction, group=self._host.group(group))
        self.incidents = Incidents()
        self._config = config
        self._reaction = Reaction(on_finding, self.incidents)
        self._changes = FindingChanges()
        self._setup = RunSetup(
            trackers=resolve(self._host.report_to(report_to)),
            run=RunContext(output_dir=None if output_dir is None else Path(output_dir), run_name=run_name),
            incidents=self.incidents,
            on_event=self._reaction.on_event,
            detail=detail,
            close_timeout=close_timeout,
            texts=token_texts(decode, self.incidents),
        )
        self._session = Session(self.incidents)
        self._merge_s = 0.0

    @property
    def is_open(self) -> bool:
        """True from :meth:`open` to :meth:`close`, on rank 0."""
        return self._session.output is not None

    @property
    def tracker_names(self) -> list[str]:
        """Names of the trackers that receive records."""
        return [tracker.name for tracker in self._setup.trackers]

    def open(
        self,
        *,
        reporters: Mapping[str, object] | None = None,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        restored_step: int | None = None,
        already_logged: Container[str] = (),
        live_runs: Mapping[str, Callable[[], object | None]] | None = None,
    ) -> None:
        """Opens journal and trackers; the first flush does so unless this was called before. Does nothing off rank 0.

        Args:
            reporters: the trainer's own callbacks by tracker name, whose runs are attached to.
            sections: further sections of the run config.
            restored_step: the step of the checkpoint that this process continues from; 0 for a start from scratch.
                Later records of earlier attempts in the same output directory are superseded.
            already_logged: config findings that the trainer integration has logged.
            live_runs: by tracker name, a function that returns the run that another framework has opened there and
                logs to at the same steps; None as long as there is none.
        """
        if not is_main_rank():
            return
        self._session.open(
            lambda: replace(
                self._run_setup(sections),
                reporters=reporters or {},
                live_runs={**self._host.runs(), **(live_runs or {})},
                restored_step=restored_step,
                already_logged=already_logged,
            )
        )

    def _run_setup(self, sections: Mapping[str, Mapping[str, Any]] | None = None) -> RunSetup:
        """Returns the settings of an attempt that starts now."""
        run = replace(self._setup.run, config=self._run_config(sections))
        return replace(self._setup, run=run, changes=self._changes, live_runs=self._host.runs())

    def _run_config(self, sections: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
        setup, sections = self._setup, self._host.sections() | dict(sections or {})
        own = {"detail": setup.detail} | ({} if setup.run.run_name is None else {"run_name": setup.run.run_name})
        own |= sections.pop("recorder", {})
        return snapshot(self.correction, self._config, recorder=own, **sections)

    @property
    def should_stop(self) -> bool:
        """True once a finding requested a stop; identical on all ranks after :meth:`flush`."""
        return self._windows.stop

    def start_anew(self) -> None:
        """Forgets open windows, findings and a requested stop, for another training; call it on every rank."""
        self._windows.forget()
        self._reaction.wants_stop = False
        self._changes = FindingChanges()

    def flush(self, *, step: int, split: str = "train") -> Record | None:
        """Closes the window: merges it over ranks and sends it to the trackers. Every rank must call it.

        Makes two collectives and one copy to the host. Raises TypeError for a step that is no integer.

        Args:
            step: the trainer's global step, an integer of Python, numpy or a tensor.
            split: the window to close.

        Returns:
            The record, the same on every rank but for its time and, on rank 0, its ``health`` and ``texts``; None if no
            rank observed anything.
        """
        record = self.merge(step=step, split=split)
        return None if record is None else self.write(record)

    def merge(self, *, step: int, split: str = "train") -> Record | None:
        """Closes the window and merges it over ranks: the first half of :meth:`flush`."""
        step, start = whole_step(step), time.perf_counter()
        self._reaction.act()
        with self.incidents.guard("merging ranks"):
            record = self._windows.close(split, step=step, stop=self._reaction.wants_stop)
            if record is not None and record.summary.count("disagreements") and is_main_rank():
                self.incidents.report("weights disagree", record.events[-1])
            self._merge_s = time.perf_counter() - start
            return record
        return None

    def relay(self, logs: Mapping[str, Any], *, step: int, split: str = "train", record: Record | None = None) -> None:
        """Stores and sends a trainer's own log, together with the window's record if there is one.

        Args:
            logs: the trainer's log; entries that are no finite number are left out.
            step: the trainer's global step.
            split: ``"train"`` or ``"eval"``.
            record: the window's record.
        """
        record = record or Record(whole_step(step), split, time.time(), {}, HostSummary.empty(self.correction))
        with self.incidents.guard("relaying a log"):
            self.write(replace(record, logs=numbers(logs)))

    def write(self, record: Record) -> Record:
        """Stores a record and sends it: the second half of :meth:`flush`. Does nothing off rank 0; never raises.

        Returns:
            The stored record: with the state of delivery and the texts of its worst tokens.
        """
        if not is_main_rank():
            return record
        seconds = {"merge_s": self._merge_s, "observe_s": self._windows.observe_s}
        return self._session.write(record, self._run_setup, **seconds)

    def close(self) -> None:
        """Sends the remaining records and ends the runs that the recorder opened.

        Bounded by ``close_timeout``; never raises. A signal handler may call it at any moment: if it interrupts another
        call of the recorder, the recorder is closed at the end of that call.
        """
        self._session.close()

    @property
    def journal_path(self) -> Path | None:
        """The journal's file; None where there is none, and while it cannot be written."""
        return self._session.journal_path

    def where(self) -> list[str]:
        """Returns the location of each open tracker's run, one line each."""
        return self._session.where()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
