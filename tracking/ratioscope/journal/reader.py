"""Reading a journal, also while a training writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ratioscope.journal.connection import ReadConnection
from ratioscope.journal.damage import DAMAGE, decode, decode_event, loads, tell
from ratioscope.journal.schema import DIRECTORY, EVENTS_SINCE, FILE
from ratioscope.record import RuleReader

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence
    from types import TracebackType

    from ratioscope.event import Event
    from ratioscope.record import Record

_PLACE = "id, CAST(attempt AS INTEGER), CAST(step AS INTEGER)"
"""Columns that place a row in the run; the cast bounds the size of what a damaged file may hold there."""


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

    Nothing is written: the journal of a run that has ended is also read in a folder that cannot be written. What is
    damaged is left out, and one line of the log counts and names it.

    Args:
        path: a run's output directory, its ``ratioscope`` subfolder, or the journal file.

    Raises:
        FileNotFoundError: if there is no journal.
        JournalError: if the file is no journal, has no table of records, or is of a newer version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _find(Path(path))
        self._connection = ReadConnection(self.path)

    def attempts(self) -> list[Attempt]:
        """All attempts, oldest first; one whose run config cannot be read has an empty one."""
        columns = "id, started, substr(host, 1, 255), pid, restored_step, CAST(config AS BLOB)"
        attempts, damaged = [], []
        for identifier, started, host, pid, restored_step, stored in self._connection.rows(columns, "attempt"):
            config = _config(stored)
            if config is None:
                damaged.append(identifier)
            attempts.append(Attempt(identifier, started, host, pid, restored_step, config or {}))
        tell(self.path, damaged, "run config")
        return attempts

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
        rules = RuleReader()
        # Sorting the texts themselves would copy each; records are never deleted, so all ids stay valid.
        found = self._index()
        if not superseded:
            ends = self._ends(found)
            found = sorted((row for row in found if _is_live(row[1], row[2], ends)), key=lambda row: (row[2], row[0]))
        found = [row for row in found if steps is None or row[2] in steps]
        damaged = []
        bodies = self._connection.bodies([row[0] for row in found])
        for (identifier, _, step, is_train), body in zip(found, bodies, strict=True):
            record = decode(body, rules)
            if record is not None and (record.step, record.split == "train") == (step, bool(is_train)):
                yield record
            else:
                damaged.append(identifier)
        tell(self.path, damaged)

    def first_records(self, limit: int = 16) -> list[Record]:
        """Returns the first records of the whole journal, in the order of writing."""
        found = self._connection.rows("id", "record", limit=limit)
        records = [decode(body) for body in self._connection.bodies([identifier for (identifier,) in found])]
        return [record for record in records if record is not None]

    def events(self) -> list[Event]:
        """Returns the events of the diagnosis, oldest first; none in a file of an earlier version.

        Steps that a later attempt repeated are left out, as in ``records``.
        """
        if self._connection.version < EVENTS_SINCE:
            return []
        found = self._connection.rows(f"{_PLACE}, CAST(body AS BLOB)", "event")
        ends = self._ends(self._index()) if found else {}
        live = {row[0]: decode_event(row[3]) for row in found if _is_live(row[1], row[2], ends)}
        tell(self.path, [identifier for identifier, event in live.items() if event is None], "event")
        return [event for event in live.values() if event is not None]

    def _index(self) -> list[tuple[Any, ...]]:
        """Returns id, attempt and step of each record, and whether it is one of training."""
        return self._connection.rows(f"{_PLACE}, split = 'train'", "record")

    def _ends(self, index: Sequence[tuple[Any, ...]]) -> dict[int, int]:
        """Returns the last step of earlier attempts that each attempt continues from, where that is known."""
        ends: dict[int, int] = {}
        for _, attempt, step, is_train in index:
            if is_train and step is not None:
                ends[attempt] = min(ends.get(attempt, step - 1), step - 1)
        restored = self._connection.rows("id, CAST(restored_step AS INTEGER)", "attempt")
        return ends | {attempt: step for attempt, step in restored if step is not None}

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _config(stored: bytes | None) -> dict[str, Any] | None:
    try:
        config = loads(stored)  # type: ignore[arg-type] # of None raises TypeError
    except DAMAGE:
        return None
    return config if isinstance(config, dict) else None


def _is_live(attempt: int | None, step: int | None, ends: Mapping[int, int]) -> bool:
    if attempt is None or step is None:
        return False
    return all(step <= end for later, end in ends.items() if later > attempt)


def _find(path: Path) -> Path:
    candidates = (path, path / FILE, path / DIRECTORY / FILE)
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    if found is None:
        msg = f"got {path}; expected a run's output directory or its {DIRECTORY}/{FILE}, and found no journal there"
        raise FileNotFoundError(msg)
    return found
