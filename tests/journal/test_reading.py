"""Reading writes nothing: neither to the journal nor beside it, wherever it lies and whoever owns it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ratioscope.journal.reader import JournalReader
from ratioscope.journal.schema import DIRECTORY, FILE
from ratioscope.journal.writer import Journal
from tests.support.kill_writers import make_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READ = "import sys, ratioscope as rs; print([r.step for r in rs.JournalReader(sys.argv[1]).records()])"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Makes a run directory with three records."""
    with Journal(tmp_path, config={}) as journal:
        for step in (1, 2, 3):
            journal.append(make_record(step))
    return tmp_path


@pytest.fixture
def crashed(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a copy of a run whose writer was killed with a record in the ``-wal`` alone."""
    copy = tmp_path_factory.mktemp("crashed")
    with Journal(run, config={}) as journal:
        journal.append(make_record(4))
        shutil.copytree(run / DIRECTORY, copy / DIRECTORY)
    return copy


def contents(run: Path) -> dict[str, bytes]:
    """Returns the journal's folder with the content of each file."""
    return {file.name: file.read_bytes() for file in (run / DIRECTORY).iterdir()}


def steps(run: Path) -> list[int]:
    """Returns the steps that are read."""
    with JournalReader(run) as reader:
        return [record.step for record in reader.records()]


@pytest.fixture
def read_only(run: Path) -> Iterator[Path]:
    """Makes the folder one that nobody may write to."""
    yield run
    for path in (run, run / DIRECTORY, *(run / DIRECTORY).iterdir()):
        path.chmod(0o755)


def protect(run: Path) -> None:
    """Takes away all rights to write."""
    for path in (*(run / DIRECTORY).iterdir(), run / DIRECTORY, run):
        path.chmod(0o555)


def read_without_rights(run: Path) -> str:
    """Reads a run in a process to which the rights of the files apply, also where root runs the tests."""
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    command = [*drop, sys.executable, "-c", READ, str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr


def test_reading_a_closed_run_writes_nothing(run: Path) -> None:
    """The folder holds the same bytes afterwards, and no further file while the reader is open."""
    before = contents(run)
    with JournalReader(run) as reader:
        assert len(list(reader.records())) == 3
        assert contents(run) == before
    assert contents(run) == before


def test_a_closed_run_in_a_read_only_folder_is_read(read_only: Path) -> None:
    """Reading needs no right to write."""
    protect(read_only)
    assert read_without_rights(read_only) == "[1, 2, 3]"


@pytest.mark.parametrize("lost", [(), ("-shm",)])
def test_a_crashed_run_in_a_read_only_folder_is_read(crashed: Path, lost: tuple[str, ...]) -> None:
    """The records of the ``-wal`` are read, also where its index was not copied."""
    for end in lost:
        (crashed / DIRECTORY / f"{FILE}{end}").unlink()
    protect(crashed)
    assert read_without_rights(crashed) == "[1, 2, 3, 4]"


def test_a_run_of_another_user_stays_as_it_is(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader makes no ``-shm`` that belongs to another user than the run's owner."""
    (crashed / DIRECTORY / f"{FILE}-shm").unlink()
    monkeypatch.setattr("os.geteuid", lambda: os.stat(crashed).st_uid + 1)
    before = contents(crashed)
    assert steps(crashed) == [1, 2, 3, 4]
    assert contents(crashed) == before


def test_a_training_that_begins_meanwhile_is_read(run: Path) -> None:
    """A reader of a closed run sees what a training has written since, also in pages that it has read already."""
    with JournalReader(run) as reader:
        assert len(list(reader.records())) == 3
        for first, end in ((4, 40), (41, 80)):
            with Journal(run, config={}) as journal:
                for step in range(first, end + 1):
                    journal.append(make_record(step))
                journal.query("PRAGMA wal_checkpoint(TRUNCATE)")
                assert [record.step for record in reader.records()] == list(range(1, end + 1))
            assert len(list(reader.records())) == len(steps(run))


def test_a_training_that_begins_between_two_records_is_read(run: Path) -> None:
    """A walk over the records goes on when the file changes under it."""
    with JournalReader(run) as reader:
        walk = reader.records()
        assert next(walk).step == 1
        with Journal(run, config={}) as journal:
            for step in range(4, 60):
                journal.append(make_record(step))
        assert [record.step for record in walk] == [2, 3]
        assert len(list(reader.records())) == 59


def test_a_lost_wal_leaves_what_was_moved_into_the_file(crashed: Path) -> None:
    """Without the ``-wal`` of a killed run the records before it are read, and the next training goes on."""
    for end in ("-wal", "-shm"):
        (crashed / DIRECTORY / f"{FILE}{end}").unlink()
    assert steps(crashed) == [1, 2, 3]
    with Journal(crashed, config={}) as journal:
        journal.append(make_record(4))
    assert steps(crashed) == [1, 2, 3, 4]


def test_a_locked_file_is_read(run: Path) -> None:
    """Another program that holds the file for itself hides no committed record."""
    with Journal(run, config={}) as journal:
        journal.append(make_record(4))
        other = sqlite3.connect(run / DIRECTORY / FILE, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert steps(run) == [1, 2, 3, 4]
        other.close()
