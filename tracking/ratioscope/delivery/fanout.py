"""Fanout: sends each record to all trackers and isolates their failures from each other."""

from __future__ import annotations

import os
from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ratioscope.delivery.background import Background
from ratioscope.delivery.sender import Supply
from ratioscope.journal.targets import mark_all, open_target
from ratioscope.trackers.rows import RowMaker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratioscope.event import Event
    from ratioscope.incidents import Incidents
    from ratioscope.journal.targets import Target
    from ratioscope.journal.writer import Journal
    from ratioscope.record import Record
    from ratioscope.trackers.base import Row, RunContext, Tracker


@dataclass
class _Sink:
    """Holds one tracker, its run and the counts of its delivery.

    Attributes:
        name: the tracker's name, read once.
        tracker: the tracker, wrapped where it is served in the background.
        run: the context to open it with.
        target: its entry in the journal; None without a journal.
        host: returns another framework's live run, None until there is one; None if no framework has one.
        opened: whether the tracker has its run.
        delivered: number of rows that the tracker took on the training thread.
        failed: number of rows that it refused there.
        waiting: rows and their ids in the journal, from before the tracker had its run.
        alerts: events to report at the next ``open``.
    """

    name: str
    tracker: Tracker
    run: RunContext
    target: Target | None
    host: Callable[[], object | None] | None = None
    opened: bool = False
    delivered: int = 0
    failed: int = 0
    waiting: deque[tuple[int | None, Row]] = field(default_factory=lambda: deque(maxlen=64))
    alerts: deque[Event] = field(default_factory=lambda: deque(maxlen=64))

    @property
    def reported(self) -> bool:
        return self.run.reporter is not None


