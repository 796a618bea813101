"""Damaged and hostile journals: what can be read is read, what cannot is named, and nothing raises or hangs."""

from __future__ import annotations

import random
import sqlite3
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ratioscope.journal.reader import JournalReader
from ratioscope.journal.schema import DIRECTORY, FILE, JournalError
from ratioscope.journal.targets import open_target
from ratioscope.journal.writer import Journal
from tests.support.kill_writers import make_record

if TYPE_CHECKING:
    from pathlib import Path

BAD = {
    "cut": '{"definitions": 1, "step"',
    "null bytes": b"\x00\x00\xff\x00",
    "a list": "[]",
    "deep": "[" * 200_000,
    "no UTF-8": b"\xff\xfe{",
    "no state": '{"step": 3}',
    "a number": 7,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Makes a run directory with five records."""
    with Journal(tmp_path, config={"a": 1}) as journal:
        for step in range(1, 6):
            journal.append(make_record(step))
    return tmp_path


def change(run: Path, sql: str, *arguments: object) -> None:
    """Changes a journal's file as another program would."""
    connection = sqlite3.connect(run / DIRECTORY / FILE, isolation_level=None)
    connection.execute(sql, arguments)
    connection.close()


def steps(run: Path) -> list[int]:
    """Returns the steps that are read."""
    with JournalReader(run) as reader:
        reader.first_records()
        reader.events()
        reader.config()
        return [record.step for record in reader.records()]


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("row", [1, 3])
def test_a_damaged_body_is_left_out_and_named(run: Path, kind: str, row: int, caplog: pytest.LogCaptureFixture) -> None:
    """The records beside a damaged one are read, and one line names it."""
    change(run, "UPDATE record SET body = ? WHERE id = ?", BAD[kind], row)
    assert steps(run) == [step for step in range(1, 6) if step != row]
    assert [line for line in caplog.messages if f"1 record(s) cannot be read and are left out: id {row}" in line]
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_of_a_body_changes_no_value_unnoticed(run: Path, seed: int) -> None:
    """A record of which one bit changed is left out, or read as it was written."""
    with JournalReader(run) as reader:
        written = {record.step: record for record in reader.records()}
    rng = random.Random(seed)
    connection = sqlite3.connect(run / DIRECTORY / FILE)
    body = bytearray(connection.execute("SELECT CAST(body AS BLOB) FROM record WHERE id = 3").fetchone()[0])
    connection.close()
    body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    change(run, "UPDATE record SET body = CAST(? AS TEXT) WHERE id = 3", bytes(body))
    with JournalReader(run) as reader:
        read = {record.step: record for record in reader.records()}
    assert set(read) >= {1, 2, 4, 5}
    assert all(record.to_json() == written[step].to_json() for step, record in read.items())


def test_a_body_without_a_checksum_is_read(run: Path) -> None:
    """Journals of earlier versions have none."""
    change(run, "UPDATE record SET body = json_remove(body, '$.crc')")
    assert steps(run) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("path", ["$.state.maxima", "$.state.histograms", "$.state.top.tokens", "$.scalars", "$.step"])
def test_a_body_without_a_checksum_is_checked_in_full(run: Path, path: str) -> None:
    """Parts that are decoded at first use raise at no first use."""
    change(run, "UPDATE record SET body = json_set(json_remove(body, '$.crc'), ?, 'x') WHERE id = 2", path)
    assert steps(run) == [1, 3, 4, 5]


def test_a_moved_record_is_left_out(run: Path) -> None:
    """A step that differs from that of the body would put the record elsewhere in the run."""
    change(run, "UPDATE record SET step = 4 WHERE id = 2")
    assert steps(run) == [1, 3, 4, 5]


def test_a_lone_surrogate_costs_no_record(run: Path) -> None:
    """Text that is no UTF-8 is stored with a question mark in its place."""
    record = replace(make_record(6), events=("bad \udc80 text",))
    with Journal(run, config={}) as journal:
        journal.append(record)
    with JournalReader(run) as reader:
        assert list(reader.records())[-1].events == ("bad ? text",)


@pytest.mark.parametrize("kind", BAD)
def test_records_behind_a_damaged_one_are_delivered(run: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A target misses each readable record, also where the batch holds only the damaged one."""
    change(run, "UPDATE record SET body = ? WHERE id = 1", BAD[kind])
    with Journal(run, config={}) as journal:
        target = open_target(journal, "tensorboard", owned=True)
        assert [identifier for identifier, _ in target.missing(1)] == [2]
        target.mark([2, 3, 4, 5], oldest_first=True)
        assert target.missing(10) == []
        assert target.count_missing() == 0
        new = journal.append(make_record(6))
        assert [identifier for identifier, _ in target.missing(10)] == [new]
        assert target.count_missing() == 1
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("content", [b"", b"\x00", b"x" * 100])
def test_a_file_without_tables_is_one_clear_error(run: Path, content: bytes) -> None:
    """An empty or foreign file is refused by its path."""
    (run / DIRECTORY / FILE).write_bytes(content)
    with pytest.raises(JournalError, match=FILE):
        steps(run)


@pytest.mark.parametrize("sql", ["DROP VIEW live", "DROP INDEX record_step", "DROP TABLE event", "DROP TABLE attempt"])
def test_a_lost_object_costs_no_record(run: Path, sql: str) -> None:
    """The records need only their own table."""
    change(run, sql)
    assert steps(run) == [1, 2, 3, 4, 5]


def test_a_lost_index_is_made_anew(run: Path) -> None:
    """Delivery counts through the index, which the next writer restores."""
    change(run, "DROP INDEX record_step")
    with Journal(run, config={}) as journal:
        assert open_target(journal, "tensorboard", owned=True).count_missing() == 5


def test_a_journal_without_its_records_is_one_clear_error(run: Path) -> None:
    """The message says that the table is missing."""
    change(run, "DROP TABLE record")
    with pytest.raises(JournalError, match="no such table: record"):
        steps(run)


ENDLESS = "AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i AS id, i AS step FROM n"


@pytest.mark.parametrize("name", ["live", "more"])
def test_an_endless_view_is_not_run(run: Path, name: str) -> None:
    """Reading and delivery use no view."""
    change(run, f"DROP VIEW IF EXISTS {name}")
    change(run, f"CREATE VIEW {name} {ENDLESS}")
    assert steps(run) == [1, 2, 3, 4, 5]
    with Journal(run, config={}) as journal:
        assert open_target(journal, "tensorboard", owned=True).count_missing() == 5


@pytest.mark.parametrize(
    "table", [f"VIEW event {ENDLESS}", "TABLE event (id INTEGER PRIMARY KEY, body AS (zeroblob(1000000000)))"]
)
def test_a_table_that_computes_is_refused(run: Path, table: str) -> None:
    """An object under the name of a table of ours opens neither reader nor writer."""
    change(run, "DROP TABLE event")
    change(run, f"CREATE {table}")
    with pytest.raises(JournalError, match="did not make"):
        steps(run)
    with pytest.raises(JournalError, match="did not make"):
        Journal(run, config={})


def test_a_trigger_is_read_past_but_not_written(run: Path) -> None:
    """A trigger runs at writing only."""
    change(run, "CREATE TRIGGER again AFTER INSERT ON attempt BEGIN INSERT INTO attempt SELECT * FROM attempt; END")
    assert steps(run) == [1, 2, 3, 4, 5]
    with pytest.raises(JournalError, match="DROP TRIGGER again"):
        Journal(run, config={})


@pytest.mark.parametrize("table", ["record", "attempt", "event"])
def test_gigabyte_values_cost_little_memory(run: Path, table: str, caplog: pytest.LogCaptureFixture) -> None:
    """A row whose value is longer than anything that ratioscope writes is left out, and the others are read."""
    if table == "event":
        change(run, "INSERT INTO event VALUES (1, 1, 1, 0.0, 'a', 'b', 'c', zeroblob(200000000))")
    else:
        change(
            run, f"UPDATE {table} SET {'body' if table == 'record' else 'config'} = zeroblob(200000000) WHERE id = 1"
        )
    tracemalloc.start()
    assert steps(run)[-4:] == [2, 3, 4, 5]
    assert tracemalloc.get_traced_memory()[1] < 2e8
    tracemalloc.stop()
    assert len(caplog.messages) >= 1


def test_a_backends_count_leaves_damaged_records_out(run: Path) -> None:
    """No row of a count stands for a record that could not be sent."""
    change(run, "UPDATE record SET body = '[]' WHERE id = 2")
    with Journal(run, config={}) as journal:
        target = open_target(journal, "wandb", owned=True)
        target.reset(3)
        assert journal.query("SELECT record FROM delivery ORDER BY record") == [(1,), (3,), (4,)]
        assert [identifier for identifier, _ in target.missing(10)] == [5]
