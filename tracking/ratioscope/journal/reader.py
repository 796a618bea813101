"""Reading a journal, also while a training writes it."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ratioscope.event import Event
from ratioscope.journal.schema import BUSY_TIMEOUT_S, DIRECTORY, EVENTS_SINCE, FILE, check_version
from ratioscope.record import Record, RuleReader

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping
    from types import TracebackType

try:  # twice as fast, and decoding is most of the time of reading a run; comes with the extra "report"
    import orjson
except ImportError:
    loads: Callable[[str], Any] = json.loads
else:
    loads = orjson.loads


@dataclass(frozen=True)
class Attempt:
    """One process's part of a run.

    Attributes:
        id: 1 for the first.
        started: seconds since the epoch.
        host: the machine's name.
        pid: the process.
        restored_step: the checkpoint's step that it continued from; None if unknown.
        config: the run config of this attempt.
    """

    id: int
    started: float
    host: str
    pid: int
    restored_step: int | None
    config: Mapping[str, Any]


class JournalReader:
    """Reads a journal, also while a training writes it.

    Args:
        path: a run's output directory, its ``ratioscope`` subfolder, or the journal file.

    Raises:
        FileNotFoundError: if there is no journal.
        JournalError: if the file is no journal, or of a newer version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _find(Path(path))
        self._connection = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
        try:
            self._version = check_version(self._connection, self.path)
        except BaseException:
            self._connection.close()
            raise

    def attempts(self) -> list[Attempt]:
        """All attempts, oldest first."""
        rows = self._connection.execute("SELECT id, started, host, pid, restored_step, config FROM attempt ORDER BY id")
        return [
            Attempt(identifier, started, host, pid, restored_step, loads(config))
            for identifier, started, host, pid, restored_step, config in rows
        ]

    def config(self) -> Mapping[str, Any]:
        """The run config of the newest attempt; empty if there was none."""
        attempts = self.attempts()
        return attempts[-1].config if attempts else {}

    def records(self, *, superseded: bool = False, steps: Container[int] | None = None) -> Iterator[Record]:
        """Yields records in the order of their step.

        Args:
            superseded: yield all that were ever written, in the order of writing.
            steps: the only ones to read; None for all.
        """
        table, order = ("record", "id") if superseded else ("live", "step, id")
        rules = RuleReader()
        # Sorting the texts themselves would copy each; records are never deleted, so all ids stay valid.
        for identifier, step in self._connection.execute(f"SELECT id, step FROM {table} ORDER BY {order}").fetchall():
            if steps is None or step in steps:
                sql = "SELECT body FROM record WHERE id = ?"
                yield Record.from_json(loads(self._connection.execute(sql, (identifier,)).fetchone()[0]), rules)

    def first_records(self, limit: int = 16) -> list[Record]:
        """Returns the first records of the whole journal, in the order of writing."""
        rows = self._connection.execute("SELECT body FROM record ORDER BY id LIMIT ?", (limit,))
        return [Record.from_json(loads(body)) for (body,) in rows]

    def events(self) -> list[Event]:
        """Returns the events of the diagnosis, oldest first; none in a file of an earlier version.

        Steps that a later attempt repeated are left out, as in ``records``.
        """
        if self._version < EVENTS_SINCE:
            return []
        sql = "SELECT attempt, step, body FROM event ORDER BY id"
        found = self._connection.execute(sql).fetchall()
        ends = {attempt.id: self._last_step(attempt) for attempt in self.attempts()} if found else {}
        live = (
            body
            for attempt, step, body in found
            if all(step <= end for later, end in ends.items() if later > attempt and end is not None)
        )
        return [Event.from_json(loads(body)) for body in live]

    def _last_step(self, attempt: Attempt) -> int | None:
        """The last step of earlier attempts that one continues from; None if that is not known."""
        if attempt.restored_step is not None:
            return attempt.restored_step
        sql = "SELECT MIN(step) - 1 FROM record WHERE attempt = ? AND split = 'train'"
        (step,) = self._connection.execute(sql, (attempt.id,)).fetchone()
        return None if step is None else int(step)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _find(path: Path) -> Path:
    candidates = (path, path / FILE, path / DIRECTORY / FILE)
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    if found is None:
        msg = f"got {path}; expected a run's output directory or its {DIRECTORY}/{FILE}, and found no journal there"
        raise FileNotFoundError(msg)
    return found
