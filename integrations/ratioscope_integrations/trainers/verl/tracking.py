"""verl's ``Tracking``: trackers for its loggers, and one that passes scalars to those without a tracker."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from ratioscope.config.lookup import is_unknown, lookup
from ratioscope.incidents import log
from ratioscope.trackers.base import Tracker, grouped
from ratioscope.trackers.registry import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ratioscope.trackers.base import Row, RunContext


def report_to_of(tracking: Any) -> list[str | Tracker]:
    """Returns the trackers that go with the loggers of a ``Tracking``.

    Args:
        tracking: verl's ``Tracking``, whose loggers are open.

    Returns:
        The names of those that ratioscope has a tracker for, and one tracker that sends scalars through
        ``tracking.log`` to all others, such as the console.

    Raises:
        TypeError: if ``tracking`` is something else.
    """
    loggers = getattr(tracking, "logger", None)
    if not isinstance(loggers, dict) or not callable(getattr(tracking, "log", None)):
        msg = f"got tracking of type {type(tracking).__name__}; expected verl's Tracking"
        raise TypeError(msg)
    known = [name for name in loggers if name in names()]
    rest = [name for name in loggers if name not in known]
    return [*known, ThroughTracking(tracking, rest)] if rest else list(known)


def live_runs(tracking: Any) -> dict[str, Callable[[], object | None]]:
    """Maps loggers whose package does not expose the live run to functions that return the logger's run."""
    loggers = lookup(tracking, "logger")
    runs = {"wandb": lookup(loggers, "wandb.run"), "tensorboard": lookup(loggers, "tensorboard.writer")}
    return {name: partial(_itself, run) for name, run in runs.items() if run is not None and not is_unknown(run)}


class ThroughTracking(Tracker):
    """Sends scalars through ``Tracking.log`` to loggers that ratioscope has no tracker for.

    The ``Tracking`` is not kept alive: verl ends its loggers when the last reference goes.

    Args:
        tracking: verl's ``Tracking``.
        loggers: the names of the loggers.
    """

    name = "verl"

    def __init__(self, tracking: Any, loggers: Iterable[str]) -> None:
        self._tracking = weakref.ref(tracking)
        self.loggers = list(loggers)

    def open(self, run: RunContext) -> bool:
        """Logs which loggers receive scalars only. They are already open."""
        listed = ", ".join(self.loggers)
        log.info("%s of verl's Tracking get scalars only: there is no tracker for them", listed)
        return True

    def write(self, row: Row) -> None:
        """Logs one window at its step."""
        tracking = self._tracking()
        if tracking is not None:
            tracking.log({**row.scalars, **grouped(row.logs)}, step=row.step, backend=self.loggers)

    def close(self) -> None:
        """Does nothing: verl ends its loggers."""

    def where(self) -> str:
        """Names the loggers."""
        return f"verl's own {', '.join(self.loggers)}"


def _itself(run: object) -> object:
    return run
