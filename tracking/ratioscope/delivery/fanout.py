"""Fanout: one record to many trackers, each failing on its own."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ratioscope.delivery.background import Background
from ratioscope.delivery.supply import Supply
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
    tracker: Tracker | Background
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
    """Sends records to trackers.

    A tracker whose trainer has not opened its run yet keeps its rows until it has. Scalars that the trainer itself
    reports to a backend are not sent there a second time.

    Args:
        trackers: the backends.
        run: the run that they attach to.
        incidents: where failures are reported.
        detail: which scalars are sent, as in :mod:`ratioscope.metrics.metric`.
        reporters: the trainer's own callback for a backend, by tracker name.
        hosts: what asks another framework for its live run, by tracker name; a tracker waits until it has one.
        journal: where records are committed before they come here; None without one.
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
        self._sinks = [self._sink(tracker, run, (reporters or {}).get(tracker.name), journal) for tracker in trackers]

    def open(self) -> None:
        """Opens what is not open yet. Call it again whenever the trainer may have opened its runs."""
        if os.getpid() != self._pid:  # a forked child has none of our threads and shares the backends' sockets
            return
        for sink in self._sinks:
            if not sink.opened:
                with self._incidents.guard(f"{sink.tracker.name} open"):
                    if sink.host is not None:
                        sink.run = replace(sink.run, live=sink.host())
                    if sink.host is None or sink.run.live is not None:
                        sink.opened = sink.tracker.open(sink.run)
                        self._identify(sink)
                if sink.opened and isinstance(sink.tracker, Background):
                    sink.tracker.wake()
            while sink.opened and sink.waiting:
                identifier, row = sink.waiting.popleft()
                if self._write(sink, row):
                    self._mark([sink], identifier)
            while sink.opened and sink.alerts:
                with self._incidents.guard(f"{sink.tracker.name} alert"):
                    alert: Any = getattr(sink.tracker, "alert", None)
                    alert(sink.alerts.popleft())

    def write(self, record: Record, *, identifier: int | None = None) -> None:
        """Sends one record to every tracker.

        Args:
            record: the window.
            identifier: its id in the journal; None if it is not there.
        """
        if os.getpid() != self._pid:
            return
        rows: dict[bool, Row] = {}
        taken: list[_Sink] = []
        for sink in self._sinks:
            if identifier is not None and isinstance(sink.tracker, Background):
                sink.tracker.wake(1)
                continue
            if sink.reported not in rows:
                rows[sink.reported] = self._rows.make(record, reported=sink.reported)
            row = rows[sink.reported]
            if not sink.opened:
                self._wait(sink, identifier, row)
            elif self._write(sink, row):
                taken.append(sink)
        self._mark(taken, identifier)

    def alert(self, event: Event) -> None:
        """Tells an event to each tracker that has ``alert``; from any thread.

        A tracker in the background hears of it on its own thread, any other at the next ``open``.
        """
        for sink in self._sinks:
            if isinstance(sink.tracker, Background):
                sink.tracker.alert(event)
            elif hasattr(sink.tracker, "alert"):
                sink.alerts.append(event)

    def health(self) -> dict[str, float]:
        """How delivery stands: rows queued and delivered, and attempts that failed, for each tracker."""
        state: dict[str, float] = {}
        for sink in self._sinks:
            served = sink.tracker if isinstance(sink.tracker, Background) else sink
            queued = served.queued() if isinstance(served, Background) else len(served.waiting)
            at = f"ratioscope/delivery/{sink.tracker.name}"
            state |= {f"{at}/queued": queued, f"{at}/delivered": served.delivered, f"{at}/failed": served.failed}
        return state

    def close(self) -> None:
        """Closes every tracker, each on its own; all that are slow are waited for at the same time."""
        if os.getpid() != self._pid:
            return
        self.open()
        for sink in self._sinks:
            if sink.opened and isinstance(sink.tracker, Background):
                sink.tracker.finish()
        for sink in self._sinks:
            if sink.opened:
                with self._incidents.guard(f"{sink.tracker.name} close"):
                    sink.tracker.close()
            elif rows := self._unsent(sink):
                name = sink.tracker.name
                self._incidents.report(f"{name} never opened", f"{name} never had a run; {rows} rows were not sent")

    def where(self) -> list[str]:
        """One line for each open tracker: where to look."""
        lines: list[str] = []
        for sink in self._sinks:
            if sink.opened:
                with self._incidents.guard(f"{sink.tracker.name} where"):
                    lines.append(f"{sink.tracker.name}: {sink.tracker.where()}")
        return lines

    def _sink(self, tracker: Tracker, run: RunContext, reporter: object | None, journal: Journal | None) -> _Sink:
        # A row that merges into the reporter's own must be handed over before the reporter logs.
        host = self._hosts.get(tracker.name) if reporter is None else None
        merged = reporter is not None or host is not None
        inline = not tracker.background or (merged and getattr(tracker, "merges", False))
        target = None
        if journal is not None:
            with self._incidents.guard("journal"):
                attaches: Any = getattr(tracker, "attaches", None)
                owned = not merged and not (attaches is not None and attaches())
                target = open_target(journal, tracker.name, owned=owned, reported=reporter is not None)
        identity = None if target is None else target.identity
        context = replace(run, reporter=reporter, identity=identity)
        if inline:
            return _Sink(tracker, context, target, host)
        supply = None if target is None else Supply(target, self._rows, reported=reporter is not None)
        return _Sink(
            Background(tracker, self._incidents, supply=supply, timeout=self._close_timeout), context, target, host
        )

    def _identify(self, sink: _Sink) -> None:
        """Notes which run an inline tracker is attached to; in the background the thread does."""
        connect: Any = getattr(sink.tracker, "connect", None)
        if sink.opened and sink.target is not None and connect is not None:
            sink.target.identify(connect())

    def _unsent(self, sink: _Sink) -> int:
        """Rows of a tracker that was never opened."""
        if sink.target is not None:
            with self._incidents.guard("journal"):
                return sink.target.count_missing()
        return len(sink.waiting)

    def _wait(self, sink: _Sink, identifier: int | None, row: Row) -> None:
        if len(sink.waiting) == sink.waiting.maxlen:
            name = sink.tracker.name
            self._incidents.report(f"{name} queue full", f"{name} has no run yet; its oldest row was dropped")
        sink.waiting.append((identifier, row))

    def _write(self, sink: _Sink, row: Row) -> bool:
        """Whether the tracker took the row."""
        with self._incidents.guard(f"{sink.tracker.name} write"):
            sink.tracker.write(row)
            sink.delivered += 1
            return True
        sink.failed += 1
        return False

    def _mark(self, sinks: Sequence[_Sink], identifier: int | None) -> None:
        """Notes that these trackers have a record, in one commit: each one waits for the interpreter lock."""
        targets = [sink.target for sink in sinks if sink.target is not None]
        if identifier is not None and targets:
            with self._incidents.guard("journal"):
                mark_all(targets, identifier)
