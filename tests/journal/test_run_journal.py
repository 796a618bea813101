"""A training has its journal: late where another process had it, anew where it was taken away, without locks too."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

import ratioscope as rs
from ratioscope.incidents import Incidents
from ratioscope.journal import run_journal
from ratioscope.journal.reader import JournalReader
from ratioscope.journal.run_journal import RunJournal
from ratioscope.journal.schema import DIRECTORY, FILE, JournalError
from ratioscope.journal.targets import open_target
from ratioscope.journal.writer import Journal
from tests.support.kill_writers import make_record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks for the file again at each append."""
    monkeypatch.setattr(run_journal, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(run_journal, "ASKING_SHARE", 1e9)
    monkeypatch.setattr(run_journal, "LONGEST_PAUSE_S", 0.0)


def steps(path: Path) -> list[int]:
    """Returns the steps of all records in the order of writing."""
    with JournalReader(path) as reader:
        return [record.step for record in reader.records(superseded=True)]


def delivered(path: Path) -> list[int]:
    """Returns the steps of the records that are marked as delivered."""
    connection = sqlite3.connect(path / DIRECTORY / FILE)
    rows = connection.execute("SELECT step FROM record JOIN delivery ON record.id = delivery.record ORDER BY step")
    found = [step for (step,) in rows]
    connection.close()
    return found


def open_run(path: Path, incidents: Incidents | None = None) -> RunJournal:
    """Opens the journal of a training."""
    return RunJournal(path, config={}, restored_step=None, incidents=incidents or Incidents())


def test_a_lock_that_is_freed_later_is_taken(tmp_path: Path) -> None:
    """Records held in memory, with the state of their delivery, are then in the file, and the run goes on there."""
    other = Journal(tmp_path, config={})
    other.append(make_record(1))
    with open_run(tmp_path) as journal:
        assert journal.is_held
        target = open_target(journal, "tensorboard", owned=True)
        target.mark([journal.append(make_record(2))])
        unsent = journal.append(make_record(3))
        other.append(make_record(10))
        other.close()
        last = journal.append(make_record(4))
        assert not journal.is_held
        assert [identifier for identifier, _ in target.missing(9)][-2:] == [unsent, last]
    assert steps(tmp_path) == [1, 10, 2, 3, 4]
    assert delivered(tmp_path) == [2]


def test_a_lock_that_is_freed_before_the_end_is_taken_at_close(tmp_path: Path) -> None:
    """The last chance is the end of the run."""
    other = Journal(tmp_path, config={})
    journal = open_run(tmp_path)
    journal.append(make_record(2))
    other.close()
    journal.close()
    assert steps(tmp_path) == [2]


def test_a_lock_that_is_never_freed_is_said_at_the_end(tmp_path: Path) -> None:
    """The end names the number of records that no file has."""
    incidents = Incidents()
    with Journal(tmp_path, config={}):
        journal = open_run(tmp_path, incidents)
        journal.append(make_record(2))
        journal.close()
    assert incidents.counts == {"journal: JournalError": 1, "journal was never written": 1}


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest records are dropped and counted."""
    monkeypatch.setattr(run_journal, "MOST_HELD", 5)
    incidents = Incidents()
    other = Journal(tmp_path, config={})
    with open_run(tmp_path, incidents) as journal:
        for step in range(1, 9):
            journal.append(make_record(step))
        other.close()
    assert steps(tmp_path) == [4, 5, 6, 7, 8]
    assert incidents.counts["journal memory full"] == 3


def test_a_tracker_gets_each_row_once_across_the_change(tmp_path: Path) -> None:
    """A tracker on the training thread misses no row and gets none twice, and its rows are marked."""
    tracker = rs.MemoryTracker()
    other = Journal(tmp_path, config={})
    with rs.Recorder(output_dir=tmp_path, report_to=[tracker]) as recorder:
        for step in range(1, 7):
            recorder.write(make_record(step))
            if step == 3:
                assert recorder.journal_path is None
                other.close()
        assert recorder.journal_path == tmp_path / DIRECTORY / FILE
    assert [row.step for row in tracker.rows] == [1, 2, 3, 4, 5, 6]
    assert steps(tmp_path) == delivered(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_asking_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause grows from try to try, and with the time that a try takes."""
    monkeypatch.undo()
    with Journal(tmp_path, config={}):
        journal = open_run(tmp_path)
        start = time.monotonic()
        for step in range(1, 200):
            journal.append(make_record(step))
        assert journal._pause <= 2.0 * max(1.0, time.monotonic() - start)
        journal.close()


def test_a_notebook_cell_run_twice_goes_on_with_the_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A recorder that was left open in this process is named, and blocks nobody."""
    recorders = []
    for step in (1, 2, 3):
        recorder = rs.Recorder(output_dir=tmp_path)
        recorder.write(make_record(step))
        recorders.append(recorder)
        assert recorder.journal_path == tmp_path / DIRECTORY / FILE
    for recorder in recorders:
        recorder.close()
    assert steps(tmp_path) == [1, 2, 3]
    assert not [line for line in caplog.messages if "another process" in line]
    assert [line for line in caplog.messages if "left open in this process" in line]


@pytest.mark.parametrize("gone", [".", DIRECTORY, f"{DIRECTORY}/{FILE}"])
def test_a_journal_that_is_taken_away_is_written_anew(tmp_path: Path, gone: str) -> None:
    """The whole journal is there again at the next commit, and the loss is said once."""
    run, incidents = tmp_path / "run", Incidents()
    with open_run(run, incidents) as journal:
        target = open_target(journal, "tensorboard", owned=True)
        target.mark([journal.append(make_record(step)) for step in (1, 2, 3)][:2])
        if (run / gone).is_dir():
            shutil.rmtree(run / gone)
        else:
            (run / gone).unlink()
        for step in (4, 5):
            journal.append(make_record(step))
        assert target.count_missing() == 3
        with pytest.raises(JournalError, match="another process"):
            Journal(run, config={})
        assert steps(run) == [1, 2, 3, 4, 5]
    assert steps(run) == [1, 2, 3, 4, 5]
    assert delivered(run) == [1, 2]
    assert incidents.counts == {"journal taken away": 1}


def test_a_file_in_its_place_is_left_alone(tmp_path: Path) -> None:
    """A file that somebody put there is named and not written."""
    incidents = Incidents()
    with open_run(tmp_path, incidents) as journal:
        journal.append(make_record(1))
        shutil.copyfile(tmp_path / DIRECTORY / FILE, tmp_path / "copy")
        (tmp_path / "copy").replace(tmp_path / DIRECTORY / FILE)
        journal.append(make_record(2))
    assert incidents.counts["journal replaced"] == 1


@pytest.mark.parametrize("damaged", ["record_step", "delivery", "target", "attempt", "event"])
def test_a_damaged_journal_is_moved_aside(tmp_path: Path, damaged: str, caplog: pytest.LogCaptureFixture) -> None:
    """A resumed training goes on in a new file, its rows reach trackers, and the old records can still be read."""
    with rs.Recorder(output_dir=tmp_path) as recorder:
        for step in (1, 2, 3):
            recorder.write(make_record(step))
    file = tmp_path / DIRECTORY / FILE
    connection = sqlite3.connect(file)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (damaged,)).fetchone()
    connection.close()
    content = bytearray(file.read_bytes())
    content[(root - 1) * 4096 : (root - 1) * 4096 + 200] = b"\xff" * 200
    file.write_bytes(content)
    tracker = rs.MemoryTracker()
    with rs.Recorder(output_dir=tmp_path, report_to=[tracker]) as recorder:
        recorder.write(make_record(4))
        assert recorder.incidents.counts == {"journal damaged": 1}
    assert [row.step for row in tracker.rows] == steps(tmp_path) == [4]
    (aside,) = (tmp_path / DIRECTORY).glob("journal.damaged-*.sqlite")
    assert steps(aside) == [1, 2, 3]
    assert [line for line in caplog.messages if f"ratioscope report {aside}" in line]


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def _no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a file system that answers every lock with an error."""

    def refuse(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr("fcntl.lockf", refuse)


@pytest.mark.usefixtures("_no_locks")
def test_a_file_system_without_locks_has_a_journal(tmp_path: Path) -> None:
    """A journal there is written, read meanwhile, refused to a second writer, and free after the end."""
    with Journal(tmp_path, config={}) as journal:
        journal.append(make_record(1))
        assert steps(tmp_path) == [1]
        with pytest.raises(JournalError, match="another process"):
            Journal(tmp_path, config={})
        journal.append(make_record(2))
        assert steps(tmp_path) == [1, 2]
    with Journal(tmp_path, config={}) as journal:
        journal.append(make_record(3))
    assert steps(tmp_path) == [1, 2, 3]


KILLED = """
import errno, fcntl, os, sys
from pathlib import Path
def refuse(*_):
    raise OSError(int(sys.argv[2]), "no locks")
fcntl.flock = fcntl.lockf = refuse
from ratioscope.journal.writer import Journal
journal = Journal(Path(sys.argv[1]), config={})
os.kill(os.getpid(), 9)
"""


@pytest.mark.usefixtures("_no_locks")
def test_a_killed_writer_without_locks_blocks_nobody(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A process that has ended is no owner any more."""
    code = request.node.callspec.params["_no_locks"]
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(code)], check=False, timeout=60)
    with Journal(tmp_path, config={}) as journal:
        journal.append(make_record(1))
    assert steps(tmp_path) == [1]
