"""Private parts of W&B, needed to end its process and telemetry in time when this process exits.

At exit W&B waits for its process as long as an upload, an opening or statistics are under way, and then for its
telemetry. If the server does not answer, that takes more than 15 s or never ends, also after a ``finish`` with a
timeout, and W&B has no public setting for it. If W&B serves only runs of the tracker, the wait is bounded here.

All private names stand in the functions from ``_singleton`` on. They return nothing for a version that lacks them; W&B
then ends as it does by itself.
"""

from __future__ import annotations

import atexit
import gc
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_TIMEOUT_S = 0.5
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


def end_service(run_id: str | None = None, *, timeout: float = EXIT_TIMEOUT_S) -> None:
    """Ends W&B's process, by force after the timeout, unless a run is live that it has to serve further.

    Args:
        run_id: the only run of the tracker that may be live, before the exit: W&B's process keeps a run that it failed
            to open as in use for good, so that only another process can open it. None at the exit, for all.
        timeout: seconds to wait for its own end; 0 where the end of this process must not be held up.
    """
    import wandb

    live = {run.id for run in _active_runs()} | (set() if wandb.run is None else {wandb.run.id})
    if live - (_run_ids if run_id is None else {run_id}):
        return
    process, telemetries = _process(), _telemetries()
    for part in (part for each in telemetries for part in (each, *_providers(each))):
        atexit.unregister(part.shutdown)  # each waits for the server by itself
    if process is not None and process.poll() is not None:
        process = None  # ended already
    steps = [*([] if process is None else [wandb.teardown]), *(each.shutdown for each in telemetries)]
    threads = [threading.Thread(target=_quietly, args=(step,), daemon=True) for step in steps]
    deadline = time.monotonic() + timeout
    with suppress(RuntimeError):  # no thread can be started
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    if process is not None and process.poll() is None:
        process.kill()


def _quietly(step: Callable[[], object]) -> None:
    with suppress(BaseException):  # the process may have ended already; W&B raises SystemExit then
        step()


def _singleton() -> Any:
    """Returns W&B's state in this process; None before ``wandb.setup``, or without this private name."""
    with suppress(ImportError):
        from wandb.sdk import wandb_setup

        return getattr(wandb_setup, "_singleton", None)
    return None


def _active_runs() -> list[Any]:
    """Returns the live runs of this process, as far as W&B tells."""
    return list(getattr(_singleton(), "_active_runs", ()))


def _process() -> Any:
    """Returns W&B's process if this one started it; None in versions without these private names."""
    with suppress(AttributeError):
        return _singleton()._connection._proc._process
    return None


def _telemetries() -> list[Any]:
    """Returns W&B's senders of telemetry, of which each ``init`` makes one and keeps it only for the exit."""
    module = sys.modules.get("wandb.analytics.opentelemetry.opentelemetry_proxy")
    kind = getattr(module, "OpenTelemetryProxy", None)
    return [] if kind is None else [each for each in gc.get_objects() if type(each) is kind]


def _providers(telemetry: Any) -> list[Any]:
    """Returns the parts of a sender of telemetry that have exit hooks of their own."""
    parts = (getattr(telemetry, name, None) for name in ("_meter_provider", "_logger_provider"))
    return [part for part in parts if part is not None]
