"""Journals that are damaged at random: reading and delivering raise nothing but JournalError, and end soon."""

from __future__ import annotations

import random
import resource
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ratioscope.journal.reader import JournalReader
from ratioscope.journal.schema import DIRECTORY, FILE, JournalError
from ratioscope.journal.targets import open_target
from ratioscope.journal.writer import Journal
from ratioscope.runs.read import read
from tests.support.kill_writers import make_record

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = 4096
OBJECTS = ("TABLE attempt", "TABLE record", "TABLE target", "TABLE delivery", "TABLE event", "INDEX record_step")


def flip_bits(file: Path, rng: random.Random) -> None:
    """Changes one to thirty bits anywhere."""
    content = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 30)):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def flip_heads(file: Path, rng: random.Random) -> None:
    """Changes bits of the first bytes of pages, where trees have their structure."""
    content = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 10)):
        content[rng.randrange(len(content) // PAGE) * PAGE + rng.randrange(64)] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut(file: Path, rng: random.Random) -> None:
    """Cuts the file anywhere."""
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])


def swap_pages(file: Path, rng: random.Random) -> None:
    """Exchanges pages, or writes one over another."""
    content = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 4)):
        one, other = (PAGE * rng.randrange(len(content) // PAGE) for _ in range(2))
        page = content[one : one + PAGE]
        content[one : one + PAGE] = content[other : other + PAGE]
        if rng.random() < 0.5:
            content[other : other + PAGE] = page
    file.write_bytes(content)


def clear_pages(file: Path, rng: random.Random) -> None:
    """Overwrites pages with zeros or noise, as a disk does."""
    content = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 4)):
        start = PAGE * rng.randrange(len(content) // PAGE)
        content[start : start + PAGE] = bytes(PAGE) if rng.random() < 0.5 else rng.randbytes(PAGE)
    file.write_bytes(content)


def drop_objects(file: Path, rng: random.Random) -> None:
    """Drops tables and indices."""
    connection = sqlite3.connect(file, isolation_level=None)
    for thing in rng.sample(OBJECTS, rng.randint(1, 3)):
        connection.execute("DROP " + thing.replace(" ", " IF EXISTS ", 1))
    connection.close()


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    flip_bits,
    flip_heads,
    cut,
    swap_pages,
    clear_pages,
    drop_objects,
)


def whole() -> bytes:
    """Makes a journal with 24 records of two attempts, deliveries and events."""
    folder = Path(DIRECTORY)
    for first in (1, 9):
        with Journal(Path(), config={"recorder": {"detail": "full"}}) as journal:
            target = open_target(journal, "tensorboard", owned=True)
            target.mark([journal.append(make_record(step)) for step in range(first, first + 12)][:4])
    return (folder / FILE).read_bytes()


def read_all(run: Path) -> int:
    """Reads a run in every way, and returns how many records were read."""
    with JournalReader(run) as reader:
        reader.events()
        records = list(reader.records(superseded=True))
        assert all(record.summary.metrics() for record in records)
    read(run)
    return len(records)


def deliver(run: Path) -> None:
    """Marks all records of a run as delivered."""
    with Journal(run, config=None) as journal:
        target = open_target(journal, "mlflow", owned=True)
        for _ in range(100):
            rows = target.missing(100)
            if not rows:
                break
            target.hold([identifier for identifier, _ in rows])
            target.settle()
        assert not rows


def fuzz(folder: Path, content: bytes, seed: int) -> int:
    """Damages one copy of a journal, uses it, and returns how many records were read."""
    file = folder / str(seed) / DIRECTORY / FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    DAMAGES[seed % len(DAMAGES)](file, random.Random(seed))
    start, count = time.monotonic(), 0
    with suppress(JournalError):
        count = read_all(file.parent.parent)
    with suppress(JournalError, sqlite3.DatabaseError):
        deliver(file.parent.parent)
    assert time.monotonic() - start < 30
    return count


def run_all(folder: Path, content: bytes, seeds: range) -> None:
    """Uses many damaged copies within one gigabyte; most of what they hold is read."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts = [fuzz(folder, content, seed) for seed in seeds]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20
    assert sum(counts) > 24 * len(counts) / 2


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Returns the file of a whole journal."""
    monkeypatch.chdir(tmp_path)
    return whole()


def test_60_damaged_journals_are_read(tmp_path: Path, content: bytes) -> None:
    """Ten damages of each kind end with what can be read, or with one clear error."""
    run_all(tmp_path, content, range(60))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_1000_damaged_journals_are_read(tmp_path: Path, content: bytes) -> None:
    """A thousand damages end with what can be read, or with one clear error."""
    run_all(tmp_path, content, range(1000, 2000))
