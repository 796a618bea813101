"""Target: one run in one tracker, and which of the journal's records it has."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ratioscope.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratioscope.journal.writer import Journal

_MISSING = """
WHERE id > ? AND (? OR attempt = ?)
AND NOT EXISTS (SELECT 1 FROM delivery WHERE target = ? AND record = record.id)
"""


@dataclass
class Target:
    """Where a tracker's rows go.

    A run of our own receives every record of the journal, one of the trainer's those of its attempt.

    Attributes:
        journal: the open journal.
        id: its id there.
        tracker: the tracker's name.
        attempt: the attempt that made the entry.
        owned: whether the run is our own.
        reported: whether the trainer itself reports its log to the run.
        identity: what the tracker needs to find the run again, such as its id; None before it was opened.
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

    def missing(self, limit: int) -> list[tuple[int, Record]]:
        """The oldest records that the run does not have, with their ids."""
        sql = f"SELECT id, body FROM record {_MISSING} ORDER BY id LIMIT ?"
        rows = self.journal.query(sql, (*self._scope(), limit))
        return [(identifier, Record.from_json(json.loads(body))) for identifier, body in rows]

    def count_missing(self) -> int:
        """How many records the run does not have."""
        # The index has all that is asked for; the table itself is fat and takes fifty times as long to walk.
        sql = f"SELECT COUNT(*) FROM record INDEXED BY record_step {_MISSING}"
        return int(self.journal.query(sql, self._scope())[0][0])

    def mark(self, records: Sequence[int], *, oldest_first: bool = False) -> None:
        """Notes that the run has these records, in one transaction.

        Args:
            records: their ids.
            oldest_first: that they are the first of ``missing``, so that earlier ones need no second look.
        """
        self.journal.insert_all("delivery (target, record)", [(self.id, record) for record in records])
        if oldest_first and records:
            self._all_before = max(records)

    def hold(self, records: Sequence[int]) -> None:
        """Takes the first of ``missing`` as received for now; only ``settle`` notes it."""
        self._held += records
        self._all_before = max(records)

    def settle(self) -> None:
        """Notes what was held: the run has it. Where that cannot be written it is still held."""
        self.mark(self._held)
        self._held = []

    def release(self) -> None:
        """Takes what was held as missing: nobody knows how much of it the run has."""
        if self._held:
            self._held, self._all_before = [], 0

    def reset(self, received: int) -> None:
        """Believes the run itself: it has the first ``received`` records, in the order of writing, and no other."""
        scope = (self.owned, self.attempt)
        rows = self.journal.query(
            "SELECT id FROM record WHERE (? OR attempt = ?) ORDER BY id LIMIT ?", (*map(int, scope), received)
        )
        self.journal.query("DELETE FROM delivery WHERE target = ?", (self.id,))
        self._held, self._all_before = [], 0
        self.mark([identifier for (identifier,) in rows], oldest_first=True)

    def identify(self, identity: Mapping[str, str]) -> None:
        """Keeps what the tracker needs to find the run again."""
        if identity != self.identity:
            self.identity = dict(identity)
            self.journal.query("UPDATE target SET identity = ? WHERE id = ?", (json.dumps(self.identity), self.id))

    def _scope(self) -> tuple[int, int, int, int]:
        return self._all_before, int(self.owned), self.attempt, self.id


def mark_all(targets: Sequence[Target], record: int) -> None:
    """Notes in one transaction that all these runs, which one journal knows, have a record."""
    targets[0].journal.insert_all("delivery (target, record)", [(target.id, record) for target in targets])


def open_target(journal: Journal, tracker: str, *, owned: bool, reported: bool = False, anew: bool = False) -> Target:
    """The run that a tracker's rows go to: the one of our own that an earlier attempt opened, else a new entry.

    Args:
        journal: the open journal.
        tracker: the tracker's name.
        owned: True for a run of our own, which later attempts continue; False for one that the trainer or the
            user opened, which belongs to this attempt.
        reported: True where the trainer itself reports its log to that run.
        anew: make a new entry in any case.
    """
    known = [target for target in targets(journal) if target.owned and target.tracker == tracker]
    if owned and known and not anew:
        return known[-1]
    row = (tracker, journal.attempt, int(owned), int(reported))
    identifier = journal.insert("target (tracker, attempt, owned, reported)", row)
    return Target(journal, identifier, tracker, journal.attempt, owned, reported, None)


def targets(journal: Journal) -> list[Target]:
    """Every target that a journal has had, the oldest first."""
    rows = journal.query("SELECT id, tracker, attempt, owned, reported, identity FROM target ORDER BY id")
    return [
        Target(journal, key, tracker, attempt, bool(owned), bool(reported), json.loads(identity or "null"))
        for key, tracker, attempt, owned, reported, identity in rows
    ]
