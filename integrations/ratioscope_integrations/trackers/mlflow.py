"""MLflow: metrics, the config, and pictures in place of the histogram type that MLflow does not have.

Requires ``mlflow`` and ``pillow``. The active run of ``mlflow`` belongs to a thread, and its fluent functions open a
stray run where there is none; so the run is looked up once, on the main thread, and every call goes through a client.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ratioscope_integrations.history import Cadence, History
from ratioscope_integrations.trackers.mlflow_config import clean_name, log_config
from ratioscope_integrations.trackers.mlflow_place import experiment_id, own_run, public_uri, uri_is_set

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlflow import MlflowClient
    from mlflow.entities import Metric

    from ratioscope.trackers.base import Row, RunContext
    from ratioscope_integrations.scales import Bounds

HISTOGRAMS_ARTIFACT = "ratioscope/histograms.json"

_BATCH = 1000
"""Metrics in one call: the server's limit."""

_logger = logging.getLogger("ratioscope")


class MlflowTracker:
    """Writes to the run that the trainer or the user opened, else to one of its own."""

    name: ClassVar[str] = "mlflow"
    background: ClassVar[bool] = True
    package: ClassVar[str] = "mlflow"

    def __init__(self) -> None:
        self.identity: Mapping[str, str] | None = None
        self._context: RunContext | None = None
        self._uri = ""
        self._client: MlflowClient | None = None
        self._run_id: str | None = None
        self._experiment_id: str | None = None
        self._artifacts: str | None = None
        self._owned = False
        self._continued = False
        self._announced = False
        self._history: History | None = None
        self._names: dict[str, str] = {}
        self._cadences: dict[str, Cadence] = {}
        self._undrawn: dict[str, Row] = {}

    def open(self, run: RunContext) -> bool:
        """Notes the live run and the tracking URI; nothing is sent, and a run of our own is created later.

        Returns:
            False if the trainer reports to MLflow and its run is not there yet.
        """
        import mlflow

        live = mlflow.active_run()
        if live is None and run.reporter is not None:
            return False
        self._context = run
        known = run.identity or {}
        self._run_id = os.environ.get("MLFLOW_RUN_ID") or None
        self._uri = mlflow.get_tracking_uri()
        if live is not None:
            self._run_id, self._experiment_id = live.info.run_id, live.info.experiment_id
        elif run.output_dir is not None and not uri_is_set():
            self._uri = f"sqlite:///{run.output_dir.resolve().as_posix()}/mlflow.db"
            self._artifacts = (run.output_dir.resolve() / "mlartifacts").as_uri()
        self._owned = self._run_id is None and run.ours
        self._run_id = self._run_id or known.get("run_id")
        self._continued = self._run_id is not None
        self.identity = known or (None if self._run_id else {"key": secrets.token_hex(8)})
        return True

    def attaches(self) -> bool:
        """Whether the user has a live run, or names one in the environment."""
        import mlflow

        return bool(os.environ.get("MLFLOW_RUN_ID")) or mlflow.active_run() is not None

    def connect(self) -> dict[str, str]:
        """Creates the run if it is to be our own and is not there yet."""
        if self._context is None:
            return {}
        client, run_id = self._attach(self._context)
        if self._owned and (self._context.identity or {}).get("run_id") == run_id:
            client.update_run(run_id, status="RUNNING")
        return {**(self.identity or {}), "run_id": run_id, "uri": public_uri(self._uri)}

    def write(self, row: Row) -> None:
        """Sends one window: metrics always, pictures and histograms at spread records."""
        self.write_many([row])

    def write_many(self, rows: Sequence[Row]) -> None:
        """Sends windows that waited together.

        Metrics come first, in one call, and are the same at a retry, so that a fault of the artifact store costs no
        number.
        """
        if self._context is None:
            return
        client, run_id = self._attach(self._context)
        metrics = [metric for row in rows for metric in self._metrics(row)]
        for start in range(0, len(metrics), _BATCH):
            client.log_batch(run_id, metrics=metrics[start : start + _BATCH], synchronous=True)
        if self._history is None:
            self._history = _stored_history(client, run_id) if self._continued else History()
        for row in rows:
            self._remember(client, run_id, row)

    def _metrics(self, row: Row) -> list[Metric]:
        from mlflow.entities import Metric

        time = int(row.time * 1000)
        finite = {key: value for key, value in {**row.scalars, **row.logs}.items() if math.isfinite(value)}
        return [Metric(self._name(key), value, time, row.step) for key, value in finite.items()]

    def _remember(self, client: MlflowClient, run_id: str, row: Row) -> None:
        if self._history is None or self._context is None:
            return
        for key, bins in row.histograms.items():
            self._history.add(key, row.step, bins)
        first = row.split not in self._cadences
        self._undrawn[row.split] = row
        if self._cadences.setdefault(row.split, Cadence()).due():
            self._announce(self._context, client, run_id)
            self._draw(client, run_id, row, at_start=first)

    def close(self) -> None:
        """Sends the pictures of the last records, and ends the run if it is ours."""
        context, self._context = self._context, None
        if context is None or self._run_id is None:
            return
        client, run_id = self._attach(context)
        try:
            self._announce(context, client, run_id)
            for row in list(self._undrawn.values()):
                self._draw(client, run_id, row, at_start=True)
        finally:
            if self._owned:
                client.set_terminated(run_id)

    def where(self) -> str:
        """The command or the address that shows the run."""
        if self._run_id is None:
            return f"a run will be opened at {public_uri(self._uri)}" if self._uri else "no run yet"
        if self._uri.startswith("http"):
            return f"{public_uri(self._uri)}/#/experiments/{self._experiment_id or 0}/runs/{self._run_id}"
        return f"mlflow ui --backend-store-uri {public_uri(self._uri)}   (run {self._run_id})"

    def _attach(self, context: RunContext) -> tuple[MlflowClient, str]:
        """Client and run; the first call connects, which takes seconds with a new database."""
        from mlflow import MlflowClient

        if self._client is None:
            if self._artifacts is not None and context.output_dir is not None:
                context.output_dir.mkdir(parents=True, exist_ok=True)
            self._client = MlflowClient(self._uri)
        if self._run_id is None:
            self._experiment_id = experiment_id(self._client, self._artifacts)
            key = (self.identity or {}).get("key", "")
            self._run_id, self._continued = own_run(self._client, self._experiment_id, context.run_name, key)
        return self._client, self._run_id

    def _announce(self, context: RunContext, client: MlflowClient, run_id: str) -> None:
        if not self._announced:
            log_config(client, run_id, context.config)
            self._announced = True

    def _name(self, key: str) -> str:
        """A legal name, the same every time, that no other key has."""
        if key not in self._names:
            clean, taken, suffix = clean_name(key), set(self._names.values()), 2
            name = clean
            while name in taken:
                name, suffix = f"{clean[:240]}_{suffix}", suffix + 1
            self._names[key] = name
        return self._names[key]

    def _draw(self, client: MlflowClient, run_id: str, row: Row, *, at_start: bool) -> None:
        """Logs the pictures of a split up to this row, and the counts behind them.

        MLflow's image chart opens at step 0 and is blank without a picture there, so the heat map of the whole
        training always goes there and the newest histogram with ``at_start``.
        """
        from ratioscope_integrations.pictures import heatmap_picture, histogram_picture

        history = self._history or History()
        for key, level, bounds in _pictured(row):
            series = history.latest(key)
            name = key.replace("hist/token_", "").replace("hist/", "")
            label = f"{level.capitalize()} log-ratio, {row.split}"
            bars = histogram_picture(row.histograms[key], title=f"{label}, step {row.step}", bounds=bounds)
            for step in {row.step, 0} if at_start else {row.step}:
                client.log_image(run_id, bars, key=name, step=step, synchronous=True)
            title = f"{label}, up to step {row.step}"
            heat = heatmap_picture(series.bins(), series.steps(), title=title, bounds=bounds)
            client.log_image(run_id, heat, key=f"{name}_over_training", step=0, synchronous=True)
        client.log_text(run_id, json.dumps(history.to_json(), separators=(",", ":")), HISTOGRAMS_ARTIFACT)
        self._undrawn.pop(row.split, None)


def _pictured(row: Row) -> list[tuple[str, str, Bounds]]:
    """Key, level and bounds of the histograms to draw: tokens always, sequences where the rule acts on them."""
    rule = row.record.correction
    level = "token" if rule is None else rule.level
    bounds: Mapping[str, Bounds] = {level: (None, None) if rule is None else (rule.lower, rule.upper)}
    wanted = dict.fromkeys(["token", level])
    return [
        (key, name, bounds.get(name, (None, None)))
        for name in wanted
        for key, bins in row.histograms.items()
        if key.endswith(f"hist/{name}_log_ratio") and bins.total
    ]


def _stored_history(client: MlflowClient, run_id: str) -> History:
    """What an earlier process left in this run, so that the pictures of a resumed training show all of it."""
    if HISTOGRAMS_ARTIFACT not in {entry.path for entry in client.list_artifacts(run_id, "ratioscope")}:
        return History()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(client.download_artifacts(run_id, HISTOGRAMS_ARTIFACT, folder)).read_text()
    try:
        return History.from_json(json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError):
        _logger.warning("MLflow: %s of run %s cannot be read; pictures start anew", HISTOGRAMS_ARTIFACT, run_id)
        return History()
