"""Journal: one SQLite file in the run directory, to which each record is committed before trackers receive it.

A record that was flushed is in the journal whatever happens to the process, the network or a tracker. A run that is
continued from a checkpoint continues its journal as a new attempt. Records that the new attempt repeats are kept and
superseded: the view ``live`` leaves them out.

``docs/reference/journal.md`` describes the schema.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sqlite3
import threading
import time
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from ratioscope.journal.damage import decode, seal
from ratioscope.journal.lock import check_folder, has_locks, take_lock
from ratioscope.journal.schema import BUSY_TIMEOUT_S, DIRECTORY, FILE, JournalError, check_schema, mend, migrate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from filelock import BaseFileLock

    from ratioscope.event import Event
    from ratioscope.record import Record

BRIEF_TIMEOUT_S = 0.05
"""Seconds that a statement waits for another program's lock once one has waited ``BUSY_TIMEOUT_S`` in vain."""
STATEMENT_S = 5.0
"""Seconds that one statement may take; a damaged tree may have no end."""
FEW = 8
"""Rows up to which one statement inserts them all: each further one may wait for the interpreter lock."""


class Journal:
    """Writes one attempt. Only one process at a time may have a journal open for writing.

    Every append is committed when it returns. The file is in write-ahead mode, so reader and writer never wait for each
    other.

    Args:
        output_dir: the run's output directory; the journal lies in its subfolder ``ratioscope``.
        config: the run config, secrets already redacted; None to deliver from the journal without a new attempt.
        restored_step: the step of the checkpoint that this process continues from; None if unknown.

    Raises:
        JournalError: if another process writes this journal, the file is of a newer version or no journal, or the
            folder is a symbolic link or belongs to another user.
        OSError: if the folder cannot be written.
        sqlite3.Error: if the file cannot be written.
    """

    _lock: BaseFileLock | None

    def __init__(self, output_dir: Path, *, config: Mapping[str, Any] | None, restored_step: int | None = None) -> None:
        folder = output_dir / DIRECTORY
        folder.mkdir(parents=True, exist_ok=True)
        check_folder(folder)
        self.path = folder / FILE
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._locked = False
        lock = self._lock = take_lock(self.path)
        try:
            self._connect()
            self.attempt = self._begin(config, restored_step)
        except BaseException:
            with suppress(AttributeError):
                self._connection.close()
            lock.release()
            raise

    def _connect(self) -> None:
        """Opens the file, whose lock this process has."""
        options = "" if has_locks(self.path) else "?vfs=unix-none"
        self._use(
            sqlite3.connect(
                f"{self.path.absolute().as_uri()}{options}",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
        )
        self._deadline = time.monotonic() + STATEMENT_S
        check_schema(self._connection, self.path, may_be_new=True)
        # A write-ahead file needs locks of its own.
        self._connection.execute(f"PRAGMA journal_mode = {'TRUNCATE' if options else 'WAL'}")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        migrate(self._connection, self.path)
        mend(self._connection)
        self._deadline = math.inf

    def _use(self, connection: sqlite3.Connection) -> None:
        self._connection, self._deadline = connection, math.inf
        connection.set_progress_handler(lambda: time.monotonic() > self._deadline, 100_000)

    def append(self, record: Record) -> int:
        """Commits one record.

        Returns:
            The record's id, which grows with every record of the journal.

        Raises:
            sqlite3.Error: if the record could not be written; the journal is unchanged.
            JournalError: in a forked child, which must not touch its parent's connection.
        """
        row = (self.attempt, record.step, record.split, record.time, seal(_dump(record.to_json())))
        return self.insert("record (attempt, step, split, time, body)", row)

    def append_event(self, event: Event) -> None:
        """Commits one event.

        Raises:
            sqlite3.Error: if the event could not be written.
            JournalError: in a forked child.
        """
        row = (self.attempt, event.step, event.time, event.name, event.status, event.level, _dump(event.to_json()))
        self.insert("event (attempt, step, time, name, status, level, body)", row)

    def first_records(self, limit: int = 16) -> list[Record]:
        """Returns the first records of the whole journal, in the order of writing."""
        rows = self.query("SELECT id FROM record ORDER BY id LIMIT ?", (limit,))
        records = [self.read(identifier) for (identifier,) in rows]
        return [record for record in records if record is not None]

    def read(self, identifier: int) -> Record | None:
        """Returns one record; None if it is damaged."""
        with suppress(sqlite3.DatabaseError):
            rows = self.query("SELECT CAST(body AS BLOB) FROM record WHERE id = ?", (identifier,))
            return decode(rows[0][0]) if rows else None
        return None

    def query(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement; safe from any thread of the process that opened the journal."""
        self._check_process()
        with self._statement():
            return self._connection.execute(sql, arguments).fetchall()

    def insert_all(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Adds rows in one transaction; rows that exist already are skipped."""
        self._check_process()
        if not rows:
            return
        row = f"({', '.join('?' * len(rows[0]))})"
        with self._statement():
            if len(rows) <= FEW:
                sql = f"INSERT OR IGNORE INTO {table} VALUES {', '.join([row] * len(rows))}"
                self._connection.execute(sql, list(chain.from_iterable(rows)))
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES {row}", rows)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """Closes the file and lets another process write it."""
        if os.getpid() == self._pid:
            with self._mutex:
                self._connection.close()
                if self._lock is not None:
                    self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, config: Mapping[str, Any] | None, restored_step: int | None) -> int:
        if config is None:
            return int(self._connection.execute("SELECT COALESCE(MAX(id), 0) FROM attempt").fetchone()[0])
        row = (time.time(), socket.gethostname(), self._pid, restored_step, _dump(config))
        return self.insert("attempt (started, host, pid, restored_step, config)", row)

    @contextmanager
    def _statement(self) -> Iterator[None]:
        """Holds the connection; after a lock of another program timed out, the next statements wait only briefly."""
        with self._mutex:
            self._deadline = time.monotonic() + STATEMENT_S
            try:
                yield
            except sqlite3.OperationalError as error:
                if not self._locked and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                    self._wait_for_locks(BRIEF_TIMEOUT_S)
                    self._locked = True
                raise
            finally:
                self._deadline = math.inf
            if self._locked:
                self._wait_for_locks(BUSY_TIMEOUT_S)
                self._locked = False

    def _wait_for_locks(self, seconds: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * seconds)}")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            msg = f"got a write to {self.path} from a forked child; only process {self._pid} writes this journal"
            raise JournalError(msg)

    def insert(self, table: str, row: tuple[Any, ...]) -> int:
        """Adds a row and returns its id."""
        self._check_process()
        with self._statement():
            cursor = self._connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
            return int(cursor.lastrowid or 0)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
