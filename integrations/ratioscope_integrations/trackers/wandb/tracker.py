"""W&B: histograms and scalars in the trainer's own row, the config under ``ratioscope``.

Requires ``wandb``. ``run.log`` only hands a row to W&B's own process, which uploads it some time later, so a row of a
run of our own counts as delivered when the run was finished, or when W&B itself says that it has it. Nothing is
logged with ``step=`` but into a run whose owner does so too: W&B drops a row whose step is behind its own count, so the
step of the trainer travels as ``train/global_step``, the axis that transformers' own callback defines.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ratioscope.trackers.base import grouped
from ratioscope_integrations.trackers.wandb.service import bound_exit
from ratioscope_integrations.trackers.wandb.summaries import Summaries
from ratioscope_integrations.trackers.wandb.tables import Ending

if TYPE_CHECKING:
    from collections.abc import Mapping

    import wandb

    from ratioscope.event import Event
    from ratioscope.trackers.base import Row, RunContext

STEP_KEY = "train/global_step"
"""The x-axis of transformers' ``WandbCallback``."""
ROWS_BEFORE = "rows_before"
"""In a run's identity: how many rows it had when we first opened it."""
INIT_TIMEOUT_S = 30.0
"""How long W&B may try to open a run of our own before the delivery thread starts over; W&B's own limit is 90 s."""
ENDING_SHARE = 0.25
"""Part of the patience at the end that the histogram table may take; the rest is for the upload of all rows."""

ALERT_WAIT_S = 60.0
"""How long W&B takes another alert of the same title for the same one."""
MAX_ALERT = 2000
ROOM = 1 << 20
"""Bytes of free space below which W&B opens no run in a folder: one that fails to open is in use to W&B for good."""

_logger = logging.getLogger("ratioscope")

_Resume = Literal["allow", "must", "never", "auto"]
_RESUME: dict[str, _Resume] = {"allow": "allow", "must": "must", "never": "never", "auto": "auto"}


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
        self._summaries: Summaries | None = None
        self._ending = Ending()
        self.identity: Mapping[str, str] | None = None
        self.received: int | None = None

    @property
    def buffers(self) -> bool:
        """Whether rows are only handed to W&B's process so far; offline that is all there is to do."""
        return self._owned and self._run is not None and not self._run.offline and not self._run.disabled

    def open(self, run: RunContext) -> bool:
        """Attaches to the live run; where neither trainer nor user opened one, ``connect`` will.

        Returns:
            False if the trainer reports to W&B and its run is not there yet.
        """
        import wandb

        live: Any = run.live or wandb.run
        if live is None and run.reporter is not None:
            return False
        self._context = run
        self._owned = live is None
        if live is not None:
            self._attach(live, run)
            self.identity = {"run_id": live.id, "project": live.project}
        else:
            self.identity = run.identity or _new_identity()
        return True

    def attaches(self) -> bool:
        """Whether the user has a live run."""
        import wandb

        return wandb.run is not None

    def connect(self) -> dict[str, str]:
        """Opens a run of our own in project ``WANDB_PROJECT``, or continues the one of an earlier process or try.

        The run's id is chosen before, so that an answer which got lost leaves no second run. W&B tells how many rows
        a continued run has, which is then believed; offline it cannot.
        """
        if self._run is None and self._context is not None and self.identity is not None:
            run = _start(self._context, self.identity)
            before = self.identity.get(ROWS_BEFORE)
            if run.offline or run.disabled:
                pass
            elif before is not None:
                self.received = run.starting_step - int(before)
            elif self._context.identity is None:  # the run that WANDB_RUN_ID names
                self.identity = {**self.identity, ROWS_BEFORE: str(run.starting_step)}
            self._attach(run, self._context)
        return dict(self.identity or {})

    def write(self, row: Row) -> None:
        """Sends one window as one row, or as part of the row that the trainer's callback is about to log."""
        import wandb

        if self._run is None:
            self.connect()
        if self._run is None or self._context is None:
            return
        data: dict[str, Any] = {**row.scalars, **grouped(row.logs)}
        if self._summaries is not None:
            self._summaries.define(data)
        for key, bins in row.histograms.items():
            data[key] = wandb.Histogram(np_histogram=(bins.counts.tolist(), bins.edges.tolist()))
        if self._context.reporter is not None:
            self._run.log(data, commit=False)
        elif self._context.live is not None:  # logged to with steps: a row that is behind them would be dropped
            self._run.log({**data, STEP_KEY: row.step}, step=max(row.step, self._run.step))
        else:
            self._run.log({**data, STEP_KEY: row.step})
        self._ending.add(row)

    def alert(self, event: Event) -> None:
        """Sends an alert, if it is news; where it arrives the user's W&B settings say. It is only handed on."""
        if self._run is not None and event.is_news:
            level = "INFO" if event.status == "gone" else {"warning": "WARN", "error": "ERROR"}[event.level]
            self._run.alert(event.title, event.text[:MAX_ALERT], level=level, wait_duration=ALERT_WAIT_S)

    def close(self) -> None:
        """Gives the run its table, and finishes it if it is ours.

        Raises:
            TimeoutError: if not everything was uploaded in the time there was; W&B may have any part of it.
        """
        context, self._context = self._context, None
        run, self._run = self._run, None
        if run is None or context is None:
            return
        start = time.monotonic()
        self._ending.send(run, ENDING_SHARE * context.patience)
        if self._owned:
            bound_exit(run.id)
            _finish(run, context.patience - (time.monotonic() - start))

    def where(self) -> str:
        """The run's address, or the folder of an offline run."""
        return self._place

    def _attach(self, run: wandb.Run, context: RunContext) -> None:
        self._run = run
        self._place = _place(run)
        stepped = self._owned or context.reporter is not None
        riding = context.reporter is not None
        self._summaries = Summaries(run, step_metric=STEP_KEY if stepped else None, riding=riding)
        continued = run.resumed or (self._owned and context.identity is not None)
        self._ending = Ending(context.output_dir if continued else None)
        config: Any = run.config
        config.update({"ratioscope": dict(context.config)}, allow_val_change=True)


