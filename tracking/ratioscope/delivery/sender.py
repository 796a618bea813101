"""Sender: sends to one tracker, on the calling thread, the rows that it lacks, and marks them in the journal."""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ratioscope.trackers.base import BATCH

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from ratioscope.event import Event
    from ratioscope.incidents import Incidents
    from ratioscope.journal.targets import Target
    from ratioscope.trackers.base import Row, RunContext, Tracker
    from ratioscope.trackers.rows import RowMaker

ALERT_TRIES = 3
"""Attempts to send one event to a tracker that fails."""

ROW_TRIES = 3
"""Failures in a row at the same row, after which it is found out whether the tracker refuses this row alone."""
REFUSED_AFTER_S = 5.0
"""Seconds for which sending must have failed at this row before that, so that a short outage refuses no row."""
LONGEST_REFUSAL_S = 5.0
"""Seconds of a failed call after which that is not tried: the tracker did not answer, so it refused no row."""


class Supply:
    """Reads from the journal the rows that a tracker lacks.

    Args:
        target: the tracker's entry in the journal.
        rows: makes rows of records.
        reported: whether the trainer itself reports the headline to this tracker.
    """

    def __init__(self, target: Target, rows: RowMaker, *, reported: bool) -> None:
        self.target = target
        self._rows = rows
        self._reported = reported

    def take(self, limit: int, left_out: Container[int] = ()) -> list[tuple[int, Row]]:
        """Returns the oldest missing rows with the ids of their records, without those that are left out."""
        missing = [pair for pair in self.target.missing(limit) if pair[0] not in left_out]
        return [(identifier, self._rows.make(record, reported=self._reported)) for identifier, record in missing]


