"""Private parts of W&B, needed to end its process and telemetry in time when this process exits.

At exit W&B waits for its process as long as an upload, an opening or statistics are under way, and then for its
telemetry. If the server does not answer, that takes more than 15 s or never ends, also after a ``finish`` with a
timeout, and W&B has no public setting for it. If W&B serves only runs of the tracker, the wait is bounded here.

All private names stand in ``_process`` and ``_telemetry``. Both return None for a version that lacks them; W&B then
ends as it does by itself.
"""

from __future__ import annotations

import atexit
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_TIMEOUT_S = 1.0
"""Seconds that W&B may take to end; the upload of rows was waited for before."""

_run_ids: set[str] = set()


def bound_exit(run_id: str) -> None:
    """Bounds W&B's end when this process exits, unless it then serves a run that the tracker did not open.

    The newest exit hook runs first, and W&B registers hooks in ``setup`` and while a run is used: call it after each.

    Args:
        run_id: id of a run that the tracker opened.
    """
    _run_ids.add(run_id)
    atexit.unregister(end_service)
    atexit.register(end_service)


def end_service() -> None:
    """Ends W&B's process, by force after the timeout, unless a run is live that the user has to finish."""
    import wandb

    process = _process()
    if process is None or (wandb.run is not None and wandb.run.id not in _run_ids):
        return
    telemetry = _telemetry()
    steps = [wandb.teardown, *([] if telemetry is None else [telemetry.shutdown])]
    threads = [threading.Thread(target=_quietly, args=(step,), daemon=True) for step in steps]
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if process.poll() is None:
        process.kill()


def _quietly(step: Callable[[], object]) -> None:
    with suppress(Exception):  # the process may have ended already
        step()


def _process() -> Any:
    """Returns W&B's process if this one started it; None in versions without these private names."""
    with suppress(ImportError, AttributeError):
        from wandb.sdk import wandb_setup

        singleton: Any = wandb_setup.singleton()
        return singleton._connection._proc._process
    return None


def _telemetry() -> Any:
    """Returns W&B's telemetry; None in versions that do not send it from this process."""
    with suppress(ImportError):
        from wandb.analytics.opentelemetry.opentelemetry_proxy import get_open_telemetry_proxy

        return get_open_telemetry_proxy()
    return None