def _new_identity() -> dict[str, str]:
    project = os.environ.get("WANDB_PROJECT") or "ratioscope"
    if given := os.environ.get("WANDB_RUN_ID"):
        return {"run_id": given, "project": project}
    return {"run_id": secrets.token_hex(4), "project": project, ROWS_BEFORE: "0"}


def _start(run: RunContext, identity: Mapping[str, str]) -> wandb.Run:
    import wandb

    folder = _folder(run.output_dir)
    wandb.setup()
    bound_exit(identity["run_id"])
    settings = wandb.Settings(init_timeout=INIT_TIMEOUT_S)
    if not os.environ.get("WANDB_CONSOLE"):
        settings.console = "off"  # else every print of the training waits for two threads of W&B's
    if hasattr(settings, "finish_timeout"):  # since 0.27
        settings.finish_timeout = run.patience
        settings.finish_timeout_raises = True
    started = wandb.init(
        project=identity.get("project"),
        id=identity["run_id"],
        resume=_resume(run, identity),
        name=run.run_name,
        dir=folder,
        settings=settings,
    )
    started.define_metric(STEP_KEY)
    started.define_metric("*", step_metric=STEP_KEY, step_sync=True)
    return started


def _folder(output_dir: Path | None) -> Path | None:
    """Where W&B keeps its files: it opens no run where it cannot, so from a full disk they go elsewhere."""
    if output_dir is None:
        return None
    output_dir.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(output_dir).free >= ROOM:
        return output_dir
    elsewhere = Path(tempfile.mkdtemp(prefix="ratioscope-wandb-"))
    _logger.warning("no room is left in %s, so W&B keeps its files in %s", output_dir, elsewhere)
    return elsewhere


def _resume(run: RunContext, identity: Mapping[str, str]) -> _Resume:
    """What ``WANDB_RESUME`` says of the run that ``WANDB_RUN_ID`` names; a run of our own is always continued."""
    wanted = os.environ.get("WANDB_RESUME", "")
    theirs = run.identity is None and ROWS_BEFORE not in identity
    return _RESUME.get(wanted, "allow") if theirs else "allow"


def _place(run: wandb.Run) -> str:
    if run.disabled:
        return "disabled"
    if run.offline:  # asked before the address, which W&B warns that an offline run does not have
        folder = os.path.dirname(run.dir)
        return f"{folder}   (offline; to upload: wandb sync {folder})"
    return str(run.url)


def _finish(run: wandb.Run, patience: float) -> None:
    """Finishes a run on a thread of its own, because a server that stays away may hold the caller for good."""
    failures: list[Exception] = []

    def finish() -> None:
        try:
            run.finish()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=finish, name="ratioscope-wandb-finish", daemon=True)
    thread.start()
    thread.join(patience + 0.5)  # W&B itself gives up after the patience, if it is new enough
    if failures and not isinstance(failures[0], TimeoutError):
        raise failures[0]
    if failures or thread.is_alive():
        msg = f"the server had not taken all of the run {patience:.3g} s after its end"
        raise TimeoutError(msg)
