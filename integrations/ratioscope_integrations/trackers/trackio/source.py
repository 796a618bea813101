"""Reader of trackio's database on this machine: ratioscope's scalars, or another trainer's.

Requires ``trackio``. Histograms are not read.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ratioscope.metrics import catalogue
from ratioscope.metrics.metric import PREFIX
from ratioscope.runs.foreign import adopt
from ratioscope.runs.foreign.config import config_of
from ratioscope.runs.timeline import Timeline
from ratioscope_integrations.trackers.points import count_windows, curves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ratioscope_integrations.trackers.points import Point

_STEPS = ("train/global_step", "step")


def read(rest: str) -> Timeline:
    """Reads a run by its id or name; the newest if several have this name.

    Args:
        rest: ``PROJECT/RUN``, the part of the address after ``trackio:``.

    Raises:
        ImportError: if ``trackio`` is missing.
        ValueError: if the address has another form.
        LookupError: if there is no such run, or it has no metric of the mismatch.
    """
    project, _, wanted = rest.partition("/")
    if not project or not wanted:
        msg = f"got trackio:{rest}; expected trackio:PROJECT/RUN, the run by its name or its id"
        raise ValueError(msg)
    run = _run(project, wanted)
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs(project, run.name, run_id=run.id, scalar_only=True)
    config = dict(run.config or {})
    own = config.get("ratioscope")
    timeline = Timeline(
        name=str(run.name), source=f"trackio:{rest}", config=own if isinstance(own, dict) else config_of(config)
    )
    timeline.scalars = curves(_points(rows))
    timeline.windows = count_windows(timeline.scalars)
    if not timeline.windows:
        msg = f"trackio's run {rest} has no statistic of the two engines; known are ratioscope's, {adopt.KNOWN}"
        raise LookupError(msg)
    return timeline


def _run(project: str, wanted: str) -> Any:
    try:
        import trackio
    except ImportError as error:
        msg = 'reading trackio:PROJECT/RUN needs trackio; install it with: pip install "ratioscope[trackio]"'
        raise ImportError(msg) from error
    try:
        runs = list(trackio.Api().runs(project))
    except ValueError as error:
        msg = f"trackio has no project {project} here; check the name, and TRACKIO_DIR if it is elsewhere"
        raise LookupError(msg) from error
    matches = [run for run in runs if wanted in (run.name, run.id)]
    if not matches:
        names = ", ".join(str(run.name) for run in runs[:8])
        msg = f"trackio's project {project} has no run {wanted}; it has {names or 'none'}"
        raise LookupError(msg)
    return matches[-1]


def _points(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """Returns points by a timeline's key: ratioscope's, or another trainer's if there are none."""
    known = catalogue.keys("full")
    ours: dict[str, list[Point]] = {}
    others: dict[str, list[Point]] = {}
    for row in rows:
        step = next((row[key] for key in _STEPS if isinstance(row.get(key), int | float)), None)
        if step is None:
            continue
        time = _milliseconds(row.get("timestamp"))
        for key, value in row.items():
            prefix, plain = adopt.split_key(key)
            if isinstance(value, int | float) and math.isfinite(value):
                if plain in known:
                    ours.setdefault(prefix + plain, []).append((int(step), time, float(value)))
                if adopt.find(plain) is not None:
                    others.setdefault(prefix + plain, []).append((int(step), time, float(value)))
    return ours if any(adopt.split_key(key)[1].startswith(PREFIX) for key in ours) else others


def _milliseconds(moment: object) -> int:
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            return 0
    return int(1000 * moment.timestamp()) if isinstance(moment, datetime) else 0
