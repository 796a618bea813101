"""Recorder: observe, merge, record, report."""

from __future__ import annotations

import atexit
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ratioscope.alerts.changes import News
from ratioscope.alerts.reaction import OnFinding, Reaction
from ratioscope.config.snapshot import snapshot
from ratioscope.incidents import Incidents
from ratioscope.metrics.catalogue import keys
from ratioscope.record import Record
from ratioscope.recording.accelerate import Host
from ratioscope.recording.observer import Observer
from ratioscope.recording.output import Output
from ratioscope.recording.ranks import is_main_rank
from ratioscope.recording.token_texts import Decode, TokenTexts
from ratioscope.summary.host import HostSummary
from ratioscope.trackers.base import RunContext
from ratioscope.trackers.registry import ReportTo, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping
    from types import TracebackType

    import torch.distributed as dist

    from ratioscope.correction.rule import Correction


class Recorder(Observer):
    """Records a correction step of your own training loop.

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
        config: what else is to be kept beside the run. Secrets are redacted.
        output_dir: where the journal and runs of our own keep their files; None for no journal.
        run_name: name of a run of our own.
        detail: which scalars trackers receive: ``"headline"``, ``"standard"`` or ``"full"``.
        close_timeout: seconds that ``close`` waits for what trackers have not received yet; the journal keeps it.
        decode: a tokenizer, or a function from a list of ids to text, with which rank 0 adds to each record the texts
            of its worst tokens and their neighbours; they go to the journal and to trackers. None to keep ids only.
        group: process group to merge over; None for the accelerator's, or the default one.
        accelerator: an ``accelerate.Accelerator`` whose ranks are merged, and whose ``log_with`` trackers' runs are
            attached to and never finished.
        on_finding: what the run does about what the diagnosis finds meanwhile: None for nothing, ``"warn"``, ``"stop"``
            or a callable of one event, as in :mod:`ratioscope.alerts.reaction`.

    Attributes:
        incidents: what went wrong in flight, counted by kind.
        correction: the rule.

    Raises:
        ValueError: if a tracker's name, the detail or ``on_finding`` is unknown.
        ImportError: if a named tracker's package is missing.
        TypeError: if ``decode`` cannot decode, or the accelerator is none.
    """

    def __init__(
        self,
        *,
        report_to: ReportTo = None,
        correction: Correction | None = None,
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
        self._host = Host(accelerator)
        self.incidents = Incidents()
        self._texts = None if decode is None else TokenTexts(decode, self.incidents)
        self._reaction = Reaction(on_finding, self.incidents)
        self._news = News()
        super().__init__(correction, group=self._host.group(group))
        self._trackers = resolve(self._host.report_to(report_to))
        self._output_dir = None if output_dir is None else Path(output_dir)
        self._run_name = run_name
        self._detail = detail
        self._close_timeout = close_timeout
        self._config = config
        self._output: Output | None = None
        self._merge_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether trackers were opened and not closed since."""
        return self._output is not None

    @property
    def tracker_names(self) -> list[str]:
        """Names of the trackers that it reports to."""
        return [tracker.name for tracker in self._trackers]

    def open(
        self,
        *,
        reporters: Mapping[str, object] | None = None,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        restored_step: int | None = None,
        said: Container[str] = (),
        hosts: Mapping[str, Callable[[], object | None]] | None = None,
    ) -> None:
        """Opens journal and trackers; done by itself at the first flush of an own loop. Does nothing off rank 0.

        Args:
            reporters: the trainer's own callbacks by tracker name, whose runs are attached to.
            sections: further sections of the run config.
            restored_step: the step of the checkpoint that this process continues from; 0 for a start from scratch.
                Later records of earlier attempts in the same output directory are superseded.
            said: findings of the config that need no further warning in the log.
            hosts: by tracker name, what asks another framework for the run that it has opened there, to which it logs
                at the same steps; None as long as there is none.
        """
        if not is_main_rank():
            return
        if self._output is None:
            with self.incidents.guard("run config"):
                own = {"detail": self._detail} | ({} if self._run_name is None else {"run_name": self._run_name})
                given = self._host.sections() | dict(sections or {})
                own |= given.pop("recorder", {})
                config = snapshot(self.correction, self._config, recorder=own, **given)
                self._output = Output(
                    self._trackers,
                    RunContext(config=config, output_dir=self._output_dir, run_name=self._run_name),
                    incidents=self.incidents,
                    detail=self._detail,
                    close_timeout=self._close_timeout,
                    reporters=reporters,
                    hosts={**self._host.runs(), **(hosts or {})},
                    restored_step=restored_step,
                    texts=self._texts,
                    hear=self._reaction.hear,
                    news=self._news,
                    said=said,
                )
                atexit.register(self.close)
        if self._output is not None:
            self._output.open()

    @property
    def should_stop(self) -> bool:
        """Whether training is to end because of a finding; the same on every rank from the same ``flush`` on."""
        return self._windows.stop

    def start_anew(self) -> None:
        """Forgets what was found and that training was to end, for another training; on every rank."""
        self._windows.stop = self._reaction.wants_stop = False
        self._news = News()

    def flush(self, *, step: int, split: str = "train") -> Record | None:
        """Closes the window: merges it over ranks and sends it to the trackers. Never raises.

        Every rank must call it. It makes two collectives and one copy to the host.

        Args:
            step: the trainer's global step.
            split: the window to close.

        Returns:
            The record, the same on every rank but for its time and, on rank 0, its ``health`` and ``texts``; None if no
            rank observed anything.
        """
        record = self.merge(step=step, split=split)
        return None if record is None else self.write(record)

    def merge(self, *, step: int, split: str = "train") -> Record | None:
        """The first half of :meth:`flush`: closes the window and merges it, without telling a tracker."""
        start = time.perf_counter()
        self._reaction.act()
        with self.incidents.guard("merging ranks"):
            record = self._windows.close(split, step=step, stop=self._reaction.wants_stop)
            if record is not None and record.summary.count("disagreements") and is_main_rank():
                self.incidents.report("weights disagree", record.events[-1])
            self._merge_s = time.perf_counter() - start
            return record
        return None

    def relay(self, logs: Mapping[str, Any], *, step: int, split: str = "train", record: Record | None = None) -> None:
        """Keeps and sends a trainer's own log, together with the window's record if there is one. Never raises.

        Args:
            logs: the trainer's log; what is no finite number is left out.
            step: the trainer's global step.
            split: ``"train"`` or ``"eval"``.
            record: the window's record.
        """
        if record is None:
            record = Record(step, split, time.time(), {}, HostSummary.empty(self.correction))
        with self.incidents.guard("relaying a log"):
            numbers = {key: float(value) for key, value in logs.items() if isinstance(value, int | float)}
            finite = {key: value for key, value in numbers.items() if math.isfinite(value)}
            self.write(replace(record, logs=finite))

    def write(self, record: Record) -> Record:
        """The second half of :meth:`flush`: keeps a record and sends it. Does nothing off rank 0; never raises.

        Returns:
            The record as it was kept, with how delivery stands and the texts of its worst tokens.
        """
        self.open()
        if self._output is None:
            return record
        atexit.unregister(self.close)  # the newest hook runs first: before that of a tracker which was imported since
        atexit.register(self.close)
        return self._output.write(record, merge_s=self._merge_s, observe_s=self._windows.observe_s)

    def close(self) -> None:
        """Sends what is held back and ends the runs that we opened. Waits a bounded time and never raises."""
        output, self._output = self._output, None
        if output is not None:
            atexit.unregister(self.close)
            output.close()

    @property
    def journal_path(self) -> Path | None:
        """The journal's file; None where there is none or it could not be opened."""
        return None if self._output is None else self._output.journal_path

    def where(self) -> list[str]:
        """One line for each open tracker: where to look."""
        return [] if self._output is None else self._output.where()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
