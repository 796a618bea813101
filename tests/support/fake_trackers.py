"""A backend in memory that may fail or hang, its tracker, and how to register trackers by name for one test."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ratioscope.trackers import registry
from ratioscope.trackers.base import Tracker
from tests.support.kill_writers import make_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    import ratioscope as rs
    from ratioscope.trackers.base import RunContext


@dataclass
class Server:
    """Contents and behaviour of a backend in memory.

    Attributes:
        runs: steps by run id, in the order of arrival.
        rows: every row that arrived, in that order.
        batches: sizes of what came through ``write_many``.
        failures: how many of the next calls raise.
        breaks_at: a row of this step raises.
        hangs: whether calls wait until ``go``.
        closed: how many trackers were closed.
    """

    runs: dict[str, list[int]] = field(default_factory=dict)
    rows: list[rs.Row] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    failures: int = 0
    breaks_at: int | None = None
    hangs: bool = False
    go: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Event = field(default_factory=threading.Event)
    closed: int = 0

    def call(self) -> None:
        """Waits or raises as configured; each call to the backend passes through here."""
        if self.hangs:
            self.waiting.set()
            assert self.go.wait(60)
        if self.failures:
            self.failures -= 1
            msg = "the server is away"
            raise ConnectionError(msg)

    def receive(self, run: str, row: rs.Row) -> None:
        """Stores a row."""
        if row.step == self.breaks_at:
            msg = f"the server broke at {row.step}"
            raise ConnectionError(msg)
        self.runs[run].append(row.step)
        self.rows.append(row)


class OneByOne(Tracker):
    """A background tracker without ``write_many``."""

    background = True
    package = "json"

    def __init__(self, server: Server, name: str = "fake") -> None:
        self.name = name
        self.server = server
        self.run: RunContext | None = None
        self._id = ""

    def open(self, run: RunContext) -> bool:
        """Keeps the context."""
        self.run = run
        return True

    def connect(self) -> dict[str, str]:
        """Opens a run, or the one that the identity names."""
        assert self.run is not None
        self.server.call()
        self._id = (self.run.identity or {}).get("run_id") or f"run-{len(self.server.runs) + 1}"
        self.server.runs.setdefault(self._id, [])
        return {"run_id": self._id}

    def write(self, row: rs.Row) -> None:
        """Sends one row."""
        self.server.call()
        self.server.receive(self._id, row)

    def close(self) -> None:
        """Counts."""
        self.server.closed += 1

    def where(self) -> str:
        """Names the run."""
        return self._id


class Together(OneByOne):
    """A background tracker that sends all waiting rows in one call."""

    def write_many(self, rows: Sequence[rs.Row]) -> None:
        """Sends rows, all of them or none."""
        self.server.call()
        self.server.batches.append(len(rows))
        for row in rows:
            self.server.receive(self._id, row)


class Buffering(OneByOne):
    """A background tracker that keeps rows until its end, chooses its run's id, and can count its rows."""

    buffers = True
    counts_rows = True

    def __init__(self, server: Server, name: str = "fake") -> None:
        super().__init__(server, name)
        self.identity: dict[str, str] | None = None
        self.received: int | None = None
        self._kept: list[rs.Row] = []

    def open(self, run: RunContext) -> bool:
        """Chooses the id."""
        self.identity = dict(run.identity or {"run_id": f"chosen-{self.name}"})
        return super().open(run)

    def connect(self) -> dict[str, str]:
        """Opens the run, and returns its number of rows."""
        assert self.identity is not None
        self.server.call()
        self._id = self.identity["run_id"]
        self.received = len(self.server.runs.setdefault(self._id, []))
        return self.identity

    def write(self, row: rs.Row) -> None:
        """Keeps a row."""
        self._kept.append(row)

    def close(self) -> None:
        """Sends the kept rows, if the server accepts them."""
        super().close()
        self.server.call()
        for row in self._kept:
            self.server.receive(self._id, row)


def register(monkeypatch: pytest.MonkeyPatch, *trackers: Any) -> None:
    """Registers exactly these trackers by name; a name gives the object itself."""
    known = {tracker.name: tracker for tracker in trackers}

    def loaded(tracker: Any) -> Any:
        def make() -> Any:
            return tracker

        vars(make).update(name=tracker.name, package=getattr(tracker, "package", "") or "json")
        return make

    def entry_points(*, group: str, name: str | None = None) -> Any:
        assert group == registry.GROUP
        if name is not None:
            return (SimpleNamespace(load=lambda: loaded(known[name])),)
        return SimpleNamespace(names=set(known))

    monkeypatch.setattr(registry, "entry_points", entry_points)


RECORDS = {step: make_record(step) for step in range(1, 8)}
"""Records to write again and again; making one takes longer than writing it."""
