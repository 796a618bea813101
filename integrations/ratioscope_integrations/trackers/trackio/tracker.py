"""trackio: native histograms and scalars, the config under ``ratioscope``.

Requires ``trackio``. Its current run belongs to a context, so the run is looked up once, on the main thread, and every
call goes to the run itself. ``log`` never waits and never raises: it queues a row, which trackio's thread writes half a
second later to the project's database or sends to a server, and drops with a warning if that fails. So rows of a run
that the tracker opened count as delivered once the run was finished and the database has them all.
"""

from __future__ import annotations

import contextvars
import math
import os
import secrets
import sys
from typing import TYPE_CHECKING, Any

from ratioscope.metrics.terms import PREFIX
from ratioscope.runs.worst import COLUMNS, WorstTables
from ratioscope.trackers.base import Tracker, grouped
from ratioscope_integrations.trackers.trackio.store import count_rows, forget_unsent, location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackio.run import Run

    from ratioscope.event import Event
    from ratioscope.trackers.base import Row, RunContext

STEP_KEY = "train/global_step"
"""Key that transformers' ``TrackioCallback`` adds to all rows, so that it can be chosen as the x-axis."""
WORST_KEY = f"{PREFIX}worst_tokens"
ROWS_BEFORE = "rows_before"
"""Entry of the identity of a run that the tracker opened: its number of rows at first."""


class TrackioTracker(Tracker):
    """Writes to the run that the trainer or the user opened, else to a new one."""

    name = "trackio"
    merges = True
    counts_rows = True
    package = "trackio"

    def __init__(self) -> None:
        self._context: RunContext | None = None
        self._run: Run | None = None
        self._owned = False
        self._expected: int | None = None
        self._location = "no run yet"
        self._worst = WorstTables()

    @property
    def background(self) -> bool:  # type: ignore[override]
        """False if a run is live: its queue takes a row at once, and rows belong among those of its owner."""
        return not self.attaches()

    def open(self, run: RunContext) -> bool:
        """Attaches to the live run; if there is none, ``connect`` opens one.

        Returns:
            False if the trainer reports to trackio and its run does not exist yet.
        """
        live: Any = run.live or _live_run()
        if live is None and run.reporter is not None:
            return False
        self._context = run
        self._owned = self.buffers = live is None
        if live is not None:
            self._attach(live, run)
            self.identity = {"run_id": live.id, "project": live.project, "name": live.name}
        else:
            self.identity = run.identity or _new_identity(run)
        return True

    def attaches(self) -> bool:
        """Returns whether the trainer or the user has a live run."""
        return _live_run() is not None

    def connect(self) -> dict[str, str]:
        """Opens a new run, or continues that of an earlier process or attempt.

        The run's id was chosen before, and trackio stores nothing of a run without rows, so an interrupted attempt
        leaves no second run. ``received`` is then trackio's own count of the run's rows.

        Raises:
            ConnectionError: if the server is away.
        """
        if self._run is None and self._context is not None and self.identity is not None:
            # In a new context, because opening a run finishes the run that is current in the context.
            run = contextvars.Context().run(_start, self._context, self.identity)
            self.identity = {**self.identity, "project": run.project, "name": run.name}
            try:
                self._expected = count_rows(run)
            except ConnectionError:
                run.finish()
                raise
            before = self.identity.get(ROWS_BEFORE)
            if before is not None and self._expected is not None:
                self.received = self._expected - int(before)
            self._attach(run, self._context)
        return dict(self.identity or {})

    def write(self, row: Row) -> None:
        """Queues one window as one row."""
        import trackio

        if self._run is None:
            self.connect()
        if self._run is None or self._context is None:
            return
        scalars = {**row.scalars, **grouped(row.logs), STEP_KEY: row.step}
        data: dict[str, Any] = {key: value for key, value in scalars.items() if math.isfinite(value)}
        for key, bins in row.histograms.items():
            data[key] = trackio.Histogram(np_histogram=(bins.counts, bins.edges))
        if worst := self._worst.due(row.record):
            data[WORST_KEY] = trackio.Table(columns=list(COLUMNS), data=worst)
        if self._owned:
            self._run.log(data, step=row.step)
            self._expected = None if self._expected is None else self._expected + 1
        else:
            _log_beside(self._run, data, None if self._context.reporter is not None else row.step)

    def alert(self, event: Event) -> None:
        """Queues an alert if the event is news. Trackio prints it, and posts it if a webhook is set."""
        run_alert: Any = getattr(self._run, "alert", None)  # in trackio since 0.15
        if run_alert is not None and event.is_news:
            from trackio import AlertLevel

            levels = {"warning": AlertLevel.WARN, "error": AlertLevel.ERROR}
            level = AlertLevel.INFO if event.status == "gone" else levels[event.level]
            run_alert(event.title, event.text, level=level, step=event.step)

    def close(self) -> None:
        """Finishes the run if the tracker opened it; leaves any other as it is.

        Raises:
            RuntimeError: if trackio did not store every row.
            ConnectionError: if its server does not say what it has.
        """
        context, self._context = self._context, None
        run, self._run = self._run, None
        if run is None or context is None or not self._owned:
            return
        run.finish()
        stored = None if self._expected is None else count_rows(run)
        if self._expected is not None and stored is not None and stored < self._expected:
            msg = f"trackio stored {stored} rows of run {run.name!r}; expected {self._expected}. "
            msg += "Its own warnings say why; look at its server, or at the space and the permissions of its folder"
            raise RuntimeError(msg)

    def where(self) -> str:
        """Returns the command that shows the run, or the address of its server."""
        return self._location

    def _attach(self, run: Run, context: RunContext) -> None:
        self._run = run
        self._location = location(run)
        config: Any = run.config
        config["ratioscope"] = dict(context.config)
        if getattr(run, "_config_logged", False):  # the config travels with the first row, which was sent
            run._config_logged = False
            for entry in list(getattr(run, "_queued_logs", ())):  # or still waits: the first config of a batch counts
                if entry.get("config"):
                    entry["config"] = {**entry["config"], "ratioscope": config["ratioscope"]}


def _live_run() -> Run | None:
    """Returns the run of this context, without importing trackio: opening a run has imported it."""
    module: Any = sys.modules.get("trackio.context_vars")
    return None if module is None else module.current_run.get()


def _new_identity(run: RunContext) -> dict[str, str]:
    name = {} if run.run_name is None else {"name": run.run_name}
    return {"run_id": secrets.token_hex(16), "project": _project(), ROWS_BEFORE: "0", **name}


def _project() -> str:
    return os.environ.get("TRACKIO_PROJECT") or "ratioscope"


def _start(run: RunContext, identity: Mapping[str, str]) -> Run:
    import trackio

    project = identity.get("project") or _project()
    forget_unsent(project, identity["run_id"])  # before trackio sends them by itself
    started = trackio.init(
        project=project,
        name=identity.get("name") or run.run_name,
        resume="never" if run.identity is None else "allow",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    started.id = identity["run_id"]  # trackio itself continues the newest run of this name, whosever it is
    return started


def _log_beside(run: Run, data: dict[str, Any], step: int | None) -> None:
    """Logs into another owner's run without moving its step counter, which continues from the highest step.

    Args:
        run: the run.
        data: the row.
        step: the row's step; None for the step of the row that the owner logs next.
    """
    upcoming: int | None = getattr(run, "_next_step", None)
    run.log(data, step=upcoming if step is None else step)
    if upcoming is not None:
        run._next_step = upcoming
