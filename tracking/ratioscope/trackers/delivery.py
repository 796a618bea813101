"""Background: any tracker, moved off the training thread."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from ratioscope.incidents import Incidents

if TYPE_CHECKING:
    from ratioscope.trackers.base import Row, RunContext, Tracker


class Background:
    """Wraps a tracker so that ``write`` returns at once and ``close`` waits a bounded time.

    One daemon thread serves one tracker, so a dead backend does not slow a live one. When the queue is full the
    oldest row is dropped and counted.

    Args:
        tracker: the tracker to serve.
        incidents: where its failures are reported.
        capacity: rows that may wait.
        timeout: seconds that ``close`` waits.
    """

    background = False

    def __init__(self, tracker: Tracker, incidents: Incidents, *, capacity: int = 256, timeout: float = 10.0) -> None:
        self.name = tracker.name
        self._tracker = tracker
        self._incidents = incidents
        self._timeout = timeout
        self._rows: queue.Queue[Row | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._serve, name=f"ratioscope-{tracker.name}", daemon=True)

    def open(self, run: RunContext) -> bool:
        """Opens the tracker on this thread, then starts the other."""
        if self._tracker.open(run):
            self._thread.start()
            return True
        return False

    def write(self, row: Row) -> None:
        """Queues the row."""
        self._put(row)

    def close(self) -> None:
        """Lets the thread finish, for at most the timeout."""
        if not self._thread.is_alive():
            return
        self._put(None)
        self._thread.join(self._timeout)
        if self._thread.is_alive():
            waiting = self._rows.qsize()
            self._incidents.report(
                f"{self.name} did not finish",
                f"{self.name} had not taken everything {self._timeout:g} s after the end; {waiting} rows were left",
            )

    def where(self) -> str:
        """One line for a person."""
        return self._tracker.where()

    def _put(self, row: Row | None) -> None:
        while True:
            try:
                return self._rows.put_nowait(row)
            except queue.Full:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        try:
            self._rows.get_nowait()
        except queue.Empty:
            return
        self._incidents.report(f"{self.name} queue full", f"{self.name} is too slow; its oldest row was dropped")

    def _serve(self) -> None:
        while (row := self._rows.get()) is not None:
            with self._incidents.guard(f"{self.name} write"):
                self._tracker.write(row)
        with self._incidents.guard(f"{self.name} close"):
            self._tracker.close()
