"""MLflow: metrics, the config, and pictures in place of a histogram type, which MLflow lacks.

Requires ``mlflow`` and ``pillow``. The active run of ``mlflow`` belongs to a thread, and its fluent functions open an
unwanted run where there is none. So the run is looked up once, on the main thread, and all calls go through a client.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ratioscope.incidents import log
from ratioscope.journal.schema import JournalError
from ratioscope.runs.read import read_journal
from ratioscope.trackers.base import Tracker
from ratioscope_integrations.trackers.mlflow.artifacts import RunArtifacts
from ratioscope_integrations.trackers.mlflow.config import finding_tags, log_config
from ratioscope_integrations.trackers.mlflow.schedule import PictureSchedule
from ratioscope_integrations.trackers.mlflow.server import Connection, database_uri, public_uri, uri_is_set
from ratioscope_integrations.trackers.mlflow.source import address, read_run
from ratioscope_integrations.trackers.mlflow.stored import StoredWindows
from ratioscope_integrations.trackers.names import UniqueNames

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlflow import MlflowClient
    from mlflow.entities import Metric

    from ratioscope.event import Event
    from ratioscope.runs.timeline import Timeline
    from ratioscope.trackers.base import Row, RunContext

_BATCH = 1000
"""Metrics in one call: the server's limit."""


