"""Target: one run in one tracker, and the records of the journal that it has received."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ratioscope.journal.damage import tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ratioscope.journal.writer import Journal
    from ratioscope.record import Record

_MISSING = """
WHERE id > ? AND (? OR attempt = ?)
AND NOT EXISTS (SELECT 1 FROM delivery WHERE target = ? AND record = record.id)
"""


@dataclass
class Target:
    """One run in one tracker.

    A run that ratioscope opened receives every record of the journal; a run of the trainer, those of its attempt.

    Attributes:
        journal: the open journal.
        id: the target's id in the journal.
        tracker: the tracker's name.
        attempt: the attempt that made the entry.
        owned: whether ratioscope opened the run.
        reported: whether the trainer itself reports its log to the run.
        identity: what the tracker needs to find the run again, such as its id; None before the run was opened.
    """

    journal: Journal
    id: int
    tracker: str
    attempt: int
    owned: bool
    reported: bool
    identity: Mapping[str, str] | None
    _all_before: int = 0
    _held: list[int] = field(default_factory=list)
    _damaged: set[int] = field(default_factory=set)

    def missing(self, limit: int) -> list[tuple[int, Record]]:
        """Returns the oldest records that the run has not received, with their ids.

        A damaged record is left out, and named in the log; those behind it are delivered.
        """
        sql = f"SELECT id FROM record {_MISSING} ORDER BY id LIMIT ?"
        after, *scope = self._scope()
        while rows := self.journal.query(sql, (after, *scope, limit)):
            new = sorted(
                {identifier for (identifier,) in rows if identifier > after}
            )  # a damaged tree may have circles
            if readable := self._readable(new):
                return readable
            if not new:
                break
            after = new[-1]
        return []

    def _readable(self, identifiers: Iterable[int]) -> list[tuple[int, Record]]:
        """Returns the records of these ids that can be read, and names those that cannot."""
        readable: list[tuple[int, Record]] = []
        before = len(self._damaged)
        for identifier in identifiers:
            record = self.journal.read(identifier)
            if record is None:
                self._damaged.add(identifier)
            else:
                readable.append((identifier, record))
        if len(self._damaged) > before:
            tell(self.journal.path, self._damaged)
        return readable

    def count_missing(self) -> int:
        """Returns the number of readable records that the run has not received."""
        # Covered by the index; scanning the table is 50x slower.
        sql = f"SELECT COUNT(*) FROM record INDEXED BY record_step {_MISSING}"
        # Damaged records before the first searched one are not counted by the statement.
        damaged = sum(identifier > self._all_before for identifier in self._damaged)
        return int(self.journal.query(sql, self._scope())[0][0]) - damaged

    def mark(self, records: Sequence[int], *, oldest_first: bool = False) -> None:
        """Marks records as delivered, in one transaction.

        Args:
            records: their ids.
            oldest_first: True if they are the first of ``missing``; earlier ones are then not searched again.
        """
        self.journal.insert_all("delivery (target, record)", [(self.id, record) for record in records])
        if oldest_first and records:
            self._all_before = max(records)

    def hold(self, records: Sequence[int]) -> None:
        """Marks the first records of ``missing`` as sent but unconfirmed until ``settle``."""
        self._held += records
        self._all_before = max(records)

    def settle(self) -> None:
        """Marks the unconfirmed records as delivered. If that cannot be written they stay unconfirmed."""
        self.mark(self._held)
        self._held = []

    def release(self) -> None:
        """Counts the unconfirmed records as missing: it is unknown how many the run has received."""
        if self._held:
            self._held, self._all_before = [], 0

    def reset(self, received: int) -> None:
        """Trusts the backend's row count: marks exactly the first ``received`` readable records as delivered."""
        ((marked,),) = self.journal.query("SELECT COUNT(*) FROM delivery WHERE target = ?", (self.id,))
        if marked == received and not self._held:
            return
        scope = (int(self.owned), self.attempt)
        rows = self.journal.query("SELECT id FROM record WHERE (? OR attempt = ?) ORDER BY id", scope)
        first = self._first_readable([identifier for (identifier,) in rows], received)
        self.journal.query("DELETE FROM delivery WHERE target = ?", (self.id,))
        self._held, self._all_before = [], 0
        self.mark(first, oldest_first=True)

    def _first_readable(self, identifiers: Sequence[int], count: int) -> list[int]:
        """Returns the first ids of readable records. A backend has received no damaged one."""
        first: list[int] = []
        for identifier in identifiers:
            if len(first) == count:
                break
            first += [readable for readable, _ in self._readable([identifier])]
        return first

    def identify(self, identity: Mapping[str, str]) -> None:
        """Stores what the tracker needs to find the run again."""
        if identity != self.identity:
            self.identity = dict(identity)
            self.journal.query("UPDATE target SET identity = ? WHERE id = ?", (json.dumps(self.identity), self.id))

    def _scope(self) -> tuple[int, int, int, int]:
        return self._all_before, int(self.owned), self.attempt, self.id


def mark_all(targets: Sequence[Target], record: int) -> None:
    """Marks a record as delivered to several targets of one journal, in one transaction."""
    targets[0].journal.insert_all("delivery (target, record)", [(target.id, record) for target in targets])


def open_target(journal: Journal, tracker: str, *, owned: bool, reported: bool = False, anew: bool = False) -> Target:
    """Returns the target of a tracker's rows: the owned run that an earlier attempt opened, else a new entry.

    Args:
        journal: the open journal.
        tracker: the tracker's name.
        owned: True for a run that ratioscope opens, which later attempts continue; False for a run that the trainer or
            the user opened, which belongs to this attempt.
        reported: True if the trainer itself reports its log to that run.
        anew: True to make a new entry in any case.
    """
    known = [target for target in targets(journal) if target.owned and target.tracker == tracker]
    if owned and known and not anew:
        return known[-1]
    row = (tracker, journal.attempt, int(owned), int(reported))
    identifier = journal.insert("target (tracker, attempt, owned, reported)", row)
    return Target(journal, identifier, tracker, journal.attempt, owned, reported, None)


def targets(journal: Journal) -> list[Target]:
    """Returns every target of a journal, oldest first."""
    rows = journal.query("SELECT id, tracker, attempt, owned, reported, identity FROM target ORDER BY id")
    return [
        Target(journal, key, tracker, attempt, bool(owned), bool(reported), json.loads(identity or "null"))
        for key, tracker, attempt, owned, reported, identity in rows
    ]
