"""Runs of W&B that the tracker opens: identity, opening, location and a bounded finish."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ratioscope.incidents import log
from ratioscope_integrations.trackers.wandb.private import bound_exit, end_service

if TYPE_CHECKING:
    from collections.abc import Mapping

    import wandb

    from ratioscope.trackers.base import RunContext

STEP_KEY = "train/global_step"
"""X-axis of transformers' ``WandbCallback``."""

ROWS_BEFORE = "rows_before"
"""Entry of a run's identity: its number of rows when the tracker first opened it."""

INIT_TIMEOUT_S = 30.0
"""Seconds that W&B may try to open a run before the delivery thread tries again; W&B's own limit is 90 s."""

MIN_FREE_BYTES = 1 << 20
"""Free space that a folder needs for W&B's files. W&B regards a run that it failed to open as in use for good."""

_Resume = Literal["allow", "must", "never", "auto"]
_RESUME: dict[str, _Resume] = {"allow": "allow", "must": "must", "never": "never", "auto": "auto"}


def new_identity() -> dict[str, str]:
    """Chooses project and id of a new run, from the environment if they are set there."""
    project = os.environ.get("WANDB_PROJECT") or "ratioscope"
    if given := os.environ.get("WANDB_RUN_ID"):
        return {"run_id": given, "project": project}
    return {"run_id": secrets.token_hex(4), "project": project, ROWS_BEFORE: "0"}


def start(run: RunContext, identity: Mapping[str, str]) -> wandb.Run:
    """Opens the run of this identity, or continues it. If that fails, W&B's process is ended, so that a retry works."""
    try:
        return _start(run, identity)
    except BaseException:
        end_service(identity["run_id"])
        raise
    finally:
        bound_exit(identity["run_id"])  # again: W&B has added hooks of its own


def _start(run: RunContext, identity: Mapping[str, str]) -> wandb.Run:
    import wandb

    folder = _folder(run.output_dir)
    wandb.setup()
    bound_exit(identity["run_id"])
    settings = wandb.Settings(init_timeout=INIT_TIMEOUT_S)
    if not os.environ.get("WANDB_CONSOLE"):
        settings.console = "off"  # otherwise each print of the training waits for two of W&B's threads
    if hasattr(settings, "finish_timeout"):  # since 0.27
        settings.finish_timeout = run.close_timeout
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
    """Returns the folder for W&B's files: a temporary one if the disk is full, where W&B could not open a run."""
    if output_dir is None:
        return None
    output_dir.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(output_dir).free >= MIN_FREE_BYTES:
        return output_dir
    temporary = Path(tempfile.mkdtemp(prefix="ratioscope-wandb-"))
    log.warning("no room is left in %s, so W&B keeps its files in %s", output_dir, temporary)
    return temporary


def _resume(run: RunContext, identity: Mapping[str, str]) -> _Resume:
    """Returns ``WANDB_RESUME`` for the run that ``WANDB_RUN_ID`` names; any other run is always continued."""
    wanted = os.environ.get("WANDB_RESUME", "")
    named_by_user = run.identity is None and ROWS_BEFORE not in identity
    return _RESUME.get(wanted, "allow") if named_by_user else "allow"


def location(run: wandb.Run) -> str:
    """Returns a run's address, or the folder of an offline run with the command that uploads it."""
    if run.disabled:
        return "disabled"
    if run.offline:  # checked first, because W&B warns if an offline run is asked for its address
        folder = os.path.dirname(run.dir)
        return f"{folder}   (offline; to upload: wandb sync {shlex.quote(str(folder))})"
    return str(run.url)


def finish(run: wandb.Run, timeout: float) -> None:
    """Finishes a run, on another thread, because an absent server may block the caller for good.

    Args:
        run: a live run that the tracker opened.
        timeout: seconds that the upload of all rows may take.

    Raises:
        TimeoutError: if not everything was uploaded in time; W&B may have any part of it.
    """
    failures: list[Exception] = []

    def finish_run() -> None:
        try:
            run.finish()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=finish_run, name="ratioscope-wandb-finish", daemon=True)
    thread.start()
    thread.join(timeout + 0.5)  # since 0.27, W&B itself gives up after the timeout
    if failures and not isinstance(failures[0], TimeoutError):
        raise failures[0]
    if failures or thread.is_alive():
        msg = f"the server had not taken all of the run {timeout:.3g} s after its end"
        raise TimeoutError(msg)
