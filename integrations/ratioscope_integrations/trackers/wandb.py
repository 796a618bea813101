"""W&B: histograms and scalars in the trainer's own row, the config under ``ratioscope``.

Requires ``wandb``. Nothing is ever logged with ``step=``: W&B drops a row whose step is behind its own count, so the
step of the trainer travels as ``train/global_step``, the axis that transformers' own callback defines.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import wandb

    from ratioscope.trackers.base import Row, RunContext

STEP_KEY = "train/global_step"
"""The x-axis of transformers' ``WandbCallback``."""
FINISH_TIMEOUT_S = 30.0
"""How long ``close`` waits for the upload of a run of our own; W&B itself sets no limit."""

_logger = logging.getLogger("ratioscope")


class WandbTracker:
    """Writes to the run that the trainer or the user opened, else to one of its own."""

    name: ClassVar[str] = "wandb"
    background: ClassVar[bool] = False
    package: ClassVar[str] = "wandb"

    def __init__(self) -> None:
        self._run: wandb.Run | None = None
        self._owned = False
        self._merges = False
        self._place = "no run yet"

    def open(self, run: RunContext) -> bool:
        """Attaches to the live run; opens one in project ``WANDB_PROJECT`` where neither trainer nor user did.

        Returns:
            False if the trainer reports to W&B and its run is not there yet.
        """
        import wandb

        if self._run is None:
            live = wandb.run
            if live is None and run.reporter is not None:
                return False
            self._owned = live is None
            self._merges = run.reporter is not None
            self._run = live if live is not None else _start(run)
            self._place = _place(self._run)
        config: Any = self._run.config
        config.update({"ratioscope": dict(run.config)}, allow_val_change=True)
        return True

    def write(self, row: Row) -> None:
        """Sends one window as one row, or as part of the row that the trainer's callback is about to log."""
        import wandb

        if self._run is None:
            return
        data: dict[str, Any] = dict(row.scalars)
        for key, bins in row.histograms.items():
            data[key] = wandb.Histogram(np_histogram=(bins.counts.tolist(), bins.edges.tolist()))
        if self._merges:
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


def _start(run: RunContext) -> wandb.Run:
    import wandb

    if run.output_dir is not None:
        run.output_dir.mkdir(parents=True, exist_ok=True)
    project = os.environ.get("WANDB_PROJECT") or "ratioscope"
    started = wandb.init(project=project, name=run.run_name, dir=run.output_dir)
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