class Sender:
    """Sends rows and events to one tracker. Rows come from the journal, oldest first, or else from ``rows``.

    Args:
        tracker: the tracker.
        incidents: receives failures to write the journal, and failed events.
        supply: the journal's rows for the tracker; None without a journal.
        capacity: number of rows without a journal that may wait; of more, the oldest is dropped.

    Attributes:
        rows: waiting rows that no journal holds.
        alerts: waiting events.
        delivered: number of rows that the tracker has taken in this process.
        taken: by how much the number of the journal's missing rows has fallen in this process.
        abandoned: set to end loops over rows and events, when ``close`` no longer waits for this tracker.
    """

    def __init__(
        self, tracker: Tracker, incidents: Incidents, *, supply: Supply | None = None, capacity: int = 256
    ) -> None:
        self.tracker = tracker
        self._name = tracker.name
        self.target: Target | None = None if supply is None else supply.target
        self.rows: deque[Row] = deque(maxlen=capacity)
        self.alerts: deque[Event] = deque(maxlen=64)
        self.delivered = 0
        self.taken = 0
        self.abandoned = False
        self._incidents = incidents
        self._supply = supply
        self._alert_tries = 0
        self._failures = (0, 0, 0.0)  # the row at which sending failed, how often in a row, and since when
        self._refused: set[int] = set()
        self._connected = False

    def open(self, run: RunContext) -> bool:
        """Opens the tracker, and stores what it knows of its run by now."""
        opened = self.tracker.open(run)
        if opened:
            # Not left to `connect`: by then the disk may be full, and `ratioscope sync` would open a second run.
            self._identify(self.tracker.identity)
        return opened

    def connect(self) -> None:
        """Opens the run in the backend, if that has not happened yet."""
        if self._connected:
            return
        self._identify(self.tracker.identity)
        identity = self.tracker.connect()
        self._identify(identity)
        received = self.tracker.received
        if self.target is not None and identity is not None and received is not None and self.target.owned:
            before = self.target.count_missing()
            self.target.reset(received)
            self.taken += before - self.target.count_missing()
        self._connected = True

    def has_rows(self) -> bool:
        """Returns whether any row waits."""
        missing = [] if self.target is None else self.target.missing(1 + len(self._refused))
        return bool(self.rows) or any(identifier not in self._refused for identifier, _ in missing)

    def count_rows(self) -> int:
        """Counts the rows that wait, in the journal too."""
        return len(self.rows) + (0 if self.target is None else self.target.count_missing())

    def send_rows(self) -> bool:
        """Sends the oldest rows, at most a batch; returns False if there were none."""
        numbered = [] if self._supply is None else self._supply.take(BATCH + len(self._refused), self._refused)
        if numbered and self.target is not None:
            began = time.monotonic()
            try:
                # A tracker without batches keeps what it took before it failed, so each row is marked by itself.
                size = len(numbered) if self.tracker.takes_batches else 1
                while numbered and not self.abandoned:
                    self._send(self.target, numbered[:size])
                    del numbered[:size]
            except Exception:
                may_refuse = time.monotonic() - began < LONGEST_REFUSAL_S and self._failed_often(numbered[0][0])
                if not may_refuse or not self._send_singly(self.target, numbered):
                    raise
            return not self.abandoned
        if not self.rows:
            return False
        row = self.rows[0]
        self.tracker.write(row)
        self.delivered += 1
        if self.rows and self.rows[0] is row:  # else it was dropped meanwhile, to make room for newer rows
            self.rows.popleft()
        return True

    def _failed_often(self, identifier: int) -> bool:
        """Counts a failure at a row and returns whether it was one of many in a row, over some seconds."""
        at, count, since = self._failures if self._failures[0] == identifier else (identifier, 0, time.monotonic())
        self._failures = at, count + 1, since
        is_often = count + 1 >= ROW_TRIES and time.monotonic() - since >= REFUSED_AFTER_S
        return is_often and not self.tracker.counts_rows and not self.tracker.buffers

    def _send_singly(self, target: Target, numbered: Sequence[tuple[int, Row]]) -> bool:
        """Sends rows one by one, and leaves out those that the tracker refuses twice.

        Returns:
            False if the tracker takes none of three further rows: it is away, and all rows wait.
        """
        n, sent = len(numbered), set()
        if self._try(target, numbered[0]) is None:
            return True  # the tracker is back
        for index in sorted({1, n // 2, n - 1} - {0, n}):
            if self._try(target, numbered[index]) is None:
                sent.add(index)
                break
        for index, pair in enumerate(numbered if sent else ()):
            if index in sent or self.abandoned:
                continue
            error = self._try(target, pair) and self._try(target, pair)
            if error is not None:
                self._refused.add(pair[0])
                text = f"{self._name} takes other rows but not that of step {pair[1].step}, which stays in the journal"
                self._incidents.report(f"{self._name} refused a row", f"{text}: {error}")
        return bool(sent)

    def _try(self, target: Target, pair: tuple[int, Row]) -> Exception | None:
        """Sends one row and returns the tracker's error; None if it took the row."""
        try:
            self._send(target, [pair], in_order=False)
        except Exception as error:
            return error
        return None

    def send_alerts(self) -> bool:
        """Sends all events, which follow the rows that they are about; returns False to be called again later."""
        while self.alerts and not self.abandoned:
            event, sent = self.alerts[0], False
            with self.guard("alert"):
                self.connect()
                self.tracker.alert(event)
                sent = True
            self._alert_tries = 0 if sent else self._alert_tries + 1
            if not sent and self._alert_tries < ALERT_TRIES:
                return False
            self._alert_tries = 0
            if self.alerts and self.alerts[0] is event:
                self.alerts.popleft()
        return True

    def end(self) -> None:
        """Closes the tracker; rows that it only buffered are delivered by that, or missing again if it raises."""
        try:
            self.tracker.close()
        except BaseException:
            self.release()
            raise
        if self.target is not None:
            self.target.settle()

    def release(self) -> None:
        """Takes rows that the tracker only buffered as missing."""
        if self.target is not None:
            self.target.release()

    @contextmanager
    def guard(self, action: str) -> Iterator[None]:
        """Turns an exception into an incident; ignores it once abandoned, since the missing rows were reported."""
        with self._incidents.isolate(f"{self._name} {action}"):
            try:
                yield
            except BaseException:
                if not self.abandoned:
                    raise

    def _send(self, target: Target, numbered: Sequence[tuple[int, Row]], *, in_order: bool = True) -> None:
        self.tracker.write_many([row for _, row in numbered])
        records = [identifier for identifier, _ in numbered]
        in_order = in_order and not self._refused
        if in_order:
            target.hold(records)
        self.delivered += len(numbered)
        self.taken += len(numbered)
        if not self.tracker.buffers:
            # Goes on if the journal cannot be written, as on a full disk: the tracker has the rows.
            with self.guard("delivery state"):
                target.settle() if in_order else target.mark(records)

    def _identify(self, identity: Mapping[str, str] | None) -> None:
        if self.target is not None and identity is not None:
            with self._incidents.guard(f"{self._name} delivery state"):
                self.target.identify(identity)
