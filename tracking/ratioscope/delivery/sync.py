"""Delivering from a journal what trackers have not received."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ratioscope.delivery.background import Background
from ratioscope.delivery.supply import Supply
from ratioscope.incidents import Incidents
from ratioscope.journal.reader import JournalReader
from ratioscope.journal.schema import DIRECTORY, FILE, JournalError
from ratioscope.journal.targets import open_target
from ratioscope.journal.targets import targets as stored_targets
from ratioscope.journal.writer import Journal
from ratioscope.trackers.base import RunContext
from ratioscope.trackers.registry import names, resolve
from ratioscope.trackers.rows import RowMaker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.journal.targets import Target

PATIENCE_S = 600.0
"""How long a tracker may take at the end to upload what it was given."""


class Progress(Protocol):
    """Hears how far a delivery is."""

    def __call__(self, target: Target, *, delivered: int, missing: int) -> None:
        """Called before the first batch and after every one."""
        ...


def sync(
    path: str | Path,
    *,
    to: Sequence[str] = (),
    run: str | None = None,
    detail: str | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Delivers what is missing, oldest first, and notes each batch in the journal, so that it can be broken off.

    Args:
        path: a run's output directory, its ``ratioscope`` subfolder, or the journal file.
        to: trackers by name; also ones that the training did not report to. Empty for those that it did.
        run: deliver into the run with this id instead of a new one; with exactly one tracker in ``to``.
        detail: which scalars are sent; None for those that the training sent.
        progress: hears how far it is.

    Returns:
        Rows delivered, by tracker.

    Raises:
        FileNotFoundError: if there is no journal.
        JournalError: if a training writes the journal, it has no record, or it is none.
        ValueError: if a tracker's name or the detail is unknown, or ``run`` comes without exactly one tracker.
        ImportError: if a named tracker's package is missing.
        Exception: what a tracker raises, after the others were served; an ``ExceptionGroup`` if several do. What was
            delivered until then is noted.
    """
    if run is not None and len(set(to)) != 1:
        msg = f"got run={run!r} with trackers {list(to)}; expected exactly one tracker for a run's id"
        raise ValueError(msg)
    wanted = [tracker.name for tracker in resolve(to)] if to else None
    with JournalReader(path) as reader:
        folder, config = _run_directory(reader.path), reader.config()
    own = config.get("recorder", {})
    context = RunContext(config=config, output_dir=folder, run_name=own.get("run_name"))
    rows = RowMaker(detail or own.get("detail", "standard"))
    delivered: dict[str, int] = {}
    failures: list[Exception] = []
    with Journal(folder, config=None) as journal:
        first = journal.first_records()
        if not first:
            msg = f"{journal.path} has no record; there is nothing to deliver"
            raise JournalError(msg)
        rows.follow(first)
        for target in _targets(journal, wanted, run):
            try:
                count = deliver(target, rows, context, progress)
                delivered[target.tracker] = delivered.get(target.tracker, 0) + count
            except Exception as error:
                failures.append(error)
    if len(failures) > 1:
        msg = f"{len(failures)} trackers failed"
        raise ExceptionGroup(msg, failures)
    if failures:
        raise failures[0]
    return delivered


def deliver(target: Target, rows: RowMaker, context: RunContext, progress: Progress | None = None) -> int:
    """Delivers what one target is missing, on this thread, and returns how many rows that was."""
    (tracker,) = resolve(target.tracker)
    if not target.count_missing() and not hasattr(tracker, "received"):
        return 0
    ours = target.owned or target.identity is None  # the trainer's run, unless it was never there
    served = Background(tracker, Incidents(), supply=Supply(target, rows, reported=target.reported and not ours))
    tell = progress or _silent
    tell(target, delivered=0, missing=target.count_missing())
    try:
        served.attach(replace(context, identity=target.identity, ours=ours, patience=PATIENCE_S))
        while served.send_batch():
            tell(target, delivered=served.delivered, missing=target.count_missing())
    except BaseException:
        with suppress(Exception):  # what went wrong first is what counts
            tracker.close()
        raise
    if getattr(tracker, "keeps_alerts", False):
        with JournalReader(target.journal.path) as reader:
            for event in reader.events():
                served.alert(event)
        served.tell()
    served.end()
    return served.delivered


def _silent(target: Target, *, delivered: int, missing: int) -> None:
    """Nobody listens."""


def _run_directory(file: Path) -> Path:
    """The output directory of a journal, whatever the working directory and the form of the path.

    Raises:
        JournalError: if the file does not lie where a training writes it.
    """
    path = Path(os.path.abspath(file))
    if (path.parent.name, path.name) != (DIRECTORY, FILE):
        msg = f"{path} lies outside a run directory; expected RUN/{DIRECTORY}/{FILE}, with the files that belong to it"
        raise JournalError(msg)
    return path.parent.parent


def _targets(journal: Journal, wanted: Sequence[str] | None, run: str | None) -> list[Target]:
    known = stored_targets(journal)
    if wanted is None:  # a tracker that was passed as an object cannot be made anew
        return [target for target in known if target.tracker in names() and target.count_missing()]
    targets: list[Target] = []
    for name in wanted:
        entries = [target for target in known if target.tracker == name]
        if run is not None:
            entries = [target for target in entries if (target.identity or {}).get("run_id") == run]
        if not entries:
            entries = [open_target(journal, name, owned=True, anew=run is not None)]
            if run is not None:
                entries[0].identify({"run_id": run})
        targets += entries
    return targets
