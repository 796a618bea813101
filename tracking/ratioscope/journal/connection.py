"""Read-only connection to a journal: writes nothing, also not beside the file, and each statement is bounded."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from ratioscope.journal.damage import tell_lost
from ratioscope.journal.schema import BUSY_TIMEOUT_S, JournalError, check_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

T = TypeVar("T")

STATEMENT_S = 30.0
"""Seconds that one statement may take: a damaged or hostile file must not keep a command for ever."""
LONGEST = 16 * 2**20
"""Bytes of the longest value that is read; a record has some ten thousand."""
UNWRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
"""Errors of SQLite where it may not make an index of the ``-wal``."""
MOST = 2 * LONGEST
"""Bytes of all values that one statement returns."""
AT_ONCE = 32
"""Bodies that one statement reads; where they are too long together, or one cannot be read, each has its own."""


class ReadConnection:
    """Reads a journal's file.

    Args:
        path: the file.

    Attributes:
        version: version of the file's schema.

    Raises:
        JournalError: if the file cannot be read, or is no journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._wal, self._shm = (path.with_name(f"{path.name}-{end}") for end in ("wal", "shm"))
        self._files = (str(path), str(self._wal))
        self._copy: TemporaryDirectory[str] | None = None
        self._connection: sqlite3.Connection | None = None
        self._deadline = 0.0
        self._open()

    def _open(self) -> None:
        """Opens the file in the way that writes nothing.

        The file of a closed run has no ``-wal``; SQLite would make one, and leave it behind, unless the file is said
        to be immutable. Another user's with a ``-wal`` but without an index of it is read from a copy: an index that
        belongs to the reader would lock the owner out.
        """
        self.close()
        self._seen = self._state()
        try:
            if not self._wal.exists():
                self._connect(self.path, "&immutable=1")
            elif self._shm.exists() or _is_mine(self.path.parent):
                self._connect_beside_writer()
            else:
                self._connect_to_copy()
        except (OSError, sqlite3.DatabaseError) as error:
            self.close()
            msg = f"{self.path} is no journal that can be read: {error}"
            raise JournalError(msg) from error
        except BaseException:
            self.close()
            raise

    def _connect_beside_writer(self) -> None:
        try:
            self._connect(self.path, "")
        except JournalError as error:
            if getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF not in UNWRITABLE:
                raise
            self._connect_to_copy()

    def _connect_to_copy(self) -> None:
        self.close()
        self._copy = TemporaryDirectory(prefix="ratioscope-")
        for file in (self.path, self._wal):
            shutil.copyfile(file, Path(self._copy.name) / file.name)
        self._connect(Path(self._copy.name) / self.path.name, "")

    def _connect(self, path: Path, option: str) -> None:
        uri = f"{path.resolve().as_uri()}?mode=ro{option}"
        connection = self._connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        connection.set_progress_handler(lambda: time.monotonic() > self._deadline, 100_000)
        self._deadline = time.monotonic() + STATEMENT_S
        self.version = check_schema(connection, self.path)

    def rows(self, columns: str, table: str, *, limit: int = -1) -> list[tuple[Any, ...]]:
        """Returns all rows that can be read, by their id, which is the first column."""
        return self._repeat(lambda connection: self._rows(connection, columns, table, limit))

    def _rows(self, connection: sqlite3.Connection, columns: str, table: str, limit: int) -> list[tuple[Any, ...]]:
        rows: dict[int, tuple[Any, ...]] = {}
        for order in ("ASC", "DESC"):
            try:
                # Not by an index, which may be lost or damaged.
                sql = f"SELECT {columns} FROM main.{table} NOT INDEXED ORDER BY id {order} LIMIT {limit}"
                for row in _checked(connection.execute(sql), descending=order == "DESC"):
                    rows.setdefault(row[0], row)
                break
            except sqlite3.DatabaseError as error:  # rows behind a damaged page are reached from the other end
                tell_lost(self.path, error, table)
        return [rows[identifier] for identifier in sorted(rows)]

    def bodies(self, identifiers: Sequence[int]) -> Iterator[bytes | None]:
        """Yields the body of each record, in the order given; None if it cannot be read."""
        for first in range(0, len(identifiers), AT_ONCE):
            some = identifiers[first : first + AT_ONCE]
            yield from self._repeat(lambda connection, some=some: _bodies(connection, some))  # type: ignore[misc]

    def _repeat(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Reads again where a writer began meanwhile: pages of a file that is said to be immutable are then stale."""
        while True:
            assert self._connection is not None
            self._deadline = time.monotonic() + STATEMENT_S
            result = read(self._connection)
            if self._seen is None or self._state() == self._seen:
                return result
            self._open()

    def _state(self) -> tuple[int, int, int] | None:
        """State of a closed run's file; None where a ``-wal`` shows changes to SQLite itself."""
        if os.path.exists(self._files[1]):
            return None
        try:
            stat = os.stat(self._files[0])
        except OSError:
            return (0, 0, 0)
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def close(self) -> None:
        """Closes the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None


def _is_mine(folder: Path) -> bool:
    return not hasattr(os, "geteuid") or folder.stat().st_uid == os.geteuid()


def _checked(rows: Iterable[tuple[Any, ...]], *, descending: bool) -> Iterator[tuple[Any, ...]]:
    """Yields rows, and ends where they are too long together or their ids turn back.

    Raises:
        sqlite3.DatabaseError: at such an end.
    """
    size, last = 0, None
    for row in rows:
        size += sum(len(value) for value in row if isinstance(value, bytes | str))
        if last is not None and (row[0] < last) != descending:
            msg = "its pages form a circle"
            raise sqlite3.DatabaseError(msg)
        if size > MOST:
            msg = f"it has more than {MOST} bytes"
            raise sqlite3.DatabaseError(msg)
        last = row[0]
        yield row


def _bodies(connection: sqlite3.Connection, identifiers: Sequence[int]) -> list[bytes | None]:
    sql = f"SELECT id, CAST(body AS BLOB) FROM main.record WHERE id IN ({', '.join('?' * len(identifiers))})"
    found: dict[int, bytes] = {}
    size = 0
    try:
        for identifier, body in connection.execute(sql, identifiers):
            found[identifier] = body
            size += len(body)
            if size > MOST:
                break
        else:
            return [found.get(identifier) for identifier in identifiers]
    except sqlite3.DatabaseError:
        pass
    if len(identifiers) == 1:
        return [None]
    return [body for identifier in identifiers for body in _bodies(connection, [identifier])]