class MlflowTracker(Tracker):
    """Writes to the run that the trainer or the user opened, else to a new one."""

    name = "mlflow"
    background = True
    keeps_alerts = True

    def __init__(self) -> None:
        self._context: RunContext | None = None
        self._connection = Connection("")
        self._owned = False
        self._config_logged = False
        self._stored: StoredWindows | None = None
        self._names = UniqueNames()
        self._schedule = PictureSchedule()

    @property
    def run_id(self) -> str | None:
        """Id of the run; None before it exists."""
        return self._connection.run_id

    def open(self, run: RunContext) -> bool:
        """Notes the live run and the tracking URI. Nothing is sent; a new run is created later.

        Returns:
            False if the trainer reports to MLflow and its run does not exist yet.
        """
        import mlflow

        live: Any = run.live or mlflow.active_run()
        if live is None and run.reporter is not None:
            return False
        self._context = run
        connection = self._connection = Connection(mlflow.get_tracking_uri(), os.environ.get("MLFLOW_RUN_ID") or None)
        if live is not None:
            connection.run_id, connection.experiment_id = live.info.run_id, live.info.experiment_id
        elif run.output_dir is not None and not uri_is_set():
            connection.uri = database_uri(run.output_dir)
            connection.artifact_root = (run.output_dir.resolve() / "mlartifacts").as_uri()
        self._owned = connection.run_id is None and run.ours
        connection.run_id = connection.run_id or (run.identity or {}).get("run_id")
        connection.continued = connection.run_id is not None
        self.identity = run.identity or (None if connection.continued else {"key": secrets.token_hex(8)})
        return True

    def attaches(self) -> bool:
        """Returns whether the user has a live run, or names one in the environment."""
        import mlflow

        return bool(os.environ.get("MLFLOW_RUN_ID")) or mlflow.active_run() is not None

    def connect(self) -> dict[str, str]:
        """Creates the run if the tracker is to own it and it does not exist yet."""
        if self._context is None:
            return {}
        client, run_id = self._attach(self._context)
        if self._owned and (self._context.identity or {}).get("run_id") == run_id:
            client.update_run(run_id, status="RUNNING")
        return {**(self.identity or {}), "run_id": run_id, "uri": public_uri(self._connection.uri)}

    def write(self, row: Row) -> None:
        """Sends one window."""
        self.write_many([row])

    def write_many(self, rows: Sequence[Row]) -> None:
        """Sends windows: all metrics in one call, then pictures of selected windows.

        Metrics come first and are equal at a retry, so that a fault of the artifact store costs no number.
        """
        if self._context is None:
            return
        client, run_id = self._attach(self._context)
        metrics = [metric for row in rows for metric in self._metrics(row)]
        for start in range(0, len(metrics), _BATCH):
            client.log_batch(run_id, metrics=metrics[start : start + _BATCH], synchronous=True)
        artifacts = RunArtifacts(client, run_id)
        if self._stored is None:
            self._stored = artifacts.stored_windows() if self._connection.continued else StoredWindows()
        for row in rows:
            if self._stored.add(row):
                self._schedule.add(row)
        if self._schedule.is_due:
            self._log_due(self._context, client, run_id, self._stored)

    def alert(self, event: Event) -> None:
        """Sets one tag for the finding and one that counts open findings; MLflow has no alerts."""
        if self._context is None:
            return
        client, run_id = self._attach(self._context)
        for key, value in finding_tags(event).items():
            client.set_tag(run_id, key, value)

    def close(self) -> None:
        """Sends the rest and ends the run if the tracker owns it; then shows the whole training if time is left."""
        context, self._context = self._context, None
        if context is None or self.run_id is None:
            return
        deadline = time.monotonic() + context.close_timeout
        client, run_id = self._attach(context)
        try:
            self._log_config(context, client, run_id)
            if self._stored is not None:
                RunArtifacts(client, run_id).log_windows(self._stored)
        finally:
            if self._owned:
                client.set_terminated(run_id)
        for _ in self._log_final(context, client, run_id):
            if time.monotonic() > deadline:
                log.warning("MLflow answers slowly; pictures and the report of run %s are not complete", run_id)
                return

    def where(self) -> str:
        """Returns the command or the address that shows the run."""
        return self._connection.where() if self._connection.uri else "no run yet"

    def _attach(self, context: RunContext) -> tuple[MlflowClient, str]:
        return self._connection.attach(context, (self.identity or {}).get("key", ""))

    def _metrics(self, row: Row) -> list[Metric]:
        from mlflow.entities import Metric

        time_ms = int(row.time * 1000)
        finite = {key: value for key, value in {**row.scalars, **row.logs}.items() if math.isfinite(value)}
        return [Metric(self._names.name(key), value, time_ms, row.step) for key, value in finite.items()]

    def _log_config(self, context: RunContext, client: MlflowClient, run_id: str) -> None:
        if not self._config_logged:
            log_config(client, run_id, context.config)
            self._config_logged = True

    def _log_due(self, context: RunContext, client: MlflowClient, run_id: str, stored: StoredWindows) -> None:
        """Logs the pictures that are due. If that fails, they are due again with the next window."""
        self._log_config(context, client, run_id)
        artifacts = RunArtifacts(client, run_id)
        for pictures in self._schedule.due():
            for _ in artifacts.log_pictures(stored, pictures):
                pass
        artifacts.log_windows(stored)
        artifacts.log_worst_tokens(stored)

    def _log_final(self, context: RunContext, client: MlflowClient, run_id: str) -> Iterator[None]:
        """Logs artifacts of the whole training, the most useful first, a few requests with each step."""
        stored = self._stored
        if stored is None:
            return
        artifacts = RunArtifacts(client, run_id)
        artifacts.log_worst_tokens(stored)
        yield
        for pictures in self._schedule.final():
            yield from artifacts.log_pictures(stored, pictures)
        newest = self._schedule.newest_of_training
        if newest is not None:
            artifacts.log_common_pictures(stored, newest)
            yield
            artifacts.log_table(stored, newest)
            yield
        artifacts.log_report(lambda: _timeline(context, client, run_id))


def _timeline(context: RunContext, client: MlflowClient, run_id: str) -> Timeline:
    """Reads the run from its journal if there is one, else from MLflow."""
    if context.output_dir is not None:
        with suppress(FileNotFoundError, JournalError):
            timeline = read_journal(context.output_dir)
            timeline.name, timeline.source = client.get_run(run_id).info.run_name or run_id, address(run_id)
            return timeline
    return read_run(client, run_id)
