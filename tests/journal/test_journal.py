"""Journal: every flushed record is stored, whatever happens afterwards."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope.journal.reader import JournalReader
from ratioscope.journal.schema import FILE, SCHEMA_VERSION, JournalError
from ratioscope.journal.writer import Journal
from ratioscope.summary.host import HostSummary
from tests.support.kill_writers import make_record

if TYPE_CHECKING:
    from collections.abc import Iterator


def steps(path: Path, *, superseded: bool = False) -> list[int]:
    """Returns the steps of a journal's records."""
    with JournalReader(path) as reader:
        return [record.step for record in reader.records(superseded=superseded)]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Makes a run directory with three records."""
    with Journal(tmp_path, config={"a": 1}) as journal:
        for step in (1, 2, 3):
            journal.append(make_record(step))
    return tmp_path


def test_records_and_config_are_read_back(tmp_path: Path) -> None:
    """An appended record is read back equal, with the attempt that wrote it."""
    record = make_record(4)
    with Journal(tmp_path, config={"rule": {"upper": 1.2}}, restored_step=3) as journal:
        assert journal.append(record) == 1
    with JournalReader(tmp_path) as reader:
        (read,) = reader.records()
        (attempt,) = reader.attempts()
    assert read.summary == record.summary
    assert (read.step, read.split, read.time, read.scalars) == (4, "train", 5.0, record.scalars)
    assert (attempt.pid, attempt.restored_step, attempt.config) == (os.getpid(), 3, {"rule": {"upper": 1.2}})


@pytest.mark.parametrize("name", [".", "ratioscope", f"ratioscope/{FILE}"])
def test_a_path_may_be_the_run_its_folder_or_the_file(written: Path, name: str) -> None:
    """Output directory, its folder and the file open the same journal."""
    assert steps(written / name) == [1, 2, 3]


def test_a_missing_journal_raises(tmp_path: Path) -> None:
    """A path without a journal raises an error that names the expected path."""
    with pytest.raises(FileNotFoundError, match="found no journal there"):
        JournalReader(tmp_path)


def test_a_resumed_run_supersedes_repeated_steps(tmp_path: Path) -> None:
    """After a restart at step 2, the live records have each step once, and all written records are kept."""
    for restored, last in ((0, 3), (2, 5)):
        with Journal(tmp_path, config={}, restored_step=restored) as journal:
            for step in range(restored + 1, last + 1):
                journal.append(make_record(step))
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    assert steps(tmp_path, superseded=True) == [1, 2, 3, 3, 4, 5]
    with JournalReader(tmp_path) as reader:
        assert [attempt.restored_step for attempt in reader.attempts()] == [0, 2]


def test_a_resumed_custom_loop_supersedes_from_its_first_step(tmp_path: Path) -> None:
    """If the restored step is unknown, the first step of the new attempt decides."""
    for first in (1, 3):
        with Journal(tmp_path, config={}) as journal:
            for step in range(first, first + 4):
                journal.append(make_record(step))
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_an_evaluation_alone_supersedes_nothing(written: Path) -> None:
    """An attempt that only evaluates leaves the training's records live."""
    record = make_record(0)
    with Journal(written, config={}) as journal:
        journal.append(rs.Record(0, "eval", record.time, record.scalars, record.summary))
    assert sorted(steps(written)) == [0, 1, 2, 3]


def test_a_second_writer_is_refused(written: Path) -> None:
    """A second writer of a journal gets an error, and the first continues."""
    with Journal(written, config={}) as journal:
        with pytest.raises(JournalError, match="another process writes"):
            Journal(written, config={})
        journal.append(make_record(4))
    assert steps(written) == [1, 2, 3, 4]


def test_the_lock_is_free_after_close(written: Path) -> None:
    """A closed journal can be opened again, also after an attempt that failed to open."""
    with Journal(written, config={}), pytest.raises(JournalError):
        Journal(written, config={})
    Journal(written, config={}).close()


def test_readers_see_commits_while_training_writes(tmp_path: Path) -> None:
    """A reader in another thread sees every record as soon as append returned."""
    seen: list[int] = []
    with Journal(tmp_path, config={}) as journal:
        for step in (1, 2, 3):
            journal.append(make_record(step))
            reader = threading.Thread(target=lambda: seen.append(len(steps(tmp_path))))
            reader.start()
            reader.join()
    assert seen == [1, 2, 3]


