"""Background delivery: a tracker is served by a thread of its own, from the journal, for as long as it takes."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ratioscope.delivery.supply import Supply
    from ratioscope.event import Event
    from ratioscope.incidents import Incidents
    from ratioscope.journal.targets import Target
    from ratioscope.trackers.base import Row, RunContext, Tracker

BATCH = 64
"""Rows that are sent together at the most."""
PAUSE_S = 1.0
"""How long the thread rests after a delivery, so that records of short steps go together."""
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0
"""How long a tracker that failed is left alone; the wait doubles from the first to the longest."""
ALERT_TRIES = 3
"""How often an event is told to a tracker that fails."""


class Background:
    """Wraps a tracker so that nothing waits for it.

    One daemon thread serves one tracker, so a dead backend does not slow a live one. Rows come from the journal,
    oldest first, and are marked there when the tracker has taken them; after a failure the thread waits and tries
    again. Rows that no journal holds wait in memory; when there are too many of those the oldest is dropped.

    Args:
        tracker: the tracker to serve.
        incidents: where its failures are reported.
        supply: what the journal has for it; None without a journal.
        capacity: rows without a journal that may wait.
        timeout: seconds that ``close`` waits.

    Attributes:
        delivered: rows that the tracker has taken in this process.
        failed: attempts that failed.
    """

    background = False

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
        self.delivered = 0
        self.failed = 0
        self._tracker = tracker
        self._incidents = incidents
        self._supply = supply
        self._timeout = timeout
        self._loose: deque[Row] = deque(maxlen=capacity)
        self._alerts: deque[Event] = deque(maxlen=64)
        self._alert_tries = 0
        self._connected = False
        self._known = 0 if supply is None else supply.target.count_missing()
        self._taken = 0
        self._deadline: float | None = None
        self._abandoned = False
        self._news = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"ratioscope-{tracker.name}", daemon=True)

    def open(self, run: RunContext) -> bool:
        """Opens the tracker on this thread, then starts the other."""
        if self._tracker.open(run):
            # Not left to the thread: by then the disk may be full, and ``sync`` would open a second run.
            self._identify(getattr(self._tracker, "identity", None))
            self._thread.start()
            return True
        return False

    def attach(self, run: RunContext) -> None:
        """Opens and connects the tracker on this thread and starts no other; for ``send_batch``."""
        self._tracker.open(run)
        self._connect()

    def write(self, row: Row) -> None:
        """Queues a row that no journal holds."""
        if len(self._loose) == self._loose.maxlen:
            self._incidents.report(f"{self.name} queue full", f"{self.name} is too slow; its oldest row was dropped")
        self._loose.append(row)
        self._news.set()

    def alert(self, event: Event) -> None:
        """Queues an event, for a tracker that can tell it; of too many the oldest is dropped."""
        if hasattr(self._tracker, "alert"):
            self._alerts.append(event)
            self._news.set()

    def wake(self, records: int = 0) -> None:
        """Says that the journal has so many new records."""
        self._known += records
        self._news.set()

    def queued(self) -> int:
        """Rows that the tracker has not taken yet, without a look into the journal."""
        return len(self._loose) + max(0, self._known - self._taken)

    def waiting(self) -> int:
        """The same, counted in the journal."""
        return len(self._loose) + (0 if self._supply is None else self._supply.target.count_missing())

    def finish(self) -> None:
        """Tells the thread that no more is to come; from now on the timeout of ``close`` runs."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._timeout
        self._closing.set()
        self._news.set()

    def close(self) -> None:
        """Lets the thread finish, for at most the timeout, and says what is left."""
        if self._thread.ident is None:
            return
        self.finish()
        assert self._deadline is not None
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        self._abandoned = self._thread.is_alive()
        if self._abandoned and self._supply is not None:
            self._supply.target.release()
        waiting = self.waiting()
        if self._abandoned:
            self._incidents.report(
                f"{self.name} did not finish",
                f"{self.name} had not taken everything {self._timeout:g} s after the end; {waiting} rows were left"
                + self._remedy(),
            )
        elif waiting:
            self._incidents.report(
                f"{self.name} is incomplete", f"{self.name} has not taken {waiting} rows" + self._remedy()
            )

    def where(self) -> str:
        """One line for a person."""
        return self._tracker.where()

    def _remedy(self) -> str:
        if self._supply is None:
            return ""
        folder = self._supply.target.journal.path.parent.parent
        return f". Deliver them with: ratioscope sync {folder} --to {self.name}"

    def _serve(self) -> None:
        delay = FIRST_DELAY_S
        while True:
            self._news.wait()
            self._news.clear()
            if self._drain():
                delay = FIRST_DELAY_S
                if not self._loose:
                    self._closing.wait(PAUSE_S)
            else:
                self._closing.wait(delay)
                delay = min(2 * delay, LONGEST_DELAY_S)
                self._news.set()
                if self._closing.is_set():
                    # One more try, and no more: who waits for us does not wait long.
                    self._drain()
                    break
            if self._closing.is_set() and not self._news.is_set():
                break
        with self._guard(f"{self.name} close"):
            self.end()

    def end(self) -> None:
        """Closes the tracker, after which what it only buffered is delivered, or not."""
        try:
            self._tracker.close()
        except BaseException:
            if self._supply is not None:
                self._supply.target.release()
            raise
        if self._supply is not None:
            self._supply.target.settle()

    def _drain(self) -> bool:
        """Sends everything; False if the tracker failed."""
        sent = False
        with self._guard(f"{self.name} write"):
            if self._loose or (self._supply and self._supply.target.missing(1)):  # no run is opened for nothing
                self._connect()
                while not self._abandoned and self.send_batch():
                    pass
            sent = True
        sent = sent and self.tell()
        if not sent:
            self.failed += 1
        return sent

    def tell(self) -> bool:
        """Tells events, after the rows that they are about; False if the tracker failed and is to be tried again."""
        tell: Any = getattr(self._tracker, "alert", None)
        while self._alerts and not self._abandoned:
            event, told = self._alerts[0], False
            with self._guard(f"{self.name} alert"):
                self._connect()
                tell(event)
                told = True
            self._alert_tries = 0 if told else self._alert_tries + 1
            if not told and self._alert_tries < ALERT_TRIES:
                return False
            self._alert_tries = 0
            if self._alerts and self._alerts[0] is event:
                self._alerts.popleft()
        return True

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Turns an exception into an incident, but for one after ``close`` gave up, which has said what is left."""
        with self._incidents.guard(what):
            try:
                yield
            except Exception:
                if not self._abandoned:
                    raise

    def _connect(self) -> None:
        connect: Any = getattr(self._tracker, "connect", None)
        if self._connected or connect is None:
            return
        planned: Mapping[str, str] | None = getattr(self._tracker, "identity", None)
        self._identify(planned)
        identity: Mapping[str, str] | None = connect()
        self._identify(identity)
        if self._supply is not None and identity is not None:
            received: int | None = getattr(self._tracker, "received", None)
            if received is not None and self._supply.target.owned:
                before = self._supply.target.count_missing()
                self._supply.target.reset(received)
                self._taken -= self._supply.target.count_missing() - before
        self._connected = True

    def _identify(self, identity: Mapping[str, str] | None) -> None:
        if self._supply is not None and identity is not None:
            with self._incidents.guard(f"{self.name} delivery state"):
                self._supply.target.identify(identity)

    def send_batch(self) -> bool:
        """Sends the oldest rows; False if there were none."""
        numbered = [] if self._supply is None else self._supply.take(BATCH)
        if numbered and self._supply is not None:
            self._send_numbered(self._supply.target, numbered)
            return True
        if not self._loose:
            return False
        row = self._loose[0]
        self._tracker.write(row)
        self.delivered += 1
        if self._loose and self._loose[0] is row:
            self._loose.popleft()
        return True

    def _send_numbered(self, target: Target, numbered: list[tuple[int, Row]]) -> None:
        write_many: Any = getattr(self._tracker, "write_many", None)
        if write_many is not None:
            write_many([row for _, row in numbered])
            self._note(target, [identifier for identifier, _ in numbered])
            return
        for identifier, row in numbered:
            self._tracker.write(row)
            self._note(target, [identifier])

    def _note(self, target: Target, taken: list[int]) -> None:
        """Goes on even if the journal cannot be written, as on a full disk: the tracker has the rows."""
        target.hold(taken)
        self._count(len(taken))
        if not getattr(self._tracker, "buffers", False):
            with self._incidents.guard(f"{self.name} delivery state"):
                target.settle()

    def _count(self, rows: int) -> None:
        self.delivered += rows
        self._taken += rows
