"""Delivery from the journal: all rows once and in order after any failures, without delaying training."""

from __future__ import annotations

import logging
import os
import shlex
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope.delivery import background
from ratioscope.delivery.background import Background
from ratioscope.delivery.fanout import Fanout
from ratioscope.incidents import Incidents
from ratioscope.journal.targets import open_target
from ratioscope.journal.targets import targets as targets_of
from ratioscope.journal.writer import Journal
from ratioscope.trackers.base import BATCH, RunContext
from ratioscope.trackers.memory import MemoryTracker
from tests.support.fake_trackers import RECORDS, Buffering, OneByOne, Server, Together, register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KINDS = pytest.mark.parametrize("kind", [OneByOne, Together])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker that failed is tried again soon, and one that did not gets its next rows soon."""
    monkeypatch.setattr(background, "PAUSE_S", 0.002)
    monkeypatch.setattr(background, "FIRST_DELAY_S", 0.005)
    monkeypatch.setattr(background, "LONGEST_DELAY_S", 0.02)


@pytest.fixture
def server() -> Iterator[Server]:
    """A backend, let go at the end."""
    server = Server()
    yield server
    server.go.set()


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.002)


def record(step: int) -> rs.Record:
    """A record of a step."""
    return replace(RECORDS[1 + step % 7], step=step)


class Run:
    """Journal and fan-out of one process, as a recorder puts them together."""

    def __init__(
        self, folder: Path, *trackers: Any, reporters: dict[str, object] | None = None, close_s: float = 10.0
    ) -> None:
        self.incidents = Incidents()
        self.journal = Journal(folder, config={})
        context = RunContext(output_dir=folder)
        self.fanout = Fanout(trackers, context, incidents=self.incidents, reporters=reporters, journal=self.journal)
        self.served = {sink.tracker.name: sink.tracker for sink in self.fanout._sinks}
        for tracker in self.served.values():
            if isinstance(tracker, Background):
                tracker._timeout = close_s
        self.fanout.open()

    def write(self, *steps: int) -> None:
        """Commits and sends records."""
        for step in steps:
            one = record(step)
            self.fanout.write(one, identifier=self.journal.append(one))

    def missing(self) -> dict[str, int]:
        """Rows that each target does not have, by tracker."""
        return {target.tracker: target.count_missing() for target in targets_of(self.journal)}

    def close(self) -> None:
        """Ends the process's part."""
        self.fanout.close()
        self.journal.close()


@KINDS
def test_every_record_arrives_once_and_in_order(tmp_path: Path, server: Server, kind: Any) -> None:
    """A live tracker receives each record of the journal once, oldest first, and is closed once."""
    run = Run(tmp_path, kind(server))
    run.write(*range(1, 201))
    run.close()
    assert server.runs == {"run-1": list(range(1, 201))}
    assert server.closed == 1
    assert run.served["fake"].delivered == 200
    assert run.served["fake"].failed == 0
    assert not run.incidents.counts


def test_waiting_rows_are_sent_in_batches(tmp_path: Path, server: Server) -> None:
    """Rows that gathered while the tracker was busy go through write_many in full batches."""
    server.hangs = True
    run = Run(tmp_path, Together(server))
    run.write(1)
    assert server.waiting.wait(10)
    run.write(*range(2, 2 * BATCH + 2))
    server.hangs = False
    server.go.set()
    run.close()
    assert sorted(server.runs["run-1"]) == list(range(1, 2 * BATCH + 2))
    assert max(server.batches) == BATCH
    assert len(server.batches) <= 4


@KINDS
def test_a_tracker_that_comes_back_gets_everything(tmp_path: Path, server: Server, kind: Any) -> None:
    """After five failures every row arrives once; failures are counted and reported once."""
    server.failures = 5
    run = Run(tmp_path, kind(server))
    run.write(*range(1, 31))
    eventually(lambda: len(server.rows) == 30)
    run.close()
    assert server.runs == {"run-1": list(range(1, 31))}
    assert run.served["fake"].failed == 5
    assert run.incidents.counts == {"fake write: ConnectionError": 5}


@KINDS
def test_a_failure_in_the_middle_doubles_nothing(tmp_path: Path, server: Server, kind: Any) -> None:
    """After a failure at one row, delivery is retried from that row on."""
    run = Run(tmp_path, kind(server))
    run.write(1, 2, 3)
    eventually(lambda: run.missing()["fake"] == 0)
    server.failures = 3
    run.write(4, 5)
    eventually(lambda: run.missing()["fake"] == 0)
    run.close()
    assert server.runs == {"run-1": [1, 2, 3, 4, 5]}
    assert run.served["fake"].delivered == 5