def test_reading_changes_no_byte(written: Path) -> None:
    """A reader opens the file read-only."""
    with JournalReader(written) as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader._connection._connection.execute("DELETE FROM record")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("PRAGMA user_version = 99", "schema version 99.*Upgrade ratioscope"),
        ("PRAGMA application_id = 5", "database of another program"),
    ],
)
def test_another_programs_file_is_refused(written: Path, spoil: str, message: str) -> None:
    """A newer journal and another program's database are neither read nor written."""
    connection = sqlite3.connect(written / "ratioscope" / FILE)
    connection.execute(spoil)
    connection.commit()
    connection.close()
    with pytest.raises(JournalError, match=message):
        JournalReader(written)
    with pytest.raises(JournalError, match=message):
        Journal(written, config={})


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """Garbage under the journal's name raises a clear error and stays as it is."""
    (tmp_path / "ratioscope").mkdir()
    path = tmp_path / "ratioscope" / FILE
    path.write_bytes(b"not a database, but long enough to be taken for one" * 40)
    before = path.read_bytes()
    with pytest.raises((JournalError, sqlite3.DatabaseError), match=r"not a database|is no journal"):
        Journal(tmp_path, config={})
    assert path.read_bytes() == before


def test_the_version_is_in_the_file(written: Path) -> None:
    """Any SQLite client reads the file's version and finds it intact."""
    connection = sqlite3.connect(written / "ratioscope" / FILE)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """A journal folder that is a link elsewhere is not written to."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ratioscope").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match="symbolic link"):
        Journal(tmp_path / "run", config={})
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_linked_lock_is_not_followed(tmp_path: Path) -> None:
    """A lock file that is a link elsewhere creates nothing there."""
    (tmp_path / "ratioscope").mkdir()
    (tmp_path / "ratioscope" / f"{FILE}.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match=r"symbolic link|Too many levels"):
        Journal(tmp_path, config={})
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_works(tmp_path: Path, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal is written and read where the file system cannot lock files."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("fcntl.flock", flock)
    with Journal(tmp_path, config={}) as journal:
        journal.append(make_record(1))
    assert steps(tmp_path) == [1]


def test_a_journal_may_be_closed_on_another_thread(written: Path) -> None:
    """A close on another thread than the one that opened the journal frees the lock."""
    journal = Journal(written, config={})
    closer = threading.Thread(target=journal.close)
    closer.start()
    closer.join()
    Journal(written, config={}).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    """A DataLoader worker that inherits the journal cannot write or close its parent's."""
    with Journal(tmp_path, config={}) as journal:
        journal.append(make_record(1))
        child = multiprocessing.get_context("fork").Process(target=_in_child, args=(journal,))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        journal.append(make_record(2))
    assert steps(tmp_path) == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    """A worker that outlives its parent does not lock the journal for the restarted job."""
    journal = Journal(tmp_path, config={})
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(20,))
    child.start()
    try:
        journal.close()
        deadline = time.monotonic() + 10
        while True:  # the child releases its copy of the lock as soon as it runs
            try:
                Journal(tmp_path, config={}).close()
                break
            except JournalError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        child.kill()
        child.join()


