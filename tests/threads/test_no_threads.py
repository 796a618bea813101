"""A system that refuses threads: records are kept, nothing raises, and one warning says so."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch

import ratioscope as rs
from ratioscope.delivery.sync import sync
from ratioscope.summary import kernels
from tests.support.fake_trackers import OneByOne, Server, register

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes the system refuse each thread, and returns the names of those that were asked for."""
    names: list[str] = []

    def start(thread: threading.Thread) -> None:
        names.append(thread.name)
        msg = "can't start new thread"
        raise RuntimeError(msg)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(kernels, "START_AFTER_S", 0.0)
    monkeypatch.setattr(kernels, "_makers", {})
    monkeypatch.setenv(kernels.SWITCH, "cpu")
    return names


def record(recorder: rs.Recorder, steps: range) -> None:
    """Records some steps."""
    for step in steps:
        logps = -torch.rand(4, 16) - 0.1
        recorder.observe(logps + 0.05 * torch.randn(4, 16), logps, torch.ones(4, 16))
        recorder.flush(step=step)


def test_without_a_thread_the_journal_has_every_record(
    tmp_path: Path, refused: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernel, diagnosis and tracker get no thread: all records are stored, one warning names the cause, sync helps."""
    server = Server()
    tracker = OneByOne(server)
    recorder = rs.Recorder(output_dir=tmp_path, report_to=[tracker, inline := rs.MemoryTracker()])
    record(recorder, range(1, 151))
    recorder.close()
    assert {"ratioscope-watch", "ratioscope-fake", "ratioscope-kernel-cpu"} <= set(refused)
    assert [row.step for row in inline.rows] == list(range(1, 151))
    warnings = [entry.getMessage() for entry in caplog.records if entry.name == "ratioscope"]
    assert len([text for text in warnings if "no thread can be started (can't start new thread)" in text]) == 1
    assert warnings[1:] == [text for text in warnings if "fake has not taken 150 rows" in text]
    with rs.JournalReader(tmp_path) as reader:
        assert [each.step for each in reader.records()] == list(range(1, 151))
    monkeypatch.undo()
    register(monkeypatch, tracker)
    assert sync(tmp_path) == {"fake": 150}


def test_a_thread_that_is_allowed_later_serves_the_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker whose thread was refused gets every row once a thread can be started."""
    start, allowed = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if not allowed:
            msg = "can't start new thread"
            raise RuntimeError(msg)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    server = Server()
    recorder = rs.Recorder(output_dir=tmp_path, report_to=[OneByOne(server)])
    record(recorder, range(1, 6))
    allowed.append(True)
    record(recorder, range(6, 8))
    recorder.close()
    assert list(server.runs.values()) == [[1, 2, 3, 4, 5, 6, 7]]


def test_a_busy_thread_ends_before_the_interpreter(tmp_path: Path) -> None:
    """A thread that is busy with a backlog when the timeout ends stops after the row in its hands."""

    class Slow(OneByOne):
        def write(self, row: rs.Row) -> None:
            time.sleep(0.005)
            super().write(row)

    server, before = Server(), threading.enumerate()
    recorder = rs.Recorder(output_dir=tmp_path, report_to=[Slow(server)], close_timeout=0.1)
    record(recorder, range(1, 200))
    start = time.monotonic()
    recorder.close()
    assert time.monotonic() - start < 2.0
    assert not [thread for thread in threading.enumerate() if thread.name == "ratioscope-fake" and thread not in before]
    assert recorder.incidents.counts["fake did not finish"] == 1
