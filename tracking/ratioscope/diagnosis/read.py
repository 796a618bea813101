"""Loads a run from a journal, tracker or log file for diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ratioscope.diagnosis.evaluate import diagnose
from ratioscope.diagnosis.run import DiagnosedRun
from ratioscope.journal.reader import JournalReader
from ratioscope.runs.pooled import PooledRun
from ratioscope.runs.read import journal_of, read

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from ratioscope.diagnosis.findings import Diagnosis
    from ratioscope.event import Event
    from ratioscope.runs.timeline import Timeline


def read_run(address: str | Path, *, steps: Container[int] | None = None) -> DiagnosedRun:
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
        return DiagnosedRun.from_records(journal.records(steps=steps), journal.config())


def run_of(timeline: Timeline, *, steps: Container[int] | None = None) -> DiagnosedRun:
    """Returns a run as the checks see it: with its states where they are known, else with its scalars.

    Args:
        timeline: the run.
        steps: the only ones of a run of mere scalars to look at; None for all.
    """
    pooled = timeline.pooled
    if pooled is None:
        pooled = PooledRun()
        for step, scalars in sorted(_scalars_by_step(timeline).items()):
            if steps is None or step in steps:
                pooled.add_scalars(step, scalars)
    return DiagnosedRun(pooled, timeline.config, foreign=timeline.foreign)


def diagnosis_of(timeline: Timeline) -> Diagnosis:
    """Diagnoses a run, once for as long as its windows are kept: a report asks several times."""
    if timeline.pooled is None:
        return diagnose(run_of(timeline))
    diagnosis = _diagnoses.get(timeline.pooled)
    if diagnosis is None:
        diagnosis = _diagnoses[timeline.pooled] = diagnose(run_of(timeline))
    return diagnosis


_diagnoses: WeakKeyDictionary[PooledRun, Diagnosis] = WeakKeyDictionary()


def read_events(address: str | Path) -> list[Event]:
    """Returns the diagnosis' events of the run, oldest first; only a journal has them."""
    journal_path = journal_of(address)
    if journal_path is None:
        return []
    with JournalReader(journal_path) as journal:
        return journal.events()


def _scalars_by_step(timeline: Timeline) -> dict[int, dict[str, float]]:
    """Returns the scalars of each step of training."""
    rows: dict[int, dict[str, float]] = {}
    for key, curve in timeline.scalars.items():
        if not key.startswith("eval/"):
            for step, value in zip(curve.steps, curve.values, strict=True):
                rows.setdefault(step, {})[key] = float(value)
    return rows
