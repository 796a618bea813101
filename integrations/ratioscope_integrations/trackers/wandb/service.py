"""W&B's own process and telemetry: they must not hold up the end of ours.

At exit W&B waits for its process for as long as that still has an upload, an opening or statistics under way, and then
for its telemetry; that is for good, or 10 s and more, where the server stays away. Where a run of ours is all that W&B
serves, this wait is bounded here.
"""

from __future__ import annotations

import atexit
import threading
import time
from contextlib import suppress
from typing import Any

EXIT_TIMEOUT_S = 1.0
"""How long W&B may take to end; what is to be uploaded was waited for before."""

_ours: set[str] = set()


def bound_exit(run_id: str) -> None:
    """Has W&B end in time when this process exits, unless it serves a run that is not ours then.

    The newest hook runs first: call it after ``wandb.setup`` and again after the run was used, because W&B registers
    hooks of its own there.

    Args:
        run_id: a run of ours.
    """
    _ours.add(run_id)
    atexit.unregister(end_service)
    atexit.register(end_service)


def end_service() -> None:
    """Ends what W&B runs, by force after the timeout; not while a run is live that is the user's to finish."""
    import wandb

    process = _process()
    if process is None or (wandb.run is not None and wandb.run.id not in _ours):
        return
    steps = [wandb.teardown, getattr(_telemetry(), "shutdown", None)]
    threads = [threading.Thread(target=_quietly, args=(step,), daemon=True) for step in steps if step is not None]
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if process.poll() is None:
        process.kill()


def _quietly(step: Any) -> None:
    with suppress(Exception):  # the process may be gone already
        step()


def _process() -> Any:
    """W&B's process if this one started it; W&B has no public name for it."""
    from wandb.sdk import wandb_setup

    found: Any = wandb_setup.singleton()
    for name in ("_connection", "_proc", "_process"):
        found = getattr(found, name, None)
    return found


def _telemetry() -> Any:
    """W&B's telemetry, in the versions that send it from this process."""
    with suppress(ImportError):
        from wandb.analytics.opentelemetry.opentelemetry_proxy import get_open_telemetry_proxy

        return get_open_telemetry_proxy()
    return None
