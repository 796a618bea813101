"""Incidents: failures during a run, each kind logged once, all counted, none raised.

Every module of ratioscope and of its integrations logs through ``log``, whose messages begin with ``ratioscope:``:
Python's default handler prints the message alone, without the logger's name. No message writes the prefix itself.
"""

from __future__ import annotations

import logging
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
            name = type(error).__name__
            self.report(f"{action}: {name}", f"{action} failed: {name}: {error}")
