"""Background delivery: a thread of its own serves one tracker, from the journal, for as long as it takes."""

from __future__ import annotations

import shlex
import threading
import time
from typing import TYPE_CHECKING

from ratioscope.delivery.sender import Sender
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


class Background(Tracker):
    """Wraps a tracker so that nothing waits for it.

    One daemon thread serves one tracker, so a dead backend does not slow a live one. Rows come from the journal,
    oldest first, and are marked there when the tracker has taken them; after a failure the thread waits and tries
    again. Rows that no journal holds wait in memory; if there are too many of those, the oldest is dropped.

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
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"ratioscope-{tracker.name}", daemon=True)

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
        opened = self._sender.open(run)
        if opened:
            self._thread.start()
        return opened

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
        self._wake.set()

    def queued(self) -> int:
        """Counts the rows that the tracker has not taken yet."""
        # From counters, not from the journal: this runs at every flush and thousands of rows may wait.
        return len(self._sender.rows) + max(0, self._recorded - self._sender.taken)

    def finish(self) -> None:
        """Signals the thread that no more rows come, and starts the timeout of ``close``."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._timeout
        self._closing.set()
        self._wake.set()

    def close(self) -> None:
        """Waits for the thread, at most for the timeout, and reports the rows that are left."""
        if self._thread.ident is None:
            return
        self.finish()
        assert self._deadline is not None
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        abandoned = self._sender.abandoned = self._thread.is_alive()
        if abandoned:
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
