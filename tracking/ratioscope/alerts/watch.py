"""Watch: the diagnosis of a run that goes on, on a thread of its own.

Training hands over each window and goes on. The thread pools it with the earlier ones, diagnoses what there is so far
at intervals that keep its share of the processor small, and tells what is new. It keeps at most
``runs.pooled.MOST_PARTS`` parts, whatever the length of the run.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratioscope.alerts.changes import News
    from ratioscope.diagnosis.run import Run
    from ratioscope.event import Event
    from ratioscope.incidents import Incidents
    from ratioscope.record import Record

FIRST_WINDOWS = 3
"""Windows before the first look: fewer are an accident."""
GROWTH, MOST_BETWEEN = 0.1, 10
"""A look comes when the run has grown by this share, and after so many windows at the latest."""
SHARE = 0.02
"""Share of one processor, and so at the most of the interpreter lock, that looks may take."""
MOST_WAITING = 128
"""Windows that may wait for the thread, of up to 0.1 MB each."""


class Watch:
    """Diagnoses a run while it goes on.

    Args:
        config: the run config.
        tell: hears of each event, on the thread of the watch or, in ``start`` alone, on the caller's. May not wait.
        incidents: where failures are reported.
        news: what was told before.
    """

    def __init__(
        self, config: Mapping[str, Any], tell: Callable[[Event], None], *, incidents: Incidents, news: News
    ) -> None:
        self._config = config
        self._tell = tell
        self._incidents = incidents
        self._pid = os.getpid()
        self._news = news
        self._seen = 0
        self._waiting: deque[Record] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._abandoned = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Tells what the config alone says, before a window is there. Takes a millisecond or two."""
        from ratioscope.diagnosis import Run, diagnose
        from ratioscope.runs.pooled import PooledRun

        with self._incidents.guard("diagnosis"):
            self._hear(self._news.before(diagnose(Run(PooledRun(), self._config))))

    def add(self, record: Record) -> None:
        """Takes one window, and starts the thread when there are a few. Does nothing for evaluations, or in a child."""
        if os.getpid() != self._pid or record.split != "train" or not record.scalars or self._closing.is_set():
            return
        if len(self._waiting) >= MOST_WAITING:
            self._incidents.report("diagnosis queue full", "the diagnosis is too slow; it leaves windows out")
            return
        self._waiting.append(record)
        self._seen += 1
        if self._seen >= FIRST_WINDOWS:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="ratioscope-watch", daemon=True)
                self._thread.start()
            self._wake.set()

    def counts(self) -> dict[str, float]:
        """Open warnings and errors, by full key; empty before anything could be said."""
        open_now = self._news.open_counts
        if open_now is None:
            return {}
        return {f"ratioscope/events/{level}s": float(open_now[level]) for level in ("warning", "error")}

    def close(self, timeout: float) -> None:
        """Has the thread take a last look, for at most so many seconds; what comes later is not told."""
        if os.getpid() != self._pid:  # in a child the locks of the thread may be taken for good
            return
        self._closing.set()
        self._wake.set()
        if self._thread is None:
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._abandoned = True
            text = f"the diagnosis took longer than {timeout:g} s at the end, so its last look is missing"
            self._incidents.report("diagnosis did not finish", text)

    def _serve(self) -> None:
        from ratioscope.diagnosis import Run
        from ratioscope.runs.pooled import PooledRun

        run = Run(PooledRun(), self._config)
        due = FIRST_WINDOWS
        rest_until = 0.0
        pause: float | None = None
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            with self._incidents.guard("diagnosis"):
                while self._waiting and not self._abandoned:
                    run.add(self._waiting.popleft())
            if self._closing.is_set():
                break
            pause = None
            if run.windows < due:
                continue
            if (rest := rest_until - time.monotonic()) > 0.0:  # meanwhile windows are taken, so that none has to wait
                pause = rest
                continue
            before = time.thread_time()
            self._look(run)
            rest_until = time.monotonic() + (time.thread_time() - before) * (1.0 / SHARE - 1.0)
            due = run.windows + min(max(1, int(GROWTH * run.windows)), MOST_BETWEEN)
        if run.windows >= FIRST_WINDOWS:
            self._look(run, last=True)

    def _look(self, run: Run, *, last: bool = False) -> None:
        from ratioscope.diagnosis import diagnose

        with self._incidents.guard("diagnosis"):
            self._hear(self._news.after(diagnose(run), last=last))

    def _hear(self, events: list[Event]) -> None:
        for event in events:
            if not self._abandoned:
                self._tell(event)
