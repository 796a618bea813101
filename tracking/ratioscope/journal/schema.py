"""File format of the journal: location, tables, and migration of older files."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


class JournalError(Exception):
    """The journal cannot be used; the text gives the cause and the remedy."""


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """Returns the version of the file's schema, 0 for a new file.

    Raises:
        JournalError: if the file is no journal, or was written by a newer ratioscope.
    """
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        msg = f"{path} is no journal: {error}"
        raise JournalError(msg) from error
    if application != APPLICATION_ID and (application or tables):
        msg = f"{path} is a database of another program; move it away, or choose another output directory"
        raise JournalError(msg)
    if version > SCHEMA_VERSION:
        msg = f"{path} has schema version {version}; this ratioscope knows up to {SCHEMA_VERSION}. Upgrade ratioscope."
        raise JournalError(msg)
    return int(version)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrates the schema to the newest version, one transaction per step."""
    for version in range(check_version(connection, path), SCHEMA_VERSION):
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version + 1};"
        connection.executescript(f"BEGIN IMMEDIATE; {_MIGRATIONS[version]} {marks} COMMIT;")
