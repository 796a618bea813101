"""File format of the journal: location, tables, and migration of older files."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DIRECTORY = "ratioscope"
"""Folder of the journal inside a run's output directory."""
FILE = "journal.sqlite"
APPLICATION_ID = 0x72736A31
"""Marks the file as a journal (``PRAGMA application_id``)."""
BUSY_TIMEOUT_S = 5.0

_SCHEMA_1 = """
CREATE TABLE attempt (
    id INTEGER PRIMARY KEY,
    started REAL NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    restored_step INTEGER,
    config TEXT NOT NULL
);
CREATE TABLE record (
    id INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL REFERENCES attempt (id),
    step INTEGER NOT NULL,
    split TEXT NOT NULL,
    time REAL NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX record_step ON record (attempt, step);
CREATE TABLE target (
    id INTEGER PRIMARY KEY,
    tracker TEXT NOT NULL,
    attempt INTEGER NOT NULL REFERENCES attempt (id),
    owned INTEGER NOT NULL,
    reported INTEGER NOT NULL,
    identity TEXT
);
CREATE TABLE delivery (
    target INTEGER NOT NULL REFERENCES target (id),
    record INTEGER NOT NULL REFERENCES record (id),
    PRIMARY KEY (target, record)
) WITHOUT ROWID;
CREATE VIEW live AS
SELECT * FROM record AS mine WHERE NOT EXISTS (
    SELECT 1 FROM attempt AS later WHERE later.id > mine.attempt AND mine.step > COALESCE(
        later.restored_step, (SELECT MIN(step) - 1 FROM record WHERE attempt = later.id AND split = 'train')
    )
);
"""

_SCHEMA_2 = """
CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL REFERENCES attempt (id),
    step INTEGER NOT NULL,
    time REAL NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    level TEXT NOT NULL,
    body TEXT NOT NULL
);
"""

_MIGRATIONS: tuple[str, ...] = (_SCHEMA_1, _SCHEMA_2)
"""Script ``i`` migrates a file of version ``i`` to version ``i + 1``."""

SCHEMA_VERSION = len(_MIGRATIONS)
EVENTS_SINCE = 2
"""First version with the table of events."""
TABLES = frozenset({"attempt", "record", "target", "delivery", "event"})


class JournalError(Exception):
    """The journal cannot be used; the text gives the cause and the remedy."""


def check_schema(connection: sqlite3.Connection, path: Path, *, may_be_new: bool = False) -> int:
    """Returns the version of the file's schema, 0 for a new file.

    Raises:
        JournalError: if the file is no journal, has no table of records, would run what ratioscope did not make, or was
            written by a newer ratioscope.
    """
    connection.text_factory = _text
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("PRAGMA trusted_schema = OFF")
        objects = connection.execute("SELECT type, lower(name), sql FROM sqlite_master").fetchall()
        _check_objects(connection, path, application, objects)
        if version or not may_be_new:
            connection.execute("SELECT id, attempt, step, split, body FROM record NOT INDEXED LIMIT 0")
    except (sqlite3.DatabaseError, UnicodeError) as error:
        msg = f"{path} is no journal that can be read: {error}"
        raise JournalError(msg) from error
    if version > SCHEMA_VERSION:
        msg = f"{path} has schema version {version}; this ratioscope knows up to {SCHEMA_VERSION}. Upgrade ratioscope."
        raise JournalError(msg)
    return int(version)


def _text(stored: bytes) -> str:
    return str(stored, "utf-8", "replace")


def _check_objects(connection: sqlite3.Connection, path: Path, application: int, objects: Sequence[Any]) -> None:
    """Raises JournalError for another program's file, and for a table of ours that is a view or computes its values."""
    if application != APPLICATION_ID and (application or objects):
        msg = f"{path} is a database of another program; move it away, or choose another output directory"
        raise JournalError(msg)
    for kind, name, sql in objects:
        if name in TABLES:
            computes = any(hidden for *_, hidden in connection.execute(f"PRAGMA table_xinfo({name})"))
            if kind != "table" or computes or (sql or "").upper().startswith("CREATE VIRTUAL"):
                msg = f"{path} has a {kind} {name!r} that ratioscope did not make; it is not read, because SQLite "
                msg += "would run it"
                raise JournalError(msg)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrates the schema to the newest version, one transaction per step, and makes lost objects anew.

    Raises:
        JournalError: as :func:`check_schema` does, and if the file has triggers, which SQLite would run at each write.
    """
    for version in range(check_schema(connection, path, may_be_new=True), SCHEMA_VERSION):
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version + 1};"
        connection.executescript(f"BEGIN IMMEDIATE; {_MIGRATIONS[version]} {marks} COMMIT;")
    trigger = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchone()
    if trigger is not None:
        msg = f"{path} has a trigger {trigger[0]!r} that ratioscope did not make; it is not written, because SQLite "
        msg += f"would run it. Remove it with: DROP TRIGGER {trigger[0]}"
        raise JournalError(msg)
    for script in _MIGRATIONS:
        connection.executescript(re.sub(r"(?m)^CREATE (TABLE|INDEX|VIEW)", r"CREATE \1 IF NOT EXISTS", script))


def mend(connection: sqlite3.Connection) -> None:
    """Makes a damaged index anew.

    Raises:
        sqlite3.DatabaseError: if a table that delivery needs is damaged.
    """
    try:
        connection.execute("SELECT COUNT(*) FROM record INDEXED BY record_step")
    except sqlite3.DatabaseError:
        connection.execute("REINDEX record_step")
    for table in ("target", "delivery", "event"):
        connection.execute(f"SELECT COUNT(*) FROM {table} NOT INDEXED")
