"""Background delivery: a thread of its own serves one tracker, from the journal, for as long as it takes."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from ratioscope.delivery.sender import Sender
from ratioscope.threads import Flag, Worker
from ratioscope.trackers.base import Tracker

if TYPE_CHECKING:
    from ratioscope.delivery.sender import Supply
    from ratioscope.event import Event
    from ratioscope.incidents import Incidents
    from ratioscope.trackers.base import Row, RunContext

PAUSE_S = 1.0
"""Seconds that the thread rests after a delivery, so that records of short steps are sent together."""
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0
"""Seconds before a tracker that failed is tried again; the delay doubles from the first to the longest."""
GRACE_S = 0.5
"""Seconds at the end of the timeout in which a thread that is between two rows notices that nobody waits any more."""


class Background(Tracker):
    """Wraps a tracker so that nothing waits for it.

    One daemon thread serves one tracker, so a dead backend does not slow a live one. Rows come from the journal,
    oldest first, and are marked there when the tracker has taken them; after a failure the thread waits and tries
    again. Rows that no journal holds wait in memory; if there are too many of those, the oldest is dropped. Where no
    thread can be started, rows stay in the journal; each record tries again.

    Args:
        tracker: the tracker to serve.
        incidents: receives the tracker's failures.
        supply: the journal's rows for the tracker; None without a journal.
        capacity: number of rows without a journal that may wait.
        timeout: seconds that ``close`` waits.

    Attributes:
        failed: number of attempts that failed.
    """

    def __init__(
        self,
        tracker: Tracker,
        incidents: Incidents,
        *,
        supply: Supply | None = None,
        capacity: int = 256,
        timeout: float = 10.0,
    ) -> None:
        self.name = tracker.name
        self.failed = 0
        self._tracker = tracker
        self._sender = Sender(tracker, incidents, supply=supply, capacity=capacity)
        self._incidents = incidents
        self._timeout = timeout
        self._recorded = self._sender.count_rows()
        self._deadline: float | None = None
        self._opened = False
        self._wake, self._closing = Flag(), Flag()
        self._worker = Worker(self._serve, name=f"ratioscope-{tracker.name}", incidents=incidents)

    @property
    def delivered(self) -> int:
        """Number of rows that the tracker has taken in this process."""
        return self._sender.delivered

    @property
    def takes_alerts(self) -> bool:
        """True if the wrapped tracker takes alerts."""
        return self._tracker.takes_alerts

    def open(self, run: RunContext) -> bool:
        """Opens the tracker on the calling thread, then starts the delivery thread."""
        self._opened = self._sender.open(run)
        if self._opened:
            self._worker.start()
        return self._opened

    def write(self, row: Row) -> None:
        """Queues a row that no journal holds."""
        rows = self._sender.rows
        if len(rows) == rows.maxlen:
            self._incidents.report(f"{self.name} queue full", f"{self.name} is too slow; its oldest row was dropped")
        rows.append(row)
        self._wake.set()

    def alert(self, event: Event) -> None:
        """Queues an event if the tracker takes alerts; if there are too many, the oldest is dropped."""
        if self.takes_alerts:
            self._sender.alerts.append(event)
            self._wake.set()

    def wake(self, records: int = 0) -> None:
        """Notifies the thread that the journal has this many new records."""
        self._recorded += records
        if self._opened:
            self._worker.start()
        self._wake.set()

    def queued(self) -> int:
        """Counts the rows that the tracker has not taken yet."""
        # From counters, not from the journal: this runs at every flush and thousands of rows may wait.
        return len(self._sender.rows) + max(0, self._recorded - self._sender.taken)

    def finish(self, timeout: float | None = None) -> None:
        """Signals the thread that no more rows come, and starts the timeout of ``close``, or a shorter one."""
        if self._deadline is None:
            self._deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        self._closing.set()
        self._wake.set()

    def wait(self) -> None:
        """Waits for the thread until just before the timeout, and then asks it to end after the row in its hands."""
        assert self._deadline is not None
        grace = GRACE_S if self._timeout >= 2.0 * GRACE_S else 0.0
        self._sender.abandoned = not self._worker.join(self._deadline - grace - time.monotonic())

    def close(self) -> None:
        """Waits for the thread, at most for the timeout, and reports the rows that are left."""
        if not self._opened:
            return
        self.finish()
        assert self._deadline is not None
        self.wait()
        abandoned = self._sender.abandoned
        if abandoned:
            if not self._worker.join(max(GRACE_S / 5.0, self._deadline - time.monotonic())):
                with self._incidents.isolate(f"{self.name} close"):
                    self._tracker.abandon()
            self._sender.release()
        rows = self._sender.count_rows()
        if abandoned:
            late = f"{self.name} had not taken everything {self._timeout:g} s after the end; {rows} rows were left"
            self._incidents.report(f"{self.name} did not finish", late + self._remedy())
        elif rows:
            missing = f"{self.name} has not taken {rows} rows"
            self._incidents.report(f"{self.name} is incomplete", missing + self._remedy())

    def where(self) -> str:
        """Returns the tracker's own line."""
        return self._tracker.where()

    def _remedy(self) -> str:
        target = self._sender.target
        if target is None:
            return ""
        folder = target.journal.path.parent.parent
        return f". Deliver them with: ratioscope sync {shlex.quote(str(folder))} --to {shlex.quote(self.name)}"

    def _serve(self) -> None:
        delay = FIRST_DELAY_S
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._drain():
                delay = FIRST_DELAY_S
                if not self._sender.rows:
                    self._closing.wait(PAUSE_S)
            else:
                self._closing.wait(delay)
                delay = min(2 * delay, LONGEST_DELAY_S)
                self._wake.set()
                if self._closing.is_set():
                    self._drain()  # one last attempt: `close` is waiting
                    break
            if self._closing.is_set() and not self._wake.is_set():
                break
        with self._sender.guard("close"):
            self._sender.end()

    def _drain(self) -> bool:
        """Sends all rows and events; returns False if the tracker failed."""
        sender, sent = self._sender, False
        with sender.guard("write"):
            if sender.has_rows():  # otherwise a training without a record would leave an empty run
                sender.connect()
                while not sender.abandoned and sender.send_rows():
                    pass
            sent = True
        sent = sent and sender.send_alerts()
        if not sent:
            self.failed += 1
        return sent
