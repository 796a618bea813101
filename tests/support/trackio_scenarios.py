"""Scenarios of the trackio tracker, each in a new process: trackio reads its folder once, when it is imported.

python tests/support/trackio_scenarios.py SCENARIO FOLDER
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import ratioscope as rs
from ratioscope.delivery import sender
from ratioscope.delivery.sync import sync
from ratioscope.trackers.base import RunContext
from ratioscope_integrations.trackers.trackio.tracker import TrackioTracker
from tests.support.readback import read_trackio
from tests.support.tracker_rows import CONFIG, make_row


def user(folder: Path) -> None:
    """The user's run is live and goes on with its own steps; the recorder writes into it."""
    import trackio

    mine = trackio.init(project="user", name="mine", config={"seed": 3})
    trackio.log({"before": 1})
    time.sleep(1)  # the config goes with the first row
    recorder = rs.Recorder(report_to="trackio", config={"engine": "fake"}, output_dir=folder / "out")
    for step in (10, 20):
        _observe(recorder)
        recorder.flush(step=step)
        trackio.log({"loss": step / 100})
    print(recorder.where())
    recorder.close()
    assert trackio.context_vars.current_run.get() is mine
    trackio.log({"after": 1})
    trackio.finish()


def own(folder: Path) -> None:
    """The recorder opens a run; the process's context has none, and trackio's monitors do not run."""
    import trackio

    with rs.Recorder(report_to="trackio", output_dir=folder / "out", run_name="mine", close_timeout=60) as recorder:
        for step in (10, 20):
            _observe(recorder)
            recorder.flush(step=step)
        _wait_for(lambda: "no run" not in recorder.where()[0])
        print(recorder.where())
    assert trackio.context_vars.current_run.get() is None
    assert not [thread.name for thread in threading.enumerate() if "onitor" in thread.name]


def again(folder: Path) -> None:
    """Continues in the same directory from a checkpoint."""
    with rs.Recorder(report_to="trackio", output_dir=folder / "out", run_name="mine", close_timeout=60) as recorder:
        recorder.open(restored_step=10)
        _observe(recorder)
        recorder.flush(step=20)


def broken(folder: Path) -> None:
    """The process ends by force while rows are queued, some of them stored."""
    recorder = rs.Recorder(report_to="trackio", output_dir=folder / "out", run_name="mine")
    for step in range(1, 31):
        _observe(recorder)
        recorder.flush(step=step)
        if step == 10:
            _wait_for(lambda: _has_rows(folder / "trackio"))
    os.kill(os.getpid(), signal.SIGKILL)


def rows(folder: Path) -> None:
    """Rows with known content, one of them with non-finite values."""
    tracker = TrackioTracker()
    assert tracker.open(RunContext(config=CONFIG, run_name="rows"))
    print(tracker.connect())
    tracker.write(make_row(5))
    tracker.write(make_row(5, split="eval"))
    tracker.write(make_row(6, scalars={"nan": float("nan"), "inf": float("-inf"), "fine": 0.5}))
    tracker.close()


def two(folder: Path) -> None:
    """Two runs with one name."""
    for step in (1, 2):
        tracker = TrackioTracker()
        tracker.open(RunContext(run_name="same"))
        tracker.write(make_row(step))
        tracker.close()


def full(folder: Path) -> None:
    """The database cannot be written."""
    from trackio.sqlite_storage import SQLiteStorage

    def refuse(*_: Any, **__: Any) -> None:
        msg = "disk full"
        raise OSError(msg)

    tracker = TrackioTracker()
    tracker.open(RunContext(run_name="full"))
    tracker.connect()
    SQLiteStorage.bulk_log = refuse  # type: ignore[method-assign]
    tracker.write(make_row(1))
    tracker.close()


def record(folder: Path) -> None:
    """A run that reports nowhere."""
    with rs.Recorder(output_dir=folder / "out", run_name="late") as recorder:
        for step in range(1, 31):
            _observe(recorder)
            recorder.flush(step=step)


def killed(folder: Path) -> None:
    """``sync`` ends by force when some rows are stored, more are queued, and the rest is missing."""
    sender.BATCH = 5

    def progress(target: Any, *, delivered: int, missing: int) -> None:
        if delivered == 10:
            time.sleep(1.5)
        elif delivered == 20:
            os.kill(os.getpid(), signal.SIGKILL)

    sync(folder / "out", to=["trackio"], progress=progress)


def pair(folder: Path) -> None:
    """Two runs with different mismatch, in trackio and TensorBoard."""
    torch.manual_seed(5)
    rule = rs.Correction("token", "truncate", upper=1.1)
    for name, spread in (("bf16 & <b>near</b>", 0.05), ("fp8-far", 0.08)):
        recorder = rs.Recorder(
            report_to=["trackio", "tensorboard"], correction=rule, output_dir=folder / "out" / name[:4], run_name=name
        )
        with recorder:
            for step in range(1, 21):
                _observe(recorder, spread * (1 + step / 20), rows=16, length=128)
                recorder.flush(step=10 * step)


def _observe(recorder: rs.Recorder, spread: float = 0.1, *, rows: int = 4, length: int = 16) -> None:
    rollout = -torch.rand(rows, length) - 0.3
    recorder.observe(rollout + spread * torch.randn(rows, length), rollout, torch.ones(rows, length))


def _has_rows(folder: Path) -> bool:
    try:
        return any(run.rows for run in read_trackio(folder).values())
    except sqlite3.OperationalError:  # no database yet, or no table
        return False


def _wait_for(true: Any) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


if __name__ == "__main__":
    scenarios = {each.__name__: each for each in (user, own, again, broken, rows, two, full, record, killed, pair)}
    scenarios[sys.argv[1]](Path(sys.argv[2]))
