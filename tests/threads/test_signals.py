"""Signal handlers that close or use a recorder at any moment: no deadlock, and nothing is lost."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope.threads import Flag, OneAtATime
from ratioscope.trackers.base import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SIGNALS = 1000
LIMIT_S = 60


class Locked(Tracker):
    """Tracker whose ``write`` and ``close`` share a lock that is not reentrant, as event files and clients have."""

    background = False

    def __init__(self, name: str, *, background: bool) -> None:
        self.name = name
        self.background = background
        self.steps: list[int] = []
        self._lock = threading.Lock()

    def open(self, run: rs.RunContext) -> bool:
        """Accepts any run."""
        return True

    def write(self, row: rs.Row) -> None:
        """Keeps the step."""
        with self._lock:
            self.steps.append(row.step)

    def close(self) -> None:
        """Takes the lock."""
        with self._lock:
            pass

    def where(self) -> str:
        """Names no place."""
        return "nowhere"


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Callable[..., object]], None]]:
    """Installs a handler of SIGALRM for one test, with an alarm that ends a deadlock."""
    before = signal.getsignal(signal.SIGALRM)

    def fail(*_: object) -> None:
        pytest.fail("deadlock", pytrace=False)

    virtual = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    yield lambda handler: signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    signal.signal(signal.SIGALRM, before)
    signal.signal(signal.SIGVTALRM, virtual)


def observe(recorder: rs.Recorder) -> None:
    """Adds one small batch."""
    logps = -torch.rand(2, 4) - 0.1
    recorder.observe(logps + 0.05 * torch.randn(2, 4), logps, torch.ones(2, 4))


def record(recorder: rs.Recorder, steps: int) -> None:
    """Records some steps."""
    for step in range(1, steps + 1):
        observe(recorder)
        recorder.flush(step=step)


def recorded(folder: Path) -> list[int]:
    """Returns the steps of all records of a journal."""
    with rs.JournalReader(folder) as reader:
        return [record.step for record in reader.records(superseded=True) if record.scalars]


@pytest.mark.parametrize("use", ["close", "relay"])
def test_a_thousand_signals_use_the_recorder(tmp_path: Path, on_alarm: Any, use: str) -> None:
    """A thousand signals at random moments close or relay: nothing blocks, and each flushed record is stored once."""
    trackers = [Locked("inline", background=False), Locked("behind", background=True)]
    recorder = rs.Recorder(output_dir=tmp_path, report_to=trackers, close_timeout=2.0)
    handled = []

    def handle(*_: object) -> None:
        handled.append(1)
        if use == "close":
            recorder.close()
        else:
            recorder.relay({"preempted": 1.0}, step=len(handled))
        if len(handled) < SIGNALS:
            signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.003 * torch.rand(()).item())

    on_alarm(handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    step, deadline = 0, time.monotonic() + LIMIT_S
    while len(handled) < SIGNALS:
        assert time.monotonic() < deadline, len(handled)
        step += 1
        observe(recorder)
        recorder.flush(step=step)
    recorder.close()
    assert recorded(tmp_path) == list(range(1, step + 1))
    if use == "relay":
        for tracker in trackers:
            assert len(tracker.steps) == step + len(handled)


def test_a_handler_that_ends_the_process_closes_everything(tmp_path: Path, on_alarm: Any) -> None:
    """A handler that closes and raises SystemExit inside a flush leaves closed trackers and a free journal."""
    for attempt in range(30):
        tracker = Locked("inline", background=False)
        recorder = rs.Recorder(output_dir=tmp_path, report_to=[tracker])

        def handle(*_: object, recorder: rs.Recorder = recorder) -> None:
            recorder.close()
            signal.setitimer(signal.ITIMER_REAL, 0.1)  # again: Python drops an exit in a destructor
            raise SystemExit(7)

        on_alarm(handle)
        signal.setitimer(signal.ITIMER_REAL, 0.004 + 0.01 * torch.rand(()).item())
        with pytest.raises(SystemExit, match="7"):
            record(recorder, 100_000)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        recorder.close()
        assert not recorder.is_open, attempt
    with rs.Recorder(output_dir=tmp_path) as later:  # would find the journal locked
        observe(later)
        later.flush(step=1)
        assert later.journal_path is not None


def test_a_flag_wakes_its_thread_however_often_it_is_set() -> None:
    """A flag wakes the waiting thread, is taken back, and holds no queue of old wakes."""
    flag = Flag()
    flag.wait(0.0)
    assert not flag.is_set()
    waits = threading.Thread(target=flag.wait, daemon=True)
    waits.start()
    flag.set()
    waits.join(LIMIT_S)
    assert not waits.is_alive()
    for _ in range(10_000):
        flag.set()
    assert flag._queue.qsize() <= 1
    flag.clear()
    start = time.monotonic()
    flag.wait(0.05)
    assert time.monotonic() - start >= 0.04


def test_calls_are_made_one_at_a_time() -> None:
    """A call within a call is made after it, also where the outer call raises."""
    calls, order = OneAtATime(), []

    def outer() -> None:
        calls.run(lambda: order.append("inner"))
        order.append("outer")
        raise SystemExit

    with pytest.raises(SystemExit):
        calls.run(outer)
    assert order == ["outer", "inner"]
    assert calls.run(lambda: 5) == 5


def test_an_interrupt_while_a_thread_starts_leaves_a_recorder_that_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt before or after the system made a thread reaches the caller, and ``close`` still works."""
    start, before = threading.Thread.start, threading.enumerate()
    for is_late in (False, True):
        recorder = rs.Recorder(output_dir=tmp_path)

        def interrupted(thread: threading.Thread, is_late: bool = is_late) -> None:
            if thread.name == "ratioscope-watch":
                if is_late:
                    start(thread)
                signal.raise_signal(signal.SIGINT)  # to this thread, so that it cannot come late
                for _ in range(1000):  # the handler runs between two of these
                    pass
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            record(recorder, 9)
        monkeypatch.setattr(threading.Thread, "start", start)
        observe(recorder)
        recorder.flush(step=10)
        recorder.close()
        assert not recorder.is_open
        assert not recorder.incidents.counts
        assert not [each for each in threading.enumerate() if each not in before]
