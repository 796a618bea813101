"""Watch: diagnoses a run while it goes on, on a separate thread.

Training hands over each window and continues. The thread pools the window with the earlier ones, diagnoses the run at
intervals that limit the thread's share of the processor, and reports changes. It keeps at most
``runs.pooled.MOST_PARTS`` parts, however long the run is.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ratioscope.alerts.schedule import FIRST_WINDOWS, Schedule
from ratioscope.diagnosis import Run, diagnose
from ratioscope.runs.pooled import PooledRun
from ratioscope.threads import Flag, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratioscope.alerts.confirmation import FindingChanges
    from ratioscope.event import Event
    from ratioscope.incidents import Incidents
    from ratioscope.record import Record

SHARE, TREND_SHARE = 0.015, 0.005
"""Fractions of one processor, and thus at most of the interpreter lock, that diagnoses and looks at the trend take."""
AHEAD_S = 5.0
"""Seconds of rest that an urgent diagnosis may owe, so that two in a row are not delayed."""
MOST_WAITING = 128
"""Windows that may wait for the thread, of up to 0.1 MB each."""


class Watch:
    """Diagnoses a run while it goes on. No method raises.

    Args:
        config: the run config.
        on_event: called with each event, usually on the watch thread; must not block.
        incidents: where failures are reported.
        changes: what earlier diagnoses reported.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        on_event: Callable[[Event], None],
        *,
        incidents: Incidents,
        changes: FindingChanges,
    ) -> None:
        self._config = config
        self._on_event = on_event
        self._incidents = incidents
        self._pid = os.getpid()
        self._changes = changes
        self._added = 0
        self._waiting: deque[Record] = deque()
        self._wake, self._closing = Flag(), Flag()
        self._abandoned = False
        self._worker = Worker(self._serve, name="ratioscope-watch", incidents=incidents)
        self._rest_until = self._look_from = 0.0

    def start(self) -> None:
        """Reports findings of the config alone, on the caller's thread. Takes a millisecond or two."""
        with self._incidents.guard("diagnosis"):
            self._notify(self._changes.from_config(diagnose(Run(PooledRun(), self._config))))

    def add(self, record: Record) -> None:
        """Queues one window, and starts the thread after a few. Ignores evaluations, and does nothing in a child."""
        if os.getpid() != self._pid or record.split != "train" or not record.scalars or self._closing.is_set():
            return
        self._added += 1
        has_thread = self._added < FIRST_WINDOWS or self._worker.start()
        if len(self._waiting) >= MOST_WAITING:
            if has_thread:
                self._incidents.report("diagnosis queue full", "the diagnosis is too slow; it leaves windows out")
            return
        self._waiting.append(record)
        if self._added >= FIRST_WINDOWS:
            self._wake.set()

    def counts(self) -> dict[str, float]:
        """Numbers of open warnings and errors, by full key; empty before the first diagnosis."""
        open_counts = self._changes.open_counts
        if open_counts is None:
            return {}
        return {f"ratioscope/events/{level}s": float(open_counts[level]) for level in ("warning", "error")}

    def close(self, timeout: float) -> None:
        """Ends the thread with a final diagnosis.

        Args:
            timeout: seconds to wait; changes that are found later are not reported.
        """
        if os.getpid() != self._pid:  # a forked child may have copied the thread's locks while they were held
            return
        self._closing.set()
        self._wake.set()
        if not self._worker.join(timeout):
            self._abandoned = True
            text = f"the diagnosis took longer than {timeout:g} s at the end, so its last look is missing"
            self._incidents.report("diagnosis did not finish", text)

    def _serve(self) -> None:
        run, schedule = Run(PooledRun(), self._config), Schedule()
        pause: float | None = None
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            self._take(run)
            if self._closing.is_set():
                break
            pause = None
            rest, is_due = self._rest_until - time.monotonic(), schedule.is_due(run)
            if (is_due and rest <= 0.0) or (rest <= AHEAD_S and self._is_urgent(run, schedule)):
                before = time.thread_time()
                self._diagnose(run)
                with self._incidents.guard("diagnosis"):
                    schedule.done(run)
                cost = time.thread_time() - before
                self._rest_until = max(self._rest_until, time.monotonic()) + cost * (1.0 / SHARE - 1.0)
            elif is_due:
                pause = max(rest, 0.0)  # queued windows are still taken meanwhile
        if run.windows >= FIRST_WINDOWS:
            self._diagnose(run, is_last=True)

    def _is_urgent(self, run: Run, schedule: Schedule) -> bool:
        """Looks at the trend, unless its share of the processor is used up."""
        if time.monotonic() < self._look_from:
            return False
        before, urgent = time.thread_time(), False
        with self._incidents.guard("diagnosis"):
            urgent = schedule.is_urgent(run)
        self._look_from = time.monotonic() + (time.thread_time() - before) * (1.0 / TREND_SHARE - 1.0)
        return urgent

    def _take(self, run: Run) -> None:
        """Moves the queued windows into the run."""
        with self._incidents.guard("diagnosis"):
            while self._waiting and not self._abandoned:
                run.add(self._waiting.popleft())

    def _diagnose(self, run: Run, *, is_last: bool = False) -> None:
        with self._incidents.guard("diagnosis"):
            self._notify(self._changes.update(diagnose(run), is_last=is_last))

    def _notify(self, events: list[Event]) -> None:
        for event in events:
            if not self._abandoned:
                self._on_event(event)
