"""Incidents: failures during a run, each kind logged once, all counted, none raised.

Every module of ratioscope and of its integrations logs through ``log``, whose messages begin with ``ratioscope:``:
Python's default handler prints the message alone, without the logger's name. No message writes the prefix itself.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ratioscope.secrets import outgoing

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping


class _Prefixed(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self.logger.name}: {msg}", kwargs


class _Outgoing(logging.Filter):
    """Removes secrets and control characters from every line: exception texts quote URLs, headers and paths."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = outgoing(record.getMessage()), None
        return True


_logger = logging.getLogger("ratioscope")
_logger.addFilter(_Outgoing())

log = _Prefixed(_logger)
"""The package's only logger."""


class Incidents:
    """Counts incidents by kind and logs the first of each kind as a warning. Safe under threads.

    Attributes:
        counts: number of incidents of each kind.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.RLock()  # reentrant, since a signal handler may interrupt a report with another one

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copy needs; it makes a lock of its own."""
        return {"counts": self.counts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.counts = state["counts"]

    def report(self, kind: str, message: str) -> None:
        """Counts an incident, and logs the message if it is the first of its kind."""
        with self._lock:
            self.counts[kind] += 1
            is_first = self.counts[kind] == 1
        if is_first:
            log.warning("%s (reported once; training continues)", message)

    @contextmanager
    def guard(self, action: str) -> Iterator[None]:
        """Turns an exception of the block into an incident. Interrupts pass.

        Args:
            action: names what the block does, in the incident's kind and message.
        """
        try:
            yield
        except Exception as error:  # a failure of ratioscope never ends a run
            self._failed(action, error)

    @contextmanager
    def isolate(self, action: str) -> Iterator[None]:
        """Like :meth:`guard`, for code of a tracker: ``SystemExit`` and the like become incidents too.

        An interrupt of the user and what a signal handler raises pass.
        """
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or _is_from_handler(error):
                raise
            self._failed(action, error)

    def _failed(self, action: str, error: BaseException) -> None:
        name = type(error).__name__
        self.report(f"{action}: {name}", f"{action} failed: {name}: {error}")


def _is_from_handler(error: BaseException) -> bool:
    """Returns whether a signal handler raised an exception: it interrupted the tracker, which did not raise it."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {_code(handler) for handler in handlers if callable(handler)} - {None}
    step = error.__traceback__
    while step is not None and step.tb_frame.f_code not in codes:
        step = step.tb_next
    return step is not None


def _code(handler: Any) -> Any:
    """Returns the code of a function, of a method, of a partial or of an object that can be called."""
    function = getattr(handler, "func", handler)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
