"""Delivering from a journal what trackers have not received."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ratioscope.incidents import Incidents
from ratioscope.journal import Journal
from ratioscope.journal_reader import JournalReader
from ratioscope.trackers.base import RunContext
from ratioscope.trackers.delivery import Background, Supply
from ratioscope.trackers.registry import resolve
from ratioscope.trackers.rows import RowMaker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.journal_target import Target


class Progress(Protocol):
    """Hears how far a delivery is."""

    def __call__(self, target: Target, *, delivered: int, missing: int) -> None:
        """Called after every batch."""
        ...


def sync(
    path: str | Path,
    *,
    to: Sequence[str] = (),
    run: str | None = None,
    detail: str = "standard",
    progress: Progress | None = None,
) -> dict[str, int]:
    """Delivers what is missing, oldest first, and notes each batch in the journal, so that it can be broken off.

    Args:
        path: a run's output directory, its ``ratioscope`` subfolder, or the journal file.
        to: trackers by name; also ones that the training did not report to. Empty for those that it did.
        run: deliver into the run with this id instead of a new one, in a tracker that has no entry yet.
        detail: which scalars are sent.
        progress: hears how far it is.

    Returns:
        Rows delivered, by tracker.

    Raises:
        JournalError: if a training writes the journal, or it is none.
        ValueError: if a tracker's name is unknown.
        ImportError: if a named tracker's package is missing.
        Exception: what a tracker raises; what was delivered until then is noted.
    """
    with JournalReader(path) as reader:
        file, attempts, first = reader.path, reader.attempts(), next(reader.records(superseded=True), None)
    context = RunContext(config=attempts[-1].config if attempts else {}, output_dir=file.parent.parent)
    rows = RowMaker(detail)
    if first is not None:
        rows.bins(first)  # chooses the bins' widths as the training did
    delivered: dict[str, int] = {}
    with Journal(file.parent.parent, config=None) as journal:
        for target in _targets(journal, to, run):
            count = deliver(target, rows, context, progress)
            delivered[target.tracker] = delivered.get(target.tracker, 0) + count
    return delivered


def deliver(target: Target, rows: RowMaker, context: RunContext, progress: Progress | None = None) -> int:
    """Delivers what one target is missing, on this thread, and returns how many rows that was."""
    (tracker,) = resolve(target.tracker)
    served = Background(tracker, Incidents(), supply=Supply(target, rows, reported=not target.owned))
    served.attach(replace(context, identity=target.identity, ours=target.owned))
    try:
        while served.send_batch():
            if progress is not None:
                progress(target, delivered=served.delivered, missing=target.count_missing())
    finally:
        tracker.close()
    return served.delivered


def _targets(journal: Journal, to: Sequence[str], run: str | None) -> list[Target]:
    known = [target for target in journal.targets() if target.count_missing() or target.tracker in to]
    if not to:
        return known
    wanted = [target for target in known if target.tracker in to]
    for name in to:
        resolve(name)
        if not any(target.tracker == name for target in wanted):
            target = journal.open_target(name, owned=True)
            if run is not None:
                target.identify({"run_id": run})
            wanted.append(target)
    return wanted