class Fanout:
    """Sends records and events to trackers.

    A tracker whose trainer has not opened its run yet keeps its rows until it has. Scalars that the trainer itself
    reports to a backend are not sent there a second time.

    Args:
        trackers: the backends.
        run: the run that they attach to.
        incidents: receives failures.
        detail: which scalars are sent, as in :mod:`ratioscope.metrics.metric`.
        reporters: the trainer's own callback for a backend, by tracker name.
        hosts: functions that return another framework's live run, by tracker name; a tracker waits until it has one.
        journal: the journal that has the records; None without one.
        close_timeout: seconds that ``close`` waits for trackers in the background, all together.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        run: RunContext,
        *,
        incidents: Incidents,
        detail: str = "standard",
        reporters: Mapping[str, object] | None = None,
        hosts: Mapping[str, Callable[[], object | None]] | None = None,
        journal: Journal | None = None,
        close_timeout: float = 10.0,
    ) -> None:
        self._close_timeout = close_timeout
        self._incidents = incidents
        self._pid = os.getpid()
        self._rows = RowMaker(detail)
        if journal is not None:
            with incidents.guard("journal"):
                self._rows.follow(journal.first_records())
        self._hosts = hosts or {}
        self._sinks: list[_Sink] = []
        for tracker in trackers:
            with incidents.isolate("a tracker's set-up"):
                self._sinks.append(self._sink(tracker, run, reporters or {}, journal))

    def open(self) -> None:
        """Opens trackers that are not open yet. Call it whenever the trainer may have opened its runs."""
        if os.getpid() != self._pid:  # a forked child has none of our threads and shares the backends' sockets
            return
        for sink in self._sinks:
            if not sink.opened:
                with self._incidents.isolate(f"{sink.name} open"):
                    self._open(sink)
                if sink.opened and isinstance(sink.tracker, Background):
                    sink.tracker.wake()
            while sink.opened and sink.waiting:
                identifier, row = sink.waiting.popleft()
                if self._write(sink, row):
                    self._mark([sink], identifier)
            while sink.opened and sink.alerts:
                with self._incidents.isolate(f"{sink.name} alert"):
                    sink.tracker.alert(sink.alerts.popleft())

    def write(self, record: Record, *, identifier: int | None = None) -> None:
        """Sends one record to all trackers.

        Args:
            record: the window.
            identifier: the record's id in the journal; None without a journal.
        """
        if os.getpid() != self._pid:
            return
        rows: dict[bool, Row] = {}
        taken: list[_Sink] = []
        for sink in self._sinks:
            if identifier is not None and sink.target is not None and isinstance(sink.tracker, Background):
                sink.tracker.wake(1)
                continue
            if sink.reported not in rows:
                rows[sink.reported] = self._rows.make(record, reported=sink.reported)
            row = rows[sink.reported].copy()
            if not sink.opened:
                self._wait(sink, identifier, row)
            elif self._write(sink, row):
                taken.append(sink)
        self._mark(taken, identifier)

    def alert(self, event: Event) -> None:
        """Passes an event to each tracker that takes alerts. May be called from any thread.

        A tracker in the background reports it on its own thread, any other at the next ``open``.
        """
        for sink in self._sinks:
            queue = sink.tracker.alert if isinstance(sink.tracker, Background) else sink.alerts.append
            with self._incidents.isolate(f"{sink.name} alert"):
                if sink.tracker.takes_alerts:
                    queue(event)

    def health(self) -> dict[str, float]:
        """Returns the numbers of rows queued and delivered and of failed attempts, for each tracker."""
        health: dict[str, float] = {}
        for sink in self._sinks:
            counter = sink.tracker if isinstance(sink.tracker, Background) else sink
            queued = counter.queued() if isinstance(counter, Background) else len(counter.waiting)
            counts = {"queued": queued, "delivered": counter.delivered, "failed": counter.failed}
            health |= {f"ratioscope/delivery/{sink.name}/{name}": count for name, count in counts.items()}
        return health

    def close(self, timeout: float | None = None) -> None:
        """Closes all trackers; waits for those in the background together, for the timeout or ``close_timeout``."""
        if os.getpid() != self._pid:
            return
        self.open()
        served = [sink.tracker for sink in self._sinks if sink.opened and isinstance(sink.tracker, Background)]
        for tracker in served:
            tracker.finish(timeout)
        for tracker in served:
            tracker.wait()
        for sink in self._sinks:
            if sink.opened:
                with self._incidents.isolate(f"{sink.name} close"):
                    sink.tracker.close()
            elif rows := self._unsent(sink):
                text = f"{sink.name} never had a run; {rows} rows were not sent"
                self._incidents.report(f"{sink.name} never opened", text)

    def where(self) -> list[str]:
        """Returns one line for each open tracker: where to look."""
        lines: list[str] = []
        for sink in self._sinks:
            if sink.opened:
                with self._incidents.isolate(f"{sink.name} where"):
                    lines.append(f"{sink.name}: {sink.tracker.where()}")
        return lines

    def _sink(
        self, tracker: Tracker, run: RunContext, reporters: Mapping[str, object], journal: Journal | None
    ) -> _Sink:
        name, reporter = tracker.name, reporters.get(tracker.name)
        host = self._hosts.get(name) if reporter is None else None
        shared = reporter is not None or host is not None
        target = None
        if journal is not None:
            owned = not shared and not tracker.attaches()
            with self._incidents.guard("journal"):
                target = open_target(journal, name, owned=owned, reported=reporter is not None)
        identity = None if target is None else target.identity
        context = replace(run, config=deepcopy(run.config), reporter=reporter, identity=identity)
        # A row that merges into the reporter's own must be handed over before the reporter logs.
        if tracker.background and not (shared and tracker.merges):
            supply = None if target is None else Supply(target, self._rows, reported=reporter is not None)
            tracker = Background(tracker, self._incidents, supply=supply, timeout=self._close_timeout)
        return _Sink(name, tracker, context, target, host)

    def _open(self, sink: _Sink) -> None:
        if sink.host is not None:
            sink.run = replace(sink.run, live=sink.host())
            if sink.run.live is None:
                return
        sink.opened = sink.tracker.open(sink.run)
        if sink.opened and sink.target is not None and not isinstance(sink.tracker, Background):
            identity = sink.tracker.connect()
            if identity is not None:
                sink.target.identify(identity)

    def _unsent(self, sink: _Sink) -> int:
        """Counts the rows of a tracker that was never opened."""
        if sink.target is not None:
            with self._incidents.guard("journal"):
                return sink.target.count_missing()
        return len(sink.waiting)

    def _wait(self, sink: _Sink, identifier: int | None, row: Row) -> None:
        if len(sink.waiting) == sink.waiting.maxlen:
            self._incidents.report(f"{sink.name} queue full", f"{sink.name} has no run yet; its oldest row was dropped")
        sink.waiting.append((identifier, row))

    def _write(self, sink: _Sink, row: Row) -> bool:
        """Returns whether the tracker took the row."""
        with self._incidents.isolate(f"{sink.name} write"):
            sink.tracker.write(row)
            sink.delivered += 1
            return True
        sink.failed += 1
        return False

    def _mark(self, sinks: Sequence[_Sink], identifier: int | None) -> None:
        """Marks a record as delivered to these trackers, in one commit: each waits for the interpreter lock."""
        targets = [sink.target for sink in sinks if sink.target is not None]
        if identifier is not None and targets:
            with self._incidents.guard("journal"):
                mark_all(targets, identifier)