def test_rows_before_the_failing_one_are_counted(tmp_path: Path, server: Server) -> None:
    """Rows written one by one before their batch failed count as delivered and are not sent again."""
    server.breaks_at = 3
    run = Run(tmp_path, OneByOne(server))
    run.write(1, 2, 3, 4)
    eventually(lambda: run.served["fake"].failed > 1)
    assert (run.served["fake"].delivered, run.missing()) == (2, {"fake": 2})
    server.breaks_at = None
    run.close()
    assert server.runs == {"run-1": [1, 2, 3, 4]}


def test_a_dead_tracker_does_not_slow_a_live_one(tmp_path: Path, server: Server) -> None:
    """While one tracker hangs and another always fails, a third receives every row at once."""
    hanging, failing = Server(hangs=True), Server(failures=10**9)
    run = Run(tmp_path, Together(hanging, "hanging"), Together(failing, "failing"), Together(server), close_s=0.2)
    start = time.monotonic()
    run.write(*range(1, 51))
    eventually(lambda: len(server.rows) == 50)
    assert time.monotonic() - start < 5
    assert run.missing() == {"hanging": 50, "failing": 50, "fake": 0}
    run.close()
    hanging.go.set()


def test_enqueueing_takes_no_time_with_every_tracker_down(tmp_path: Path, server: Server) -> None:
    """The 99th percentile of queueing a record is under 2 ms while one tracker hangs and another fails."""
    server.hangs = True
    run = Run(tmp_path, Together(server), Together(Server(failures=10**9), "failing"), close_s=0.1)
    took = []
    for step in range(1, 1001):
        one = record(step)
        identifier = run.journal.append(one)
        start = time.perf_counter()
        run.fanout.write(one, identifier=identifier)
        took.append(time.perf_counter() - start)
    run.close()
    assert sorted(took)[989] < 0.002


def test_health_takes_no_time_with_thousands_waiting(tmp_path: Path, server: Server) -> None:
    """The 99th percentile of counting waiting rows is under 2 ms, also with 2000 undelivered records."""
    server.hangs = True
    run = Run(tmp_path, Together(server), close_s=0.1)
    run.write(*range(1, 2001))
    took = []
    for _ in range(200):
        start = time.perf_counter()
        health = run.fanout.health()
        took.append(time.perf_counter() - start)
    run.close()
    assert health["ratioscope/delivery/fake/queued"] == 2000
    assert sorted(took)[197] < 0.002


