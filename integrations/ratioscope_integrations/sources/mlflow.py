"""A run read back from MLflow: scalars from its metrics, histograms and events from what the tracker left beside them.

Requires ``mlflow``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ratioscope import metrics
from ratioscope.timeline import Curve, Timeline
from ratioscope_integrations.trackers.mlflow_artifacts import stored_memory, stored_text
from ratioscope_integrations.trackers.mlflow_config import CONFIG_ARTIFACT, clean_name
from ratioscope_integrations.trackers.mlflow_place import public_uri, server_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mlflow import MlflowClient

SPLITS = {"train": "", "eval": "eval/"}
"""Prefix of a split's keys."""

COUNT = "ratioscope/counts/tokens"
"""A statistic that every window has, and that no trainer reports by itself."""

Point = tuple[int, int, float]
"""Step, milliseconds since the epoch, and value."""


def read(rest: str) -> Timeline:
    """Reads the run with this id from the server that ``MLFLOW_TRACKING_URI`` names.

    Raises:
        ImportError: if mlflow is missing.
        LookupError: if there is no such run.
        ConnectionError: if the server cannot be reached.
    """
    try:
        import mlflow
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        msg = 'reading a run from MLflow needs mlflow; install it with: pip install "ratioscope[mlflow]"'
        raise ImportError(msg) from error
    uri: str = mlflow.get_tracking_uri()
    server_version(uri)  # says at once if nobody answers
    client = MlflowClient(uri)
    try:
        client.get_run(rest)
    except MlflowException as error:
        if error.get_http_status_code() not in (400, 404):
            raise
        msg = f"got mlflow:{rest}; there is no such run at {public_uri(uri)}. Expected mlflow:RUN_ID, the run's id as "
        msg += "its page shows it, and MLFLOW_TRACKING_URI set to where it is"
        raise LookupError(msg) from error
    return read_run(client, rest)


def address(run_id: str) -> str:
    """What stands for a run on the command line."""
    return f"mlflow:{run_id}"


def read_run(client: MlflowClient, run_id: str) -> Timeline:
    """Reads a run that there is."""
    run = client.get_run(run_id)
    memory = stored_memory(client, run_id)
    config = stored_text(client, run_id, CONFIG_ARTIFACT)
    timeline = Timeline(
        name=run.info.run_name or run_id,
        source=address(run_id),
        config={} if config is None else json.loads(config),
        history=memory.histograms,
        events=sorted(memory.events, key=lambda event: event[0]),
        windows={split: len(steps) for split, steps in memory.steps.items() if steps},
        worst=memory.worst,
    )
    points: dict[str, list[Point]] = {}
    for key, name in _names():
        if name in run.data.metrics:
            history = client.get_metric_history(run_id, name)
            points.setdefault(key, []).extend((point.step, point.timestamp, point.value) for point in history)
    timeline.scalars = curves(points)
    if not timeline.windows:  # an older artifact does not tell
        counted = {split: timeline.scalars.get(f"{prefix}{COUNT}") for split, prefix in SPLITS.items()}
        timeline.windows = {split: len(curve.steps) for split, curve in counted.items() if curve}
    return timeline


def curves(points: Mapping[str, Sequence[Point]]) -> dict[str, Curve]:
    """What is left of the points of a run once each part of it that was trained again has superseded the first try.

    A training that goes on from a checkpoint writes steps again. Whatever was written before the first of them, for
    that step or a later one, no longer belongs to the run, whether or not it was written again. Of several points at
    one step the newest counts. A point that the trainer logged itself gets the time of its window.

    Args:
        points: by key, in any order.
    """
    own = {prefix: points.get(prefix + COUNT) for prefix in SPLITS.values()}
    train = own[""] or max((points[key] for key in points if not key.startswith("eval/")), key=len, default=())
    restarts = _restarts(train)
    times = {prefix: {step: time for step, time, _ in _live(known or (), restarts)} for prefix, known in own.items()}
    kept: dict[str, Curve] = {}
    for key, known in points.items():
        at = times["eval/" if key.startswith("eval/") else ""]
        curve = Curve()
        for step, time, value in _live(known, restarts):
            curve.add(step, at.get(step, time), value)
        if curve.steps:
            kept[key] = curve
    return kept


def _names() -> Iterator[tuple[str, str]]:
    """Key and name in MLflow of each statistic; a trainer has a name of its own for those of evaluations."""
    for key in sorted(metrics.keys("standard")):
        yield key, clean_name(key)
        yield f"eval/{key}", clean_name(f"eval/{key}")
        yield f"eval/{key}", clean_name(f"eval_{key}")


def _restarts(points: Iterable[Point]) -> list[tuple[int, int]]:
    """Step and time of each point that was written after one of the same or a later step."""
    restarts: list[tuple[int, int]] = []
    last: int | None = None
    for step, time, _ in sorted(points, key=lambda point: (point[1], point[0])):
        if last is not None and step <= last:
            restarts.append((step, time))
        last = step
    return restarts


def _live(points: Iterable[Point], restarts: Sequence[tuple[int, int]]) -> list[Point]:
    """The points that no restart has superseded, the newest of each step, in the order of the steps."""
    newest: dict[int, Point] = {}
    for point in sorted(points, key=lambda point: point[1]):
        step, time, _ = point
        if not any(step >= first and time < since for first, since in restarts):
            newest[step] = point
    return [newest[step] for step in sorted(newest)]
