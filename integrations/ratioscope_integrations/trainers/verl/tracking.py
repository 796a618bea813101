"""verl's ``Tracking``: which of its loggers have a tracker of ours, and what becomes of the rest."""

from __future__ import annotations

import logging
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from ratioscope.config.lookup import UNKNOWN, lookup
from ratioscope.trackers.base import Tracker, grouped
from ratioscope.trackers.registry import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ratioscope.trackers.base import Row, RunContext

_logger = logging.getLogger("ratioscope")


def report_to_of(tracking: Any) -> list[str | Tracker]:
    """The trackers that go with the loggers of a ``Tracking``.

    Args:
        tracking: verl's ``Tracking``, whose loggers are open.

    Returns:
        The names of those that ratioscope has a tracker for, and one tracker that sends scalars through
        ``tracking.log`` to all others, such as the console.

    Raises:
        TypeError: if it is something else.
    """
    loggers = getattr(tracking, "logger", None)
    if not isinstance(loggers, dict) or not callable(getattr(tracking, "log", None)):
        msg = f"got tracking of type {type(tracking).__name__}; expected verl's Tracking"
        raise TypeError(msg)
    own = [name for name in loggers if name in names()]
    rest = [name for name in loggers if name not in own]
    return [*own, ThroughTracking(tracking, rest)] if rest else list(own)


def live_runs(tracking: Any) -> dict[str, Callable[[], object | None]]:
    """What asks for the run that each logger has opened, where its package does not tell whose run is live."""
    loggers = lookup(tracking, "logger")
    found = {"wandb": lookup(loggers, "wandb.run"), "tensorboard": lookup(loggers, "tensorboard.writer")}
    return {name: partial(_itself, run) for name, run in found.items() if run is not None and not _is_unknown(run)}


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
        self._loggers = list(loggers)

    def open(self, run: RunContext) -> bool:
        """Says what these loggers do not get; they are open."""
        listed = ", ".join(self._loggers)
        _logger.info("ratioscope: %s of verl's Tracking get scalars only: there is no tracker for them", listed)
        return True

    def write(self, row: Row) -> None:
        """Logs one window at its step."""
        tracking = self._tracking()
        if tracking is not None:
            tracking.log({**row.scalars, **grouped(row.logs)}, step=row.step, backend=self._loggers)

    def close(self) -> None:
        """Nothing: verl ends its loggers."""

    def where(self) -> str:
        """Which loggers these are."""
        return f"verl's own {', '.join(self._loggers)}"


def _itself(run: object) -> object:
    return run


def _is_unknown(value: Any) -> bool:
    return isinstance(value, str) and value == UNKNOWN