@pytest.mark.parametrize("down", ["hanging", "failing"])
def test_close_is_bounded_and_reports_undelivered_rows(
    tmp_path: Path, server: Server, down: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing with a dead tracker takes the timeout at most, and reports the count and a command that can be pasted."""
    server.hangs, server.failures = down == "hanging", 10**9
    folder = tmp_path / "g;touch x; y"
    run = Run(folder, Together(server), close_s=0.3)
    run.write(*range(1, 8))
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        run.close()
    assert time.monotonic() - start < 1.5
    (message,) = [each.getMessage() for each in caplog.records if "7 rows" in each.getMessage()]
    assert f"ratioscope sync {shlex.quote(str(folder))} --to fake" in message


def test_dead_trackers_are_waited_for_at_the_same_time(tmp_path: Path) -> None:
    """Closing with three hanging trackers takes as long as with one."""
    servers = [Server(hangs=True) for _ in range(3)]
    run = Run(tmp_path, *(Together(each, f"t{index}") for index, each in enumerate(servers)), close_s=0.5)
    run.write(1)
    start = time.monotonic()
    run.close()
    assert time.monotonic() - start < 1.2
    for each in servers:
        each.go.set()


def test_an_abandoned_tracker_sends_no_row(tmp_path: Path, server: Server) -> None:
    """A tracker that recovers after the end sends no row, because the journal could not mark it."""
    server.hangs = True
    run = Run(tmp_path, Together(server), close_s=0.1)
    run.write(1, 2, 3)
    assert server.waiting.wait(10)
    run.close()
    server.go.set()
    run.served["fake"]._worker.join(10)  # type: ignore[union-attr]
    assert server.rows == []


@KINDS
def test_a_later_attempt_delivers_the_rest(tmp_path: Path, server: Server, kind: Any) -> None:
    """A second process continues the run that the first opened, and sends the undelivered rows."""
    first = Run(tmp_path, kind(server), close_s=0.1)
    first.write(1, 2)
    eventually(lambda: first.missing()["fake"] == 0)
    server.failures = 10**9
    first.write(3, 4)
    first.close()
    server.failures = 0
    tracker = kind(server)
    second = Run(tmp_path, tracker)
    second.write(5)
    second.close()
    assert server.runs == {"run-1": [1, 2, 3, 4, 5]}
    assert tracker.run.identity == {"run_id": "run-1"}


def test_undelivered_rows_need_no_new_record(tmp_path: Path, server: Server) -> None:
    """A later attempt sends undelivered rows before it has a record of its own."""
    server.failures = 10**9
    first = Run(tmp_path, Together(server), close_s=0.1)
    first.write(1, 2)
    first.close()
    server.failures = 0
    second = Run(tmp_path, Together(server))
    eventually(lambda: server.runs == {"run-1": [1, 2]})
    second.close()


def test_no_run_is_opened_without_a_record(tmp_path: Path, server: Server) -> None:
    """A training that ends before its first record opens no run in a tracker."""
    Run(tmp_path, Together(server)).close()
    assert server.runs == {}


def test_the_trainers_runs_get_their_attempt_alone(tmp_path: Path, server: Server) -> None:
    """If the trainer opened the run, each attempt has its own target with its own records only."""
    for steps in ((1, 2), (3, 4)):
        tracker = Together(server)
        run = Run(tmp_path, tracker, reporters={"fake": object()})
        run.write(*steps)
        run.close()
        assert tracker.run is not None
        assert tracker.run.identity is None
    assert server.runs == {"run-1": [1, 2], "run-2": [3, 4]}
    with Journal(tmp_path, config={}) as journal:
        targets = [(target.owned, target.attempt, target.identity) for target in targets_of(journal)]
    assert targets == [(False, 1, {"run_id": "run-1"}), (False, 2, {"run_id": "run-2"})]


def test_a_tracker_that_opens_late_misses_nothing(tmp_path: Path, server: Server) -> None:
    """Rows from before the trainer opened its run are read from the journal, in any number."""

    class Late(Together):
        ready = False

        def open(self, run: RunContext) -> bool:
            return self.ready and super().open(run)

    tracker = Late(server)
    run = Run(tmp_path, tracker)
    run.write(*range(1, 101))
    tracker.ready = True
    run.close()
    assert server.runs == {"run-1": list(range(1, 101))}
    assert not run.incidents.counts


def test_a_tracker_that_never_opens_is_counted(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of rows that a tracker without a run did not receive is reported."""

    class Never(Together):
        def open(self, run: RunContext) -> bool:
            return False

    run = Run(tmp_path, Never(server))
    run.write(*range(1, 101))
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        run.close()
    assert "never had a run; 100 rows were not sent" in caplog.text


def test_a_backends_row_count_is_trusted(tmp_path: Path, server: Server) -> None:
    """A backend that reports having the first two rows receives exactly the others."""
    first = Run(tmp_path, Together(server))
    first.write(1, 2, 3, 4)
    first.close()
    server.runs["run-1"] = [1, 2]

    class Counting(Together):
        received = 2

    second = Run(tmp_path, Counting(server))
    second.write(5)
    second.close()
    assert server.runs == {"run-1": [1, 2, 3, 4, 5]}


def test_buffered_rows_count_after_closing(tmp_path: Path, server: Server) -> None:
    """Rows that a tracker only buffers count as delivered once it has closed without an error."""
    run = Run(tmp_path, Buffering(server))
    run.write(1, 2, 3)
    eventually(lambda: run.served["fake"].delivered == 3)
    assert run.journal.query("SELECT COUNT(*) FROM delivery") == [(0,)]
    run.close()
    assert server.runs == {"chosen-fake": [1, 2, 3]}
    with Journal(tmp_path, config=None) as journal:
        assert [target.count_missing() for target in targets_of(journal)] == [0]


@pytest.mark.parametrize("arrived", [0, 2, 3], ids=["nothing", "a part", "everything"])
def test_a_lost_buffer_is_sent_again(
    tmp_path: Path, server: Server, arrived: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After a failed last upload all rows count as missing until the backend has reported its rows."""
    run = Run(tmp_path, Buffering(server))
    run.write(1, 2, 3)
    eventually(lambda: run.served["fake"].delivered == 3)
    server.failures = 1
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        run.close()
    assert "has not taken 3 rows" in caplog.text
    server.runs["chosen-fake"] += range(1, arrived + 1)
    second = Run(tmp_path, Buffering(server))
    second.write(4)
    second.close()
    assert server.runs == {"chosen-fake": [1, 2, 3, 4]}


def test_a_run_id_is_stored_before_the_run_is_opened(tmp_path: Path, server: Server) -> None:
    """A run id is stored before any record, so that a full disk cannot lead to a second run."""
    server.hangs = True
    run = Run(tmp_path, Buffering(server), close_s=0.1)
    assert [target.identity for target in targets_of(run.journal)] == [{"run_id": "chosen-fake"}]
    run.write(1)
    assert server.waiting.wait(10)
    run.close()


def test_reset_marks_the_first_records_as_received(tmp_path: Path) -> None:
    """Reset clears every mark and marks the first records as received, in the order of writing."""
    with Journal(tmp_path, config={}) as journal:
        identifiers = [journal.append(record(step)) for step in (1, 2, 3, 2, 3)]
        target = open_target(journal, "fake", owned=True)
        target.mark(identifiers, oldest_first=True)
        assert target.count_missing() == 0
        for received, missing in ((5, []), (3, [2, 3]), (0, [1, 2, 3, 2, 3]), (9, [])):
            target.reset(received)
            assert [each.step for _, each in target.missing(10)] == missing
            assert target.count_missing() == len(missing)


def test_marks_may_have_gaps(tmp_path: Path) -> None:
    """A record marked out of order leaves earlier ones missing, also after the target is read again."""
    with Journal(tmp_path, config={}) as journal:
        identifiers = [journal.append(record(step)) for step in (1, 2, 3)]
        target = open_target(journal, "fake", owned=True)
        target.mark([identifiers[1]])
        target.mark([identifiers[1]])
        assert [each.step for _, each in target.missing(10)] == [1, 3]
        assert [each.step for _, each in target.missing(1)] == [1]
        (again,) = targets_of(journal)
        assert again.count_missing() == 2


def test_bins_stay_over_attempts(tmp_path: Path, server: Server) -> None:
    """A later attempt keeps the bin widths chosen at the journal's first record."""
    first = Run(tmp_path, Together(server))
    first.write(1)
    first.close()
    logps = -torch.rand(4, 16) - 0.1
    wide = rs.summarize(logps + 3 * torch.randn(4, 16), logps, torch.ones(4, 16))
    second = Run(tmp_path, Together(server))
    one = rs.Record(2, "train", 2.0, wide.metrics(), wide.to_host())
    second.fanout.write(one, identifier=second.journal.append(one))
    second.close()
    key = "ratioscope/hist/token_log_ratio"
    before, after = (row.histograms[key].edges.tolist() for row in server.rows)
    assert before == after


def test_no_thread_is_left(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening and closing a recorder repeatedly leaves no thread behind."""
    trackers = [Together(server), Together(Server(failures=10**9), "failing")]
    register(monkeypatch, *trackers)
    before = threading.active_count()
    for number in range(5):
        with rs.Recorder(report_to=["fake", "failing"], output_dir=tmp_path / str(number)) as recorder:
            recorder.write(record(1))
    assert threading.active_count() == before
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("ratioscope")] == []


def test_a_forked_child_leaves_the_trackers_alone(tmp_path: Path, server: Server) -> None:
    """A child process that closes inherited trackers neither writes to a backend nor closes it."""
    run = Run(tmp_path, Inline(server))
    run.write(1)
    child = os.fork()
    if child == 0:
        run.fanout.write(record(2))
        run.fanout.close()
        os._exit(0 if (len(server.rows), server.closed) == (1, 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run.close()
    assert server.closed == 1


class Inline(OneByOne):
    """A tracker that is called on the training thread."""

    background = False


def test_inline_trackers_share_a_commit_and_no_row(tmp_path: Path) -> None:
    """Inline trackers receive equal rows, each its own; one statement marks them for those that accepted theirs."""

    class Named(MemoryTracker):
        def __init__(self, name: str, *, fails: bool = False) -> None:
            super().__init__()
            self.name = name  # type: ignore[misc]
            self.fails = fails

        def write(self, row: rs.Row) -> None:
            if self.fails:
                msg = "no room"
                raise OSError(msg)
            super().write(row)

    first, second, third = Named("first"), Named("second"), Named("third", fails=True)
    run = Run(tmp_path, first, second, third)
    statements: list[str] = []
    run.journal._connection.set_trace_callback(statements.append)
    run.write(1)
    run.journal._connection.set_trace_callback(None)
    assert first.rows[0].scalars == second.rows[0].scalars
    assert first.rows[0].scalars is not second.rows[0].scalars
    assert run.missing() == {"first": 0, "second": 0, "third": 1}
    assert [text.split()[:2] for text in statements if "delivery" in text] == [["INSERT", "OR"]]
    assert not {"BEGIN", "COMMIT"} & {text.split()[0] for text in statements}
    health = run.fanout.health()
    assert [health[f"ratioscope/delivery/{name}/failed"] for name in ("first", "second", "third")] == [0, 0, 1]
    run.close()
