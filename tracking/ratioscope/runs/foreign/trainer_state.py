"""A run read from a ``trainer_state.json``: what a trainer wrote of its own log into a checkpoint."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from ratioscope.metrics import catalogue
from ratioscope.runs.foreign import adopt
from ratioscope.runs.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FILE = "trainer_state.json"


def is_state(path: Path) -> bool:
    """True if a path is a JSON file, which is taken for a ``trainer_state.json`` under any name."""
    return path.suffix == ".json" and path.is_file()


def find(path: Path) -> Path | None:
    """The file that a path names, that lies in a folder, or that lies in the folder's newest checkpoint."""
    if is_state(path):
        return path
    checkpoints = sorted(path.glob(f"checkpoint-*/{FILE}"), key=lambda found: found.stat().st_mtime)
    return next((found for found in (path / FILE, *reversed(checkpoints)) if found.is_file()), None)


def read(path: Path) -> Timeline:
    """Reads what the log says of the two engines; a log without any of it makes a timeline without windows.

    The file has no settings and no times.

    Raises:
        ValueError: if it holds no log.
    """
    folder = path.resolve().parent
    name = folder.parent.name if folder.name.startswith("checkpoint-") else folder.name
    timeline = Timeline(name=name, source=str(path))
    for step, row in _rows(path):
        for split, scalars in _scalars(row).items():
            if scalars:
                timeline.add(step, split, 0.0, scalars, {})
    return timeline


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        msg = f"got {path}, which is no JSON ({error}); expected a trainer's {FILE}"
        raise ValueError(msg) from error
    log = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(log, list):
        msg = f"got {path}, which has no log_history; expected a trainer's {FILE}"
        raise ValueError(msg)
    for row in log:
        if isinstance(row, dict) and isinstance(row.get("step"), int | float):
            yield int(row["step"]), row


def _scalars(row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Ours and other trainers' numbers of a row, by split."""
    found = adopt.scalars_of(row)
    known = catalogue.keys("full")
    for key, value in row.items():
        prefix, plain = adopt.split_key(key)
        if plain in known and isinstance(value, int | float) and math.isfinite(value):
            found["eval" if prefix else "train"][prefix + plain] = float(value)
    return found
