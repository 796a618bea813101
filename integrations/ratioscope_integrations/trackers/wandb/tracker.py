"""W&B: histograms and scalars in the trainer's own row, the config under ``ratioscope``.

Requires ``wandb``. ``run.log`` only passes a row to W&B's own process, which uploads it later, so a row of a run that
the tracker opened counts as delivered once the run was finished, or once W&B reports that it has the row. ``step=`` is
only passed to a run whose owner passes it too: W&B drops a row whose step is behind its counter, so the trainer's step
is logged as ``train/global_step``, the axis that transformers' callback defines.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ratioscope.trackers.base import Tracker, grouped
from ratioscope_integrations.trackers.wandb.private import bound_exit, end_service
from ratioscope_integrations.trackers.wandb.runs import ROWS_BEFORE, STEP_KEY, finish, location, new_identity, start
from ratioscope_integrations.trackers.wandb.summaries import Summaries
from ratioscope_integrations.trackers.wandb.tables import FinalSummary

if TYPE_CHECKING:
    import wandb

    from ratioscope.event import Event
    from ratioscope.trackers.base import Row, RunContext

SUMMARY_SHARE = 0.25
"""Share of the closing time that the tables may take; the rest is for the upload of all rows."""

ALERT_WAIT_S = 60.0
"""Seconds in which W&B regards alerts of equal titles as one."""

DISABLED = "W&B is disabled and keeps no row; set WANDB_MODE=offline or online, then call ratioscope sync"
"""Reason for which a row is not delivered."""

MAX_ALERT = 2000
"""Characters of an alert's text."""


class WandbTracker(Tracker):
    """Writes to the run that the trainer or the user opened, else to a new one."""

    name = "wandb"
    background = True
    merges = True
    counts_rows = True
    package = "wandb"

    def __init__(self) -> None:
        self._context: RunContext | None = None
        self._run: wandb.Run | None = None
        self._owned = False
        self._location = "no run yet"
        self._summaries: Summaries | None = None
        self._final = FinalSummary()

    def open(self, run: RunContext) -> bool:
        """Attaches to the live run; if there is none, ``connect`` opens one.

        Returns:
            False if the trainer reports to W&B and its run does not exist yet.
        """
        import wandb

        live: Any = run.live or wandb.run
        if live is None and run.reporter is not None:
            return False
        self._context = run
        self._owned = live is None
        if live is not None:
            self._attach(live, run)
            self.identity = None if live.disabled else {"run_id": live.id, "project": live.project}
        else:
            self.identity = run.identity or new_identity()
        return True

    def attaches(self) -> bool:
        """Returns whether the user has a live run."""
        import wandb

        return wandb.run is not None

    def connect(self) -> dict[str, str]:
        """Opens a new run in project ``WANDB_PROJECT``, or continues that of an earlier process or attempt.

        The run's id was chosen before, so that a lost answer leaves no second run. For a continued online run,
        ``received`` is W&B's own count of its rows.
        """
        if self._run is None and self._context is not None and self.identity is not None:
            run = start(self._context, self.identity)
            before = self.identity.get(ROWS_BEFORE)
            online = not (run.offline or run.disabled)
            if online and before is not None:
                self.received = run.starting_step - int(before)
            elif online and self._context.identity is None:  # the run that WANDB_RUN_ID names
                self.identity = {**self.identity, ROWS_BEFORE: str(run.starting_step)}
            self._attach(run, self._context)
        return dict(self.identity or {})

    def write(self, row: Row) -> None:
        """Sends one window as one row, or as part of the row that the trainer's callback is about to log.

        Raises:
            RuntimeError: if W&B is disabled; a row that nobody keeps is not delivered.
        """
        import wandb

        if self._run is None:
            self.connect()
        if self._run is None or self._context is None:
            return
        if self._run.disabled:
            raise RuntimeError(DISABLED)
        data: dict[str, Any] = {**row.scalars, **grouped(row.logs)}
        if self._summaries is not None:
            self._summaries.define(data)
        for key, bins in row.histograms.items():
            data[key] = wandb.Histogram(np_histogram=(bins.counts.tolist(), bins.edges.tolist()))
        if self._context.reporter is not None:
            self._run.log(data, commit=False)
        elif self._context.live is not None:  # its owner passes steps, and a row behind them would be dropped
            self._run.log({**data, STEP_KEY: row.step}, step=max(row.step, self._run.step))
        else:
            self._run.log({**data, STEP_KEY: row.step})
        self._final.add(row)

    def alert(self, event: Event) -> None:
        """Queues an alert if the event is news; the user's W&B settings decide where it arrives."""
        if self._run is not None and event.is_news:
            level = "INFO" if event.status == "gone" else {"warning": "WARN", "error": "ERROR"}[event.level]
            self._run.alert(event.title, event.text[:MAX_ALERT], level=level, wait_duration=ALERT_WAIT_S)

    def close(self) -> None:
        """Writes the run's summary, and finishes the run if the tracker opened it.

        Raises:
            TimeoutError: if not everything was uploaded in time; W&B may have any part of it.
        """
        context, self._context = self._context, None
        run, self._run = self._run, None
        if run is None or context is None:
            return
        began = time.monotonic()
        self._final.send(run, SUMMARY_SHARE * context.close_timeout)
        if self._owned:
            bound_exit(run.id)
            finish(run, context.close_timeout - (time.monotonic() - began))

    def abandon(self) -> None:
        """Ends W&B's process, which would hold up the end of this one; the journal has what it did not upload."""
        if self._owned and self.identity is not None:
            end_service(self.identity["run_id"], timeout=0.0)

    def where(self) -> str:
        """Returns the run's address, or the folder of an offline run."""
        return self._location

    def _attach(self, run: wandb.Run, context: RunContext) -> None:
        self._run = run
        # An offline run has no later upload that could fail.
        self.buffers = self._owned and not run.offline and not run.disabled
        self._location = location(run)
        stepped = self._owned or context.reporter is not None
        step_metric = STEP_KEY if stepped else None
        self._summaries = Summaries(run, step_metric=step_metric, headline_reported=context.reporter is not None)
        continued = run.resumed or (self._owned and context.identity is not None)
        self._final = FinalSummary(context.output_dir if continued else None)
        config: Any = run.config
        config.update({"ratioscope": dict(context.config)}, allow_val_change=True)
