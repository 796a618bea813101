"""Delivery of the rows in a journal that trackers have not received, after the training has ended."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ratioscope.delivery.sender import Sender, Supply
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

UPLOAD_TIMEOUT_S = 600.0
"""Seconds that a tracker may take at the end to upload its rows."""


class Progress(Protocol):
    """Progress callback."""

    def __call__(self, target: Target, *, delivered: int, missing: int) -> None:
        """Receives the row counts of one target, before the first batch and after each one."""
        ...


def sync(
    path: str | Path,
    *,
    to: Sequence[str] = (),
    run: str | None = None,
    detail: str | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Delivers missing rows, oldest first. Each batch is marked in the journal, so an interrupted call can be repeated.

    Args:
        path: a run's output directory, its ``ratioscope`` subfolder, or the journal file.
        to: names of trackers, also of ones that the training did not report to; empty for those of the training.
        run: id of the run to deliver into instead of a new one; requires exactly one tracker in ``to``.
        detail: which scalars are sent; None for those that the training sent.
        progress: called before the first batch of each target and after each batch.

    Returns:
        Number of rows delivered, by tracker.

    Raises:
        FileNotFoundError: if there is no journal.
        JournalError: if a training is writing the journal, it has no record, or the file is no journal.
        ValueError: if a tracker's name or the detail is unknown, or ``run`` comes without exactly one tracker.
        ImportError: if a named tracker's package is missing.
        Exception: an error of a tracker, raised after the others were served; an ``ExceptionGroup`` if several fail.
            Rows delivered until then are marked.
    """
    if run is not None and len(set(to)) != 1:
        msg = f"got run={run!r} with trackers {list(to)}; expected exactly one tracker for a run's id"
        raise ValueError(msg)
    wanted = [tracker.name for tracker in resolve(to)] if to else None
    with JournalReader(path) as reader:
        folder, config = _run_directory(reader.path), reader.config()
    settings = config.get("recorder", {})
    context = RunContext(config=config, output_dir=folder, run_name=settings.get("run_name"))
    rows = RowMaker(detail or settings.get("detail", "standard"))
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
    """Delivers the missing rows of one target on this thread and returns their number."""
    (tracker,) = resolve(target.tracker)
    if not target.count_missing() and not tracker.counts_rows:
        return 0
    # A run of the trainer's counts as new where the trainer never opened it.
    ours = target.owned or target.identity is None
    sender = Sender(tracker, Incidents(), supply=Supply(target, rows, reported=target.reported and not ours))
    report = progress or _no_progress
    report(target, delivered=0, missing=target.count_missing())
    try:
        sender.open(replace(context, identity=target.identity, ours=ours, close_timeout=UPLOAD_TIMEOUT_S))
        sender.connect()
        while sender.send_rows():
            report(target, delivered=sender.delivered, missing=target.count_missing())
    except BaseException:
        with suppress(Exception):  # the first error is the one to raise
            tracker.close()
        raise
    if tracker.keeps_alerts:
        with JournalReader(target.journal.path) as reader:
            sender.alerts.extend(reader.events())
        sender.send_alerts()
    sender.end()
    return sender.delivered


def _no_progress(target: Target, *, delivered: int, missing: int) -> None:
    """Default callback; does nothing."""


def _run_directory(file: Path) -> Path:
    """Returns the absolute output directory of a journal.

    Raises:
        JournalError: if the file does not lie where a training writes it.
    """
    path = Path(os.path.abspath(file))
    if (path.parent.name, path.name) != (DIRECTORY, FILE):
        msg = f"{path} lies outside a run directory; expected RUN/{DIRECTORY}/{FILE}, with the files that belong to it"
        raise JournalError(msg)
    return path.parent.parent


def _targets(journal: Journal, wanted: Sequence[str] | None, run: str | None) -> list[Target]:
    """Returns the entries of these trackers in the journal, made if need be; None for all with missing rows."""
    known = stored_targets(journal)
    if wanted is None:  # a tracker that was passed as an object has no name to make it from
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
