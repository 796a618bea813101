"""Trackers that raise anything, change what they are given or refuse one row: others and the run are unharmed."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope.delivery.sync import sync
from tests.support.fake_trackers import OneByOne, Server, Together, register

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS = range(1, 9)


def record(recorder: rs.Recorder, steps: range = STEPS) -> None:
    """Records some steps."""
    for step in steps:
        logps = -torch.rand(4, 16) - 0.1
        recorder.observe(logps + 0.05 * torch.randn(4, 16), logps, torch.ones(4, 16))
        assert recorder.flush(step=step) is not None


def recorded(folder: Path) -> list[int]:
    """Returns the steps of a journal."""
    with rs.JournalReader(folder) as reader:
        return [each.step for each in reader.records()]


def broken(method: str, error: BaseException, *, background: bool) -> Any:
    """Makes a tracker whose method, or property, raises."""

    def fail(*_: object) -> None:
        raise error

    is_property = method in ("takes_alerts", "identity", "takes_batches", "received")
    members = {method: property(fail) if is_property else fail, "background": background, "name": "broken"}
    return type("Broken", (rs.MemoryTracker,), members)()


@pytest.mark.parametrize("background", [False, True], ids=["inline", "background"])
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), ValueError("no")], ids=lambda error: repr(error))
@pytest.mark.parametrize(
    "method", ["open", "connect", "write", "close", "alert", "where", "attaches", "takes_alerts", "identity"]
)
def test_a_tracker_that_raises_harms_nobody(
    tmp_path: Path, method: str, error: BaseException, background: bool
) -> None:
    """Whatever a tracker's method or property raises, the run goes on and journal and other trackers are complete."""
    other = rs.MemoryTracker()
    trackers = [broken(method, error, background=background), other]
    recorder = rs.Recorder(output_dir=tmp_path, report_to=trackers, close_timeout=3.0)
    record(recorder)
    recorder.where()
    recorder.close()
    assert recorded(tmp_path) == list(STEPS)
    assert [row.step for row in other.rows] == list(STEPS)
    assert other.closed


def test_a_system_exit_is_tried_again(tmp_path: Path) -> None:
    """A background tracker that raises SystemExit once gets every row at the next try."""
    server = Server()

    class Exits(OneByOne):
        tries = 0

        def write(self, row: rs.Row) -> None:
            self.tries += 1
            if self.tries == 1:
                raise SystemExit(1)
            super().write(row)

    with rs.Recorder(output_dir=tmp_path, report_to=[Exits(server)]) as recorder:
        record(recorder)
    assert list(server.runs.values()) == [list(STEPS)]
    assert recorder.incidents.counts["fake write: SystemExit"] == 1


class _Handler:
    def __call__(self, *_: object) -> None:
        raise SystemExit(9)


@pytest.mark.parametrize(
    "handler", [lambda *_: _Handler()(), _Handler(), _Handler().__call__], ids=["function", "object", "method"]
)
def test_the_exit_of_a_signal_handler_passes(tmp_path: Path, handler: Callable[..., object]) -> None:
    """A handler that raises SystemExit while a tracker writes ends the program: the tracker did not raise it."""

    class Interrupted(rs.MemoryTracker):
        def write(self, row: rs.Row) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(1.0)

    before = signal.signal(signal.SIGUSR1, handler)
    recorder = rs.Recorder(output_dir=tmp_path, report_to=[Interrupted()])
    try:
        with pytest.raises(SystemExit, match="9"):
            record(recorder)
    finally:
        signal.signal(signal.SIGUSR1, before)
        recorder.close()


