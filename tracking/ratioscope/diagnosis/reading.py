"""Reading a run for diagnosis from wherever it is, with as much as is there."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ratioscope import sources
from ratioscope.diagnosis.pool import Pool
from ratioscope.diagnosis.run import Run
from ratioscope.event import Event
from ratioscope.journal_reader import JournalReader

STATE = "trainer_state.json"
"""What a trainer writes into each checkpoint: its own log."""

_OWN = {"sampling/sampling_logp_difference/mean": "ratioscope/log_ratio/abs_mean"}
"""TRL's own names: there the mean of ranks' means, which is near the mean over tokens."""


def read_run(address: str | Path, *, steps: Container[int] | None = None) -> Run:
    """Reads a run: all of it from a journal, its scalars from a tracker or a trainer's own log.

    Args:
        address: a run's output directory, its journal, a ``trainer_state.json``, or a tracker's address.
        steps: the only ones to look at; None for all.

    Raises:
        FileNotFoundError: if there is none of these.
        ValueError: if a ``trainer_state.json`` holds no log.
        JournalError: if the file is no journal, or of a newer version.
        ImportError: if the tracker's package is missing.
        LookupError: if the tracker has no such run.
    """
    if sources.tracker_of(address) is not None:
        timeline = sources.read(address)
        return Run(_windows(_rows(timeline.scalars), steps), timeline.config)
    state = _state_file(Path(address))
    if state is not None:
        return Run(_windows(_logged(state), steps), {})
    with JournalReader(address) as journal:
        wanted = (record for record in journal.records() if steps is None or record.step in steps)
        return Run.of(wanted, journal.config())


def read_events(address: str | Path) -> list[Event]:
    """What the diagnosis told while the run went on, the oldest first; only a journal knows."""
    if sources.tracker_of(address) is not None or _state_file(Path(address)) is not None:
        return []
    with JournalReader(address) as journal:
        return journal.events()


def _windows(rows: Iterable[tuple[int, Mapping[str, float]]], steps: Container[int] | None) -> Iterator[Pool]:
    return (Pool(step, step, 1, None, scalars) for step, scalars in rows if steps is None or step in steps)


def _rows(curves: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, float]]]:
    """The scalars of each step of training, from curves."""
    rows: dict[int, dict[str, float]] = {}
    for key, curve in curves.items():
        if not key.startswith("eval/"):
            for step, value in zip(curve.steps, curve.values, strict=True):
                rows.setdefault(step, {})[key] = value
    yield from sorted(rows.items())


def _state_file(path: Path) -> Path | None:
    """A trainer's own log that a path names, or that lies where no journal does."""
    if path.is_file() and path.suffix == ".json":
        return path
    if not path.is_dir():
        return None
    try:
        JournalReader(path).close()
    except FileNotFoundError:
        checkpoints = sorted(path.glob(f"checkpoint-*/{STATE}"), key=lambda found: found.stat().st_mtime)
        return next((found for found in (path / STATE, *reversed(checkpoints)) if found.is_file()), None)
    return None


def _logged(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The rows of a ``trainer_state.json`` that speak of the two engines."""
    state = json.loads(path.read_text(encoding="utf-8"))
    log = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(log, list):
        msg = f"got {path}, which has no log_history; expected a trainer's {STATE}"
        raise ValueError(msg)
    for row in log:
        numbers = {key: float(value) for key, value in row.items() if isinstance(value, int | float)}
        own = {ours: numbers[theirs] for theirs, ours in _OWN.items() if theirs in numbers}
        found = own | {key: value for key, value in numbers.items() if key.startswith(("ratioscope/", "sampling/"))}
        found = {key: value for key, value in found.items() if math.isfinite(value)}
        if found and "step" in numbers:
            yield int(numbers["step"]), found