def _in_child(journal: Journal) -> None:
    try:
        journal.append(rs.Record(9, "train", 0.0, {}, HostSummary.empty()))
    except JournalError:
        journal.close()
        os._exit(0)
    os._exit(1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_9_loses_and_tears_nothing(tmp_path: Path) -> None:
    """After 50 kills at random moments every record that was reported as committed is stored intact."""
    script = Path(__file__).resolve().parents[1] / "support" / "kill_writers.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parents[1]), *sys.path])}
    command = [sys.executable, str(script), str(tmp_path), "50"]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert process.returncode == 0, process.stderr
    reported = [int(identifier) for line in process.stdout.splitlines() for identifier in line.split()[1:]]
    connection = sqlite3.connect(tmp_path / "ratioscope" / FILE)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    present = {row[0] for row in connection.execute("SELECT id FROM record")}
    connection.close()
    assert len(process.stdout.splitlines()) == 50
    assert len(reported) > 200
    assert set(reported) <= present
    with JournalReader(tmp_path) as reader:
        records = list(reader.records(superseded=True))
        assert len(records) == len(present)
        assert all(record.summary.count("token/n") == 64 for record in records)


# The recorder


def observe(recorder: rs.Recorder) -> None:
    """Observes one batch."""
    rollout = -torch.rand(4, 16) - 0.1
    recorder.observe(rollout + 0.05 * torch.randn(4, 16), rollout, torch.ones(4, 16))


class Probe(rs.MemoryTracker):
    """Counts the journal's records at each write."""

    path: Path
    counts: list[int]

    def write(self, row: rs.Row) -> None:
        """Counts the committed records."""
        self.counts.append(len(steps(self.path)))


def test_a_record_is_committed_before_a_tracker_receives_it(tmp_path: Path) -> None:
    """At a tracker's write the record is already in the journal."""
    probe = Probe()
    probe.path, probe.counts = tmp_path, []
    with rs.Recorder(report_to=[probe], output_dir=tmp_path) as recorder:
        for step in (1, 2):
            observe(recorder)
            recorder.flush(step=step)
        assert recorder.journal_path == tmp_path / "ratioscope" / FILE
    assert probe.counts == [1, 2]


def test_without_an_output_directory_there_is_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder without an output directory writes no file."""
    monkeypatch.chdir(tmp_path)
    with rs.Recorder() as recorder:
        observe(recorder)
        assert recorder.flush(step=1) is not None
        assert recorder.journal_path is None
    assert not list(tmp_path.iterdir())


def test_no_secret_reaches_the_file(tmp_path: Path) -> None:
    """Secrets are redacted before the first write, so that no file contains them."""
    secrets = ["hf_" + "Zq9" * 12, "correct-horse-battery", "sk-" + "Ab3" * 10]
    config = {
        "hub_token": secrets[0],
        "generation_kwargs": {"api_key": secrets[2]},
        "url": f"https://me:{secrets[1]}@host.example/x",
    }
    with rs.Recorder(config=config, output_dir=tmp_path) as recorder:
        observe(recorder)
        recorder.flush(step=1)
        content = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hub_token" in content
    assert not [secret for secret in secrets if secret.encode() in content]


@pytest.fixture
def little_disk() -> Iterator[None]:
    """Limits each file to 96 KiB, to imitate a full disk."""
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (96 * 1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_costs_one_warning(tmp_path: Path, little_disk: None, caplog: pytest.LogCaptureFixture) -> None:
    """With a full disk, flushing continues, trackers receive every row, and the loss is logged and counted."""
    tracker = rs.MemoryTracker()
    with (
        caplog.at_level(logging.WARNING, logger="ratioscope"),
        rs.Recorder(report_to=[tracker], output_dir=tmp_path) as recorder,
    ):
        for step in range(1, 61):
            observe(recorder)
            assert recorder.flush(step=step) is not None
        lost = sum(count for kind, count in recorder.incidents.counts.items() if kind.startswith("journal"))
    assert len(tracker.rows) == 60
    assert 0 < lost < 60
    assert len([record for record in caplog.records if "journal failed" in record.getMessage()]) <= 2
    kept = steps(tmp_path)
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) + lost == 60


def test_an_unwritable_directory_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If no journal can be made, recording continues without one after one warning."""
    (tmp_path / "file").write_text("in the way")
    tracker = rs.MemoryTracker()
    with (
        caplog.at_level(logging.WARNING, logger="ratioscope"),
        rs.Recorder(report_to=[tracker], output_dir=tmp_path / "file") as recorder,
    ):
        for step in (1, 2, 3):
            observe(recorder)
            recorder.flush(step=step)
        assert recorder.journal_path is None
    assert len(tracker.rows) == 3
    assert len([record for record in caplog.records if "journal failed" in record.getMessage()]) == 1


def test_two_recorders_on_one_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second recorder of a process takes the file over, the first says so once and has it back at its end."""
    second_tracker = rs.MemoryTracker()
    with rs.Recorder(output_dir=tmp_path) as first:
        observe(first)
        first.flush(step=1)
        with rs.Recorder(report_to=[second_tracker], output_dir=tmp_path) as second:
            observe(second)
            second.flush(step=2)
            assert second.journal_path == tmp_path / "ratioscope" / FILE
            observe(first)
            first.flush(step=3)
            assert first.journal_path is None
    assert len(second_tracker.rows) == 1
    assert len([record for record in caplog.records if "was left open in this process" in record.getMessage()]) == 1
    assert not [record for record in caplog.records if "another process" in record.getMessage()]
    assert sorted(steps(tmp_path, superseded=True)) == [1, 2, 3]


def test_records_are_small(tmp_path: Path) -> None:
    """A record of a window of a thousand tokens takes less than 24 KB."""
    with rs.Recorder(output_dir=tmp_path, correction=rs.Correction("token", "truncate", upper=1.2)) as recorder:
        for step in range(1, 21):
            rollout = -torch.rand(16, 64) - 0.1
            recorder.observe(rollout + 0.05 * torch.randn(16, 64), rollout, torch.ones(16, 64))
            recorder.flush(step=step)
    assert (tmp_path / "ratioscope" / FILE).stat().st_size < 20 * 24 * 1024


def test_any_sqlite_client_reads_it(written: Path) -> None:
    """Bodies are JSON, and every client has the view `live`, as documented."""
    connection = sqlite3.connect(written / "ratioscope" / FILE)
    rows: list[tuple[Any, ...]] = list(connection.execute("SELECT step, split, body FROM live ORDER BY step"))
    connection.close()
    assert [row[:2] for row in rows] == [(1, "train"), (2, "train"), (3, "train")]
    assert json.loads(rows[0][2])["scalars"]["ratioscope/counts/tokens"] == 64


def test_a_foreign_lock_costs_one_time_out(written: Path) -> None:
    """Only the first append waits for a lock that another program holds; afterwards appends succeed again."""
    with Journal(written, config={}) as journal:
        other = sqlite3.connect(written / "ratioscope" / FILE, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        seconds = []
        for step in (4, 5, 6):
            start = time.monotonic()
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                journal.append(make_record(step))
            seconds.append(time.monotonic() - start)
        other.execute("ROLLBACK")
        other.close()
        journal.append(make_record(7))
    assert max(seconds[1:]) < 1.0
    assert steps(written)[-1] == 7
