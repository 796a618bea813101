"""Reading a run for diagnosis from wherever it is, with as much as is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.diagnosis.pool import Pool
from ratioscope.diagnosis.run import Run
from ratioscope.journal.reader import JournalReader
from ratioscope.runs.read import journal_of, read

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping
    from pathlib import Path

    from ratioscope.event import Event
    from ratioscope.runs.timeline import Timeline


def read_run(address: str | Path, *, steps: Container[int] | None = None) -> Run:
    """Reads a run: all of it from a journal, its scalars from a tracker or another trainer's own log.

    Args:
        address: as :func:`ratioscope.runs.read.read` takes it.
        steps: the only ones to look at; None for all.

    Raises:
        FileNotFoundError: if there is none of these.
        ValueError: if a ``trainer_state.json`` holds no log.
        JournalError: if the file is no journal, or of a newer version.
        ImportError: if the tracker's package is missing.
        LookupError: if the tracker has no such run, or a log has nothing to say of the two engines.
    """
    journal_path = journal_of(address)
    if journal_path is None:
        return run_of(read(address), steps=steps)
    with JournalReader(journal_path) as journal:
        wanted = (record for record in journal.records() if steps is None or record.step in steps)
        return Run.of(wanted, journal.config())


def run_of(timeline: Timeline, *, steps: Container[int] | None = None) -> Run:
    """A run of which only scalars are known, as the checks see it."""
    return Run(_windows(_rows(timeline.scalars), steps), timeline.config, foreign=timeline.foreign)


def read_events(address: str | Path) -> list[Event]:
    """What the diagnosis told while the run went on, the oldest first; only a journal knows."""
    journal_path = journal_of(address)
    if journal_path is None:
        return []
    with JournalReader(journal_path) as journal:
        return journal.events()


def _windows(rows: Iterable[tuple[int, Mapping[str, float]]], steps: Container[int] | None) -> Iterator[Pool]:
    return (Pool(step, step, 1, None, scalars) for step, scalars in rows if steps is None or step in steps)


def _rows(curves: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, float]]]:
    """The scalars of each step of training, from curves."""
    rows: dict[int, dict[str, float]] = {}
    for key, curve in curves.items():
        if not key.startswith("eval/"):
            for step, value in zip(curve.steps, curve.values, strict=True):
                rows.setdefault(step, {})[key] = float(value)
    yield from sorted(rows.items())
