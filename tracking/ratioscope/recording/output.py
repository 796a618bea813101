"""Output: where the records of one attempt go, the journal first and then every tracker."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ratioscope.alerts.watch import Watch
from ratioscope.delivery.fanout import Fanout
from ratioscope.journal.writer import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence
    from pathlib import Path

    from ratioscope.alerts.changes import News
    from ratioscope.event import Event
    from ratioscope.incidents import Incidents
    from ratioscope.record import Record
    from ratioscope.recording.token_texts import TokenTexts
    from ratioscope.trackers.base import RunContext, Tracker

logger = logging.getLogger("ratioscope")

WATCH_SHARE = 0.25
"""Part of the time at the end that the diagnosis may take; it needs 0.1 s."""


class Output:
    """Opens a journal and serves trackers. Nothing of it raises.

    Args:
        trackers: the backends.
        run: the run that they attach to; its ``output_dir`` is where the journal lies, None for no journal.
        incidents: where failures are reported.
        detail: which scalars trackers receive.
        close_timeout: seconds that ``close`` waits for trackers.
        reporters: the trainer's own callbacks by tracker name.
        hosts: what asks another framework for its live run, by tracker name.
        restored_step: the step of the checkpoint that this process continues from.
        texts: finds the texts of worst tokens; None to keep ids only.
        hear: hears of each event, on any thread, after the trackers were given it.
        news: what the diagnosis told before.
        said: findings that the trainer's side has already logged, if the config alone gives them.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        run: RunContext,
        *,
        incidents: Incidents,
        detail: str,
        close_timeout: float,
        reporters: Mapping[str, object] | None,
        hosts: Mapping[str, Callable[[], object | None]],
        restored_step: int | None,
        hear: Callable[[Event], None],
        news: News,
        said: Container[str] = (),
        texts: TokenTexts | None = None,
    ) -> None:
        self._incidents = incidents
        self._texts = texts
        self._hear = hear
        self._said = said
        self._close_timeout = close_timeout
        self._journal: Journal | None = None
        self._flush_ms: float | None = None
        if run.output_dir is not None:
            with incidents.guard("journal"):
                self._journal = Journal(run.output_dir, config=run.config, restored_step=restored_step)
        self._fanout = Fanout(
            trackers,
            run,
            incidents=incidents,
            detail=detail,
            reporters=reporters,
            hosts=hosts,
            journal=self._journal,
            close_timeout=close_timeout,
        )
        self._watch = Watch(run.config, self._tell, incidents=incidents, news=news)
        self._watch.start()

    @property
    def journal_path(self) -> Path | None:
        """The journal's file; None where there is none or it could not be opened."""
        return None if self._journal is None else self._journal.path

    def open(self) -> None:
        """Opens the trackers whose runs are there by now."""
        self._fanout.open()

    def write(self, record: Record, *, merge_s: float, observe_s: float) -> Record:
        """Commits a record to the journal, then hands it to the trackers.

        Args:
            record: the window.
            merge_s: seconds that merging it took, to be told with the next one.
            observe_s: seconds that observing took the training's thread in the window.

        Returns:
            The record as it was kept, with how delivery stands and the texts of its worst tokens.
        """
        start = time.perf_counter()
        if self._texts is not None:
            record = self._texts.add(record)
        with self._incidents.guard("delivery counts"):
            overhead = {"ratioscope/overhead/observe_ms": 1000.0 * observe_s} if record.scalars else {}
            overhead |= {} if self._flush_ms is None else {"ratioscope/overhead/flush_ms": self._flush_ms}
            found = self._watch.counts() if record.split == "train" and record.scalars else {}
            record = replace(record, health=overhead | self._fanout.health() | found)
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
        """Waits a bounded time for the diagnosis and the trackers, ends our runs, and lets go of the journal."""
        self._watch.close(WATCH_SHARE * self._close_timeout)
        self._fanout.close()
        if self._journal is not None:
            with self._incidents.guard("journal"):
                self._journal.close()

    def _tell(self, event: Event) -> None:
        if event.is_news and (event.step or event.name not in self._said):
            say = logger.info if event.status == "gone" else logger.warning
            say("%s. %s", event.title, event.text)
        if self._journal is not None:
            with self._incidents.guard("journal"):
                self._journal.append_event(event)
        with self._incidents.guard("telling an event"):
            self._fanout.alert(event)
            self._hear(event)

    def where(self) -> list[str]:
        """One line for each open tracker: where to look."""
        return self._fanout.where()
