"""W&B's own process: it must not hold up the end of ours.

At exit W&B waits for its process for as long as that still has an upload, an opening or statistics under way, which is
for good where the server stays away. Where a run of ours is all that it serves, this wait is bounded here.
"""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress
from typing import Any

EXIT_TIMEOUT_S = 2.0
"""How long W&B's process may take to end; what is to be uploaded was waited for before."""


_ours: set[str] = set()


def bound_exit(run_id: str) -> None:
    """Has W&B's process ended in time when ours exits, unless it serves a run that is not ours then.

    Call it after ``wandb.setup``, whose own hook runs later then.

    Args:
        run_id: a run of ours.
    """
    _ours.add(run_id)
    atexit.unregister(end_service)
    atexit.register(end_service)


def end_service() -> None:
    """Ends W&B's process, by force after the timeout; not while a run is live that is the user's to finish."""
    import wandb

    process = _process()
    if process is None or (wandb.run is not None and wandb.run.id not in _ours):
        return
    thread = threading.Thread(target=_tear_down, name="ratioscope-wandb-exit", daemon=True)
    thread.start()
    thread.join(EXIT_TIMEOUT_S)
    if thread.is_alive():
        process.kill()
        thread.join(EXIT_TIMEOUT_S)


def _tear_down() -> None:
    import wandb

    with suppress(Exception):  # it may be gone already
        wandb.teardown()


def _process() -> Any:
    """W&B's process if this one started it; W&B has no public name for it."""
    from wandb.sdk import wandb_setup

    with suppress(AttributeError):
        return wandb_setup.singleton()._connection._proc._process
    return None
