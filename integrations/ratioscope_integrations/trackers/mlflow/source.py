"""Reader of MLflow runs: scalars from the metrics, histograms and events from the tracker's artifact.

Requires ``mlflow``.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from ratioscope.metrics import catalogue
from ratioscope.metrics.metric import PREFIX
from ratioscope.runs.foreign import adopt
from ratioscope.runs.foreign.config import config_of
from ratioscope.runs.timeline import Timeline
from ratioscope_integrations.trackers.mlflow.artifacts import RunArtifacts
from ratioscope_integrations.trackers.mlflow.config import CONFIG_ARTIFACT
from ratioscope_integrations.trackers.mlflow.server import exists, public_uri, server_version
from ratioscope_integrations.trackers.names import clean_name
from ratioscope_integrations.trackers.points import count_windows, curves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlflow import MlflowClient
    from mlflow.entities import Run

from ratioscope_integrations.trackers.points import Point


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
    server_version(uri)  # raises at once if no server answers
    msg = f"got mlflow:{rest}; there is no such run at {public_uri(uri)}. Expected mlflow:RUN_ID, the run's id as "
    msg += "its page shows it, and MLFLOW_TRACKING_URI set to where it is"
    if not exists(uri):
        raise LookupError(msg)
    client = MlflowClient(uri)
    try:
        client.get_run(rest)
    except MlflowException as error:
        if error.get_http_status_code() not in (400, 404):
            raise
        raise LookupError(msg) from error
    return read_run(client, rest)


def address(run_id: str) -> str:
    """Returns the address of a run as the command line takes it."""
    return f"mlflow:{run_id}"


def read_run(client: MlflowClient, run_id: str) -> Timeline:
    """Reads an existing run."""
    run = client.get_run(run_id)
    artifacts = RunArtifacts(client, run_id)
    stored, config = artifacts.stored_windows(), artifacts.text(CONFIG_ARTIFACT)
    timeline = Timeline(
        name=run.info.run_name or run_id,
        source=address(run_id),
        config={} if config is None else json.loads(config),
        history=stored.histograms,
        events=sorted(stored.events, key=lambda event: event[0]),
        windows={split: len(steps) for split, steps in stored.steps.items() if steps},
        worst=stored.worst,
    )
    points: dict[str, list[Point]] = {}
    for key, name in _names():
        if name in run.data.metrics:
            history = client.get_metric_history(run_id, name)
            points.setdefault(key, []).extend((point.step, point.timestamp, point.value) for point in history)
    if not any(key.removeprefix("eval/").startswith(PREFIX) for key in points):  # not a run of ratioscope's
        points = _foreign(client, run)
        timeline.config = timeline.config or config_of(run.data.params)
    timeline.scalars = curves(points)
    timeline.windows = timeline.windows or count_windows(timeline.scalars)  # an older artifact has no steps
    return timeline


def _foreign(client: MlflowClient, run: Run) -> dict[str, list[Point]]:
    """Reads the points of metrics with which another trainer describes the mismatch of the two engines."""
    points: dict[str, list[Point]] = {}
    for name in filter(adopt.is_known, sorted(run.data.metrics)):
        history = client.get_metric_history(run.info.run_id, name)
        target = points.setdefault("".join(adopt.split_key(name)), [])
        target += [(point.step, point.timestamp, point.value) for point in history if math.isfinite(point.value)]
    return points


def _names() -> Iterator[tuple[str, str]]:
    """Yields key and MLflow name of each statistic, under both names that evaluations may have."""
    for key in sorted(catalogue.keys("standard")):
        yield key, clean_name(key)
        yield f"eval/{key}", clean_name(f"eval/{key}")
        yield f"eval/{key}", clean_name(f"eval_{key}")
