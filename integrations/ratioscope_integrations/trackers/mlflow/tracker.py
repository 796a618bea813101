"""MLflow: metrics, the config, and pictures in place of the histogram type that MLflow does not have.

Requires ``mlflow`` and ``pillow``. The active run of ``mlflow`` belongs to a thread, and its fluent functions open a
stray run where there is none; so the run is looked up once, on the main thread, and every call goes through a client.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from ratioscope.runs.history import Cadence
from ratioscope_integrations.trackers.mlflow import artifacts
from ratioscope_integrations.trackers.mlflow.config import clean_name, finding_tags, log_config
from ratioscope_integrations.trackers.mlflow.place import experiment_id, own_run, public_uri, uri_is_set
from ratioscope_integrations.trackers.mlflow.stored import Memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mlflow import MlflowClient
    from mlflow.entities import Metric

    from ratioscope.event import Event
    from ratioscope.runs.timeline import Timeline
    from ratioscope.trackers.base import Row, RunContext

_BATCH = 1000
"""Metrics in one call: the server's limit."""

_logger = logging.getLogger("ratioscope")


class MlflowTracker:
    """Writes to the run that the trainer or the user opened, else to one of its own."""

    name: ClassVar[str] = "mlflow"
    background: ClassVar[bool] = True
    keeps_alerts: ClassVar[bool] = True
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
        self._memory: Memory | None = None
        self._names: dict[str, str] = {}
        self._cadences: dict[str, Cadence] = {}
        self._newest: dict[str, Row] = {}
        self._due: dict[str, list[Row]] = {}
        self._drawn: dict[str, Row] = {}
        self._opening: dict[str, Row] = {}

    def open(self, run: RunContext) -> bool:
        """Notes the live run and the tracking URI; nothing is sent, and a run of our own is created later.

        Returns:
            False if the trainer reports to MLflow and its run is not there yet.
        """
        import mlflow

        live: Any = run.live or mlflow.active_run()
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
        if self._memory is None:
            self._memory = artifacts.stored_memory(client, run_id) if self._continued else Memory()
        for row in rows:
            if self._memory.add(row):
                self._newest[row.split] = row
                if self._cadences.setdefault(row.split, Cadence()).due():
                    self._due.setdefault(row.split, []).append(row)
        self._draw(self._context, client, run_id, self._memory)

    def alert(self, event: Event) -> None:
        """Sets one tag for the finding and one that sums up; MLflow has no alerts of its own."""
        if self._context is None:
            return
        client, run_id = self._attach(self._context)
        for key, value in finding_tags(event).items():
            client.set_tag(run_id, key, value)

    def _metrics(self, row: Row) -> list[Metric]:
        from mlflow.entities import Metric

        at = int(row.time * 1000)
        finite = {key: value for key, value in {**row.scalars, **row.logs}.items() if math.isfinite(value)}
        return [Metric(self._name(key), value, at, row.step) for key, value in finite.items()]

    def close(self) -> None:
        """Sends what is left, and ends the run if it is ours; then shows the whole training, if there is time."""
        context, self._context = self._context, None
        if context is None or self._run_id is None:
            return
        deadline = time.monotonic() + context.patience
        client, run_id = self._attach(context)
        try:
            self._announce(context, client, run_id)
            if self._memory is not None:
                artifacts.log_memory(client, run_id, self._memory)
        finally:
            if self._owned:
                client.set_terminated(run_id)
        for _ in self._exhibits(context, client, run_id):
            if time.monotonic() > deadline:
                _logger.warning("MLflow answers slowly; pictures and the report of run %s are not complete", run_id)
                return

    def _exhibits(self, context: RunContext, client: MlflowClient, run_id: str) -> Iterator[None]:
        """Shows the whole training, one request or a few at a time, the most telling first."""
        memory = self._memory
        if memory is None:
            return
        artifacts.log_worst_tokens(client, run_id, memory)
        yield
        for split, row in self._newest.items():
            drawn = self._drawn.get(split) is row
            steps = [0] if self._opening.get(split) is not row else []
            steps += [] if drawn else [row.step]
            yield from artifacts.pictures(client, run_id, memory, row, steps=steps, over_training=not drawn)
        last = self._newest.get("train")
        if last is not None:
            artifacts.log_common_pictures(client, run_id, memory, last)
            yield
            artifacts.log_table(client, run_id, memory, last)
            yield
        artifacts.log_report(client, run_id, lambda: _timeline(context, client, run_id))

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

    def _draw(self, context: RunContext, client: MlflowClient, run_id: str, memory: Memory) -> None:
        """Logs the pictures that are due; those of a failed attempt come with the next one."""
        if not self._due:
            return
        self._announce(context, client, run_id)
        for split, rows in list(self._due.items()):
            while rows:
                row = rows[0]
                steps = [row.step] if split in self._drawn else [row.step, 0]
                newest = len(rows) == 1
                for _ in artifacts.pictures(client, run_id, memory, row, steps=steps, over_training=newest):
                    pass
                self._opening.setdefault(split, row)
                self._drawn[split] = rows.pop(0)
            del self._due[split]
        artifacts.log_memory(client, run_id, memory)
        artifacts.log_worst_tokens(client, run_id, memory)


def _timeline(context: RunContext, client: MlflowClient, run_id: str) -> Timeline:
    """The run as its journal has it, else as MLflow has it."""
    from ratioscope.journal.schema import JournalError
    from ratioscope.runs.read import read_journal
    from ratioscope_integrations.trackers.mlflow.source import address, read_run

    if context.output_dir is not None:
        with suppress(FileNotFoundError, JournalError):
            timeline = read_journal(context.output_dir)
            timeline.name, timeline.source = client.get_run(run_id).info.run_name or run_id, address(run_id)
            return timeline
    return read_run(client, run_id)
