"""Output: sends the records of one attempt to the journal first, and then to every tracker."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from ratioscope.alerts.confirmation import FindingChanges
from ratioscope.alerts.watch import Watch
from ratioscope.delivery.fanout import Fanout
from ratioscope.incidents import log
from ratioscope.journal.run_journal import RunJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence
    from pathlib import Path

    from ratioscope.event import Event
    from ratioscope.incidents import Incidents
    from ratioscope.record import Record
    from ratioscope.recording.token_texts import TokenTexts
    from ratioscope.trackers.base import RunContext, Tracker

WATCH_SHARE = 0.25
"""Fraction of ``close_timeout`` that the final diagnosis may take; it needs 0.1 s."""


@dataclass(frozen=True)
class RunSetup:
    """Settings of one attempt.

    Attributes:
        trackers: the backends.
        run: the run that they attach to; its ``output_dir`` holds the journal, None for no journal.
        incidents: where failures are reported.
        on_event: called with each event, from any thread.
        detail: which scalars trackers receive.
        close_timeout: seconds that ``close`` waits for trackers.
        changes: findings that the diagnosis reported before.
        texts: finds the texts of worst tokens; None to keep ids only.
        reporters: the trainer's own callbacks by tracker name.
        live_runs: by tracker name, a function that returns the run of another framework to attach to, or None.
        restored_step: the step of the checkpoint that this process continues from.
        already_logged: findings not to log again.
    """

    trackers: Sequence[Tracker]
    run: RunContext
    incidents: Incidents
    on_event: Callable[[Event], None]
    detail: str = "standard"
    close_timeout: float = 10.0
    changes: FindingChanges = field(default_factory=FindingChanges)
    texts: TokenTexts | None = None
    reporters: Mapping[str, object] = field(default_factory=dict)
    live_runs: Mapping[str, Callable[[], object | None]] = field(default_factory=dict)
    restored_step: int | None = None
    already_logged: Container[str] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> RunSetup:
        """Copies all but the trackers: their clients hold connections and threads."""
        copied = {
            each.name: deepcopy(getattr(self, each.name), memo) for each in fields(self) if each.name != "trackers"
        }
        return RunSetup(trackers=self.trackers, **copied)


class Output:
    """Opens a journal, serves trackers and watches the run. No method raises.

    Args:
        setup: the attempt's settings.
    """

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup
        self._incidents = setup.incidents
        self._journal: RunJournal | None = None
        self._flush_ms: float | None = None
        run = setup.run
        if run.output_dir is not None:
            with self._incidents.guard("journal"):
                self._journal = RunJournal(
                    run.output_dir, config=run.config, restored_step=setup.restored_step, incidents=setup.incidents
                )
        self._fanout = Fanout(
            setup.trackers,
            run,
            incidents=setup.incidents,
            detail=setup.detail,
            reporters=setup.reporters,
            hosts=setup.live_runs,
            journal=self._journal,
            close_timeout=setup.close_timeout,
        )
        self._watch = Watch(run.config, self._on_event, incidents=setup.incidents, changes=setup.changes)
        self._watch.start()

    @property
    def journal_path(self) -> Path | None:
        """The journal's file; None where there is none, and while it cannot be written."""
        return None if self._journal is None or self._journal.is_held else self._journal.path

    def open(self) -> None:
        """Opens the trackers whose runs exist by now."""
        self._fanout.open()

    def write(self, record: Record, *, merge_s: float, observe_s: float) -> Record:
        """Commits a record to the journal, then hands it to the trackers and to the diagnosis.

        Args:
            record: the window.
            merge_s: merge time in seconds, reported with the next record.
            observe_s: seconds that observing took the training thread in the window.

        Returns:
            The stored record: with the state of delivery and the texts of its worst tokens.
        """
        start = time.perf_counter()
        if self._setup.texts is not None:
            record = self._setup.texts.add(record)
        with self._incidents.guard("delivery counts"):
            record = replace(record, health=self._health(record, observe_s))
        identifier = None
        if self._journal is not None:
            with self._incidents.guard("journal"):
                identifier = self._journal.append(record)
        with self._incidents.guard("writing a record"):
            self._fanout.write(record, identifier=identifier)
        with self._incidents.guard("diagnosis"):
            self._watch.add(record)
        self._flush_ms = 1000.0 * (merge_s + time.perf_counter() - start)
        return record

    def close(self) -> None:
        """Waits at most ``close_timeout`` for the diagnosis and the trackers, ends our runs, and closes the journal."""
        deadline = time.monotonic() + self._setup.close_timeout
        self._watch.close(WATCH_SHARE * self._setup.close_timeout)
        self._fanout.close(deadline - time.monotonic())
        if self._journal is not None:
            with self._incidents.guard("journal"):
                self._journal.close()

    def where(self) -> list[str]:
        """Returns the location of each open tracker's run, one line each."""
        return self._fanout.where()

    def _health(self, record: Record, observe_s: float) -> dict[str, float]:
        """Cost of recording, state of delivery and open findings; a relayed log without a window has no cost."""
        overhead = {"ratioscope/overhead/observe_ms": 1000.0 * observe_s} if record.scalars or record.events else {}
        if self._flush_ms is not None:
            overhead["ratioscope/overhead/flush_ms"] = self._flush_ms
        findings = self._watch.counts() if record.split == "train" and record.scalars else {}
        return overhead | self._fanout.health() | findings

    def _on_event(self, event: Event) -> None:
        if event.is_news and (event.step or event.name not in self._setup.already_logged):
            write = log.info if event.status == "gone" else log.warning
            write("%s. %s", event.summary, event.text)
        if self._journal is not None:
            with self._incidents.guard("journal"):
                self._journal.append_event(event)
        with self._incidents.guard("reporting an event"):
            self._fanout.alert(event)
            self._setup.on_event(event)
