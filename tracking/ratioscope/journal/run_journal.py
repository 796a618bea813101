"""Journal of a training: held in memory for as long as its file cannot be written."""

from __future__ import annotations

import itertools
import os
import shlex
import sqlite3
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ratioscope.incidents import log
from ratioscope.journal.lock import check_folder, take_lock
from ratioscope.journal.schema import DIRECTORY, FILE, JournalError, migrate
from ratioscope.journal.writer import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ratioscope.incidents import Incidents
    from ratioscope.record import Record

MOST_HELD = 1024
"""Records that are held in memory."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 20.0
"""Seconds until the file is asked for again; the pause doubles from the first to the longest."""
ASKING_SHARE = 0.05
"""Largest share of the time that asking may take."""
FAILURES = (JournalError, OSError, sqlite3.Error, UnicodeError)

_open: WeakValueDictionary[Path, RunJournal] = WeakValueDictionary()
"""Journals of this process that have their file."""


class RunJournal(Journal):
    """Journal whose constructor never fails for want of a file.

    While another process writes the file, or it cannot be written for another reason, records and the state of their
    delivery are held in memory, and each append asks for the file again. Ids of what was held count from the time in
    microseconds, so that they stay valid in the file.

    A journal that another recorder of this process left open gives its file to the newer one, and is held from then on.

    Args:
        output_dir: the run's output directory.
        config: the run config, secrets already redacted.
        restored_step: the step of the checkpoint that this process continues from; None if unknown.
        incidents: receives what goes wrong with the file.
    """

    def __init__(
        self, output_dir: Path, *, config: Mapping[str, Any], restored_step: int | None, incidents: Incidents
    ) -> None:
        self._incidents = incidents
        self._output_dir = output_dir
        self._ids: Iterator[int] | None = None
        self._held: deque[int] = deque()
        self._pause, self._next_try = FIRST_PAUSE_S, 0.0
        key = (output_dir / DIRECTORY).absolute()
        if (older := _open.get(key)) is not None:
            with incidents.guard("journal"):
                older.give_up()
        try:
            try:
                super().__init__(output_dir, config=config, restored_step=restored_step)
            except (JournalError, sqlite3.DatabaseError) as error:
                if not _is_damage(error):
                    raise
                self._set_aside(error)
                super().__init__(output_dir, config=config, restored_step=restored_step)
            _open[key] = self
            self._inode = self.path.stat().st_ino
        except FAILURES as error:
            self.path = output_dir / DIRECTORY / FILE
            kind = type(error).__name__
            self._incidents.report(f"journal: {kind}", f"journal failed: {kind}: {error}")
            self._hold()
            self.attempt = self._begin(config, restored_step)

    @property
    def is_held(self) -> bool:
        """True while the journal is in memory."""
        return self._ids is not None

    def append(self, record: Record) -> int:
        """Commits one record, to the file if it can be had by now."""
        self._check_process()
        if self.is_held:
            self._ask()
        else:
            self._check_file()
        identifier = super().append(record)
        if self.is_held:
            self._held.append(identifier)
            self._forget()
        return identifier

    def insert(self, table: str, row: tuple[Any, ...]) -> int:
        """Adds a row and returns its id."""
        if self._ids is not None:
            table, row = table.replace("(", "(id, ", 1), (next(self._ids), *row)
        return super().insert(table, row)

    def close(self) -> None:
        """Closes the file; asks for it a last time if records are held."""
        if os.getpid() != self._pid:
            return
        if self.is_held:
            self._next_try = 0.0
            self._ask()
        if self.is_held and self._held:
            lost = f"{self.path} could not be written; {len(self._held)} records were only in memory"
            self._incidents.report("journal was never written", lost)
        if _open.get(self.path.parent.absolute()) is self:
            del _open[self.path.parent.absolute()]
        super().close()

    def give_up(self) -> None:
        """Leaves the file to a newer recorder of this process."""
        if self.is_held or os.getpid() != self._pid:
            return
        with self._mutex:
            kept = {
                "attempt": self._connection.execute("SELECT * FROM attempt WHERE id = ?", (self.attempt,)).fetchall(),
                "target": self._connection.execute("SELECT * FROM target").fetchall(),
            }
            self._connection.close()
            if self._lock is not None:
                self._lock.release()
            self._hold()
            _insert(self._connection, kept)
        text = f"a recorder that was left open in this process wrote {self.path}; the new one goes on with it. "
        text += "Close a recorder that you no longer use: recorder.close(), or open it in a with statement"
        self._incidents.report("recorder left open", text)

    def _set_aside(self, error: Exception) -> None:
        """Renames a damaged file, which a reader can still read in part."""
        aside = self.path.with_name(f"journal.damaged-{time.time_ns() // 1000}.sqlite")
        for end in ("", "-wal", "-shm"):
            file = self.path.with_name(f"{FILE}{end}")
            if file.exists():
                file.rename(aside.with_name(f"{aside.name}{end}"))
        text = f"{self.path} is damaged ({error}) and was moved to {aside.name}; a new journal was begun. "
        text += f"Read the old one with: ratioscope report {shlex.quote(str(aside))}"
        self._incidents.report("journal damaged", text)

    def _hold(self) -> None:
        """Goes on in memory."""
        self._pid, self._locked, self._lock = os.getpid(), False, None
        if not hasattr(self, "_mutex"):
            self._mutex = threading.Lock()
        self._use(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))
        migrate(self._connection, self.path)
        self._ids = itertools.count(time.time_ns() // 1000)
        self._next_try = time.monotonic() + self._pause

    def _forget(self) -> None:
        """Drops the oldest held record if there are too many."""
        while len(self._held) > MOST_HELD:
            oldest = self._held.popleft()
            self.query("DELETE FROM record WHERE id = ?", (oldest,))
            self.query("DELETE FROM delivery WHERE record = ?", (oldest,))
            dropped = f"{self.path} still cannot be written; the oldest of {MOST_HELD} records was dropped"
            self._incidents.report("journal memory full", dropped)

    def _ask(self) -> None:
        """Moves what is held into the file if it can be written by now."""
        start = time.monotonic()
        if start < self._next_try:
            return
        try:
            file = Journal(self._output_dir, config=None)
        except FAILURES:
            self._pause = min(2.0 * self._pause, LONGEST_PAUSE_S)
            self._next_try = time.monotonic() + max(self._pause, (time.monotonic() - start) / ASKING_SHARE)
            return
        try:
            self._move_to(file)
        except sqlite3.Error:
            file.close()
            raise
        log.warning("%s can be written now; it has %d records that were held in memory", self.path, len(self._held))
        self._held.clear()

    def _move_to(self, file: Journal) -> None:
        with self._mutex:
            tables = ("attempt", "record", "target", "delivery", "event")
            kept = {table: self._connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
            file._connection.execute("BEGIN IMMEDIATE")
            _insert(file._connection, kept)
            file._connection.execute("COMMIT")
            self._connection.close()
            self._lock, self._ids, self._pause = file._lock, None, FIRST_PAUSE_S
            self._use(file._connection)
            self._inode = self.path.stat().st_ino
            _open[self.path.parent.absolute()] = self

    def _check_file(self) -> None:
        """Writes the journal anew where its file was taken away; what it holds can still be read until it is closed."""
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                return
        if time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + LONGEST_PAUSE_S
        if self.path.exists():
            text = f"another file was put in the place of {self.path}; what is recorded from now on is not in it"
            self._incidents.report("journal replaced", text)
            return
        self._write_anew()
        self._next_try = 0.0
        text = f"{self.path} was taken away during the run; it was written anew, with all that it had"
        self._incidents.report("journal taken away", text)

    def _write_anew(self) -> None:
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        check_folder(folder)
        copy = self.path.with_name(f"{FILE}.new")
        copy.unlink(missing_ok=True)
        with self._mutex:
            self._connection.execute("VACUUM INTO ?", (str(copy),))
            if self._lock is not None:
                self._lock.release()
            self._lock = take_lock(self.path)
            self._connection.close()  # deletes a -wal that was left behind, by its name
            copy.replace(self.path)
            self._connect()
            self._inode = self.path.stat().st_ino


def _is_damage(error: Exception) -> bool:
    """Returns whether the pages of a journal of ours are damaged."""
    return getattr(error.__cause__ or error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def _insert(connection: sqlite3.Connection, tables: Mapping[str, list[tuple[Any, ...]]]) -> None:
    for table, rows in tables.items():
        if rows:
            connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