def test_a_tracker_cannot_change_the_rows_of_another(tmp_path: Path) -> None:
    """A tracker that empties a row's dicts and zeroes its histograms changes neither journal nor other trackers."""

    class Vandal(rs.MemoryTracker):
        def open(self, run: rs.RunContext) -> bool:
            run.config.clear()  # type: ignore[attr-defined]
            return True

        def write(self, row: rs.Row) -> None:
            for part in (row.scalars, row.logs, row.record.scalars, row.record.logs, row.record.health):
                part.clear()  # type: ignore[attr-defined]
            for bins in row.histograms.values():
                bins.counts[:] = 0
                bins.edges[:] = 0.0
            row.histograms.clear()  # type: ignore[attr-defined]

    other = rs.MemoryTracker()
    with rs.Recorder(output_dir=tmp_path, report_to=[Vandal(), other], config={"kept": 1}) as recorder:
        record(recorder)
        recorder.relay({"loss": 0.5}, step=9)
    assert all(len(row.scalars) > 20 for row in other.rows[:-1])
    assert all(bins.total for row in other.rows[:-1] for bins in row.histograms.values())
    assert len(other.rows[0].histograms) == 2
    assert other.rows[-1].logs == {"loss": 0.5}
    assert other.run is not None
    assert other.run.config["user"] == {"kept": 1}
    with rs.JournalReader(tmp_path) as reader:
        assert all(len(each.scalars) > 50 for each in list(reader.records())[:-1])
        assert reader.config()["user"] == {"kept": 1}


@pytest.mark.parametrize("kind", [OneByOne, Together])
def test_a_row_that_is_refused_for_ever_blocks_no_other(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows behind a refused one arrive in order; after three tries it is named, and it stays missing in the journal."""
    server = Server(breaks_at=3)
    if kind is Together:  # as MLflow: a batch with a bad row is refused whole
        monkeypatch.setattr(
            kind,
            "write_many",
            lambda self, rows: (
                server.call()
                or [server.receive("", row) for row in rows if 3 in [r.step for r in rows]]
                or [server.receive(self._id, row) for row in rows]
            ),
        )
    monkeypatch.setattr("ratioscope.delivery.background.FIRST_DELAY_S", 0.02)
    monkeypatch.setattr("ratioscope.delivery.background.PAUSE_S", 0.02)
    monkeypatch.setattr("ratioscope.delivery.sender.REFUSED_AFTER_S", 0.0)
    tracker = kind(server)
    recorder = rs.Recorder(output_dir=tmp_path, report_to=[tracker], close_timeout=5.0)
    for step in range(1, 40):
        record(recorder, range(step, step + 1))
        time.sleep(0.02)
    recorder.close()
    expected = [step for step in range(1, 40) if step != 3]
    assert [row.step for row in server.rows] == expected
    assert recorder.incidents.counts["fake refused a row"] == 1
    assert "takes other rows but not that of step 3" in caplog.text
    assert "fake has not taken 1 rows" in caplog.text
    server.breaks_at = None
    monkeypatch.undo()
    register(monkeypatch, tracker)
    assert sync(tmp_path) == {"fake": 1}


def test_a_tracker_that_is_away_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures of all rows are an outage: however often they are tried, every row arrives once, in order."""
    monkeypatch.setattr("ratioscope.delivery.background.FIRST_DELAY_S", 0.02)
    monkeypatch.setattr("ratioscope.delivery.background.PAUSE_S", 0.02)
    monkeypatch.setattr("ratioscope.delivery.sender.REFUSED_AFTER_S", 0.0)
    server = Server()
    with rs.Recorder(output_dir=tmp_path, report_to=[Together(server)], close_timeout=20.0) as recorder:
        record(recorder, range(1, 2))
        deadline = time.monotonic() + 10.0
        while not server.rows and time.monotonic() < deadline:
            time.sleep(0.01)
        server.failures = 10**9
        record(recorder, range(2, 9))
        time.sleep(0.5)
        assert server.failures < 10**9 - 6
        server.failures = 0
    assert list(server.runs.values()) == [list(STEPS)]
    assert recorder.incidents.counts["fake refused a row"] == 0


def test_a_tracker_without_an_entry_in_the_journal_gets_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its entry cannot be made, a tracker in the background gets its rows from memory, and a warning says why."""

    def fail(*_: object, **__: object) -> None:
        msg = "database is locked"
        raise OSError(msg)

    monkeypatch.setattr("ratioscope.delivery.fanout.open_target", fail)
    server = Server()
    with rs.Recorder(output_dir=tmp_path, report_to=[OneByOne(server)]) as recorder:
        record(recorder)
    assert list(server.runs.values()) == [list(STEPS)]
    assert recorder.incidents.counts == {"journal: OSError": 1}
