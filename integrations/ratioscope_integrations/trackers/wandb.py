"""W&B: histograms and scalars in the trainer's own row, the config under ``ratioscope``.

Requires ``wandb``. Nothing is ever logged with ``step=``: W&B drops a row whose step is behind its own count, so the
step of the trainer travels as ``train/global_step``, the axis that transformers' own callback defines.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from ratioscope.trackers.base import grouped

if TYPE_CHECKING:
    import wandb

    from ratioscope.trackers.base import Row, RunContext

STEP_KEY = "train/global_step"
"""The x-axis of transformers' ``WandbCallback``."""
FINISH_TIMEOUT_S = 8.0
"""How long ``close`` waits for the upload of a run of our own; W&B itself sets no limit."""

_logger = logging.getLogger("ratioscope")


class WandbTracker:
    """Writes to the run that the trainer or the user opened, else to one of its own."""

    name: ClassVar[str] = "wandb"
    background: ClassVar[bool] = True
    merges: ClassVar[bool] = True
    package: ClassVar[str] = "wandb"

    def __init__(self) -> None:
        self._context: RunContext | None = None
        self._run: wandb.Run | None = None
        self._owned = False
        self._place = "no run yet"
        self.received: int | None = None

    def open(self, run: RunContext) -> bool:
        """Attaches to the live run; where neither trainer nor user opened one, ``connect`` will.

        Returns:
            False if the trainer reports to W&B and its run is not there yet.
        """
        import wandb

        live = wandb.run
        if live is None and run.reporter is not None:
            return False
        self._context = run
        self._owned = live is None
        if live is not None:
            self._attach(live, run)
        return True

    def connect(self) -> dict[str, str]:
        """Opens a run of our own in project ``WANDB_PROJECT``, or continues the one of an earlier process.

        W&B tells how many rows a continued run has, which is then believed; offline it cannot.
        """
        if self._run is None and self._context is not None:
            run = _start(self._context)
            if run.resumed and not run.offline:
                self.received = run.starting_step
            self._attach(run, self._context)
        return {} if self._run is None else {"run_id": self._run.id, "project": self._run.project}

    def write(self, row: Row) -> None:
        """Sends one window as one row, or as part of the row that the trainer's callback is about to log."""
        import wandb

        if self._run is None:
            self.connect()
        if self._run is None or self._context is None:
            return
        data: dict[str, Any] = {**row.scalars, **grouped(row.logs)}
        for key, bins in row.histograms.items():
            data[key] = wandb.Histogram(np_histogram=(bins.counts.tolist(), bins.edges.tolist()))
        if self._context.reporter is not None:
            self._run.log(data, commit=False)
        else:
            self._run.log({**data, STEP_KEY: row.step})

    def close(self) -> None:
        """Finishes the run if it is ours; any other is left as it is."""
        run, self._run = self._run, None
        if run is not None and self._owned:
            _finish(run)

    def where(self) -> str:
        """The run's address, or the folder of an offline run."""
        return self._place

    def _attach(self, run: wandb.Run, context: RunContext) -> None:
        self._run = run
        self._place = _place(run)
        config: Any = run.config
        config.update({"ratioscope": dict(context.config)}, allow_val_change=True)


def _start(run: RunContext) -> wandb.Run:
    import wandb

    if run.output_dir is not None:
        run.output_dir.mkdir(parents=True, exist_ok=True)
    known = run.identity or {}
    started = wandb.init(
        project=known.get("project") or os.environ.get("WANDB_PROJECT") or "ratioscope",
        id=known.get("run_id") or os.environ.get("WANDB_RUN_ID") or None,
        resume="allow",
        name=run.run_name,
        dir=run.output_dir,
    )
    started.define_metric(STEP_KEY)
    started.define_metric("*", step_metric=STEP_KEY, step_sync=True)
    return started


def _place(run: wandb.Run) -> str:
    if run.disabled:
        return "disabled"
    if run.offline:  # asked before the address, which W&B warns that an offline run does not have
        folder = os.path.dirname(run.dir)
        return f"{folder}   (offline; to upload: wandb sync {folder})"
    return str(run.url)


def _finish(run: wandb.Run) -> None:
    """Finishes a run on a thread of its own, because a server that stays away would hold the caller for good."""
    failures: list[Exception] = []

    def finish() -> None:
        try:
            run.finish()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=finish, name="ratioscope-wandb-finish", daemon=True)
    thread.start()
    thread.join(FINISH_TIMEOUT_S)
    if thread.is_alive():
        _logger.warning("W&B still uploads the run after %.0f s; it goes on in the background", FINISH_TIMEOUT_S)
    if failures:
        raise failures[0]
