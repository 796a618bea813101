"""What went wrong in flight: each kind said once, all of them counted, none of them raised."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("ratioscope")


class Incidents:
    """Counts incidents by kind and logs the first of each kind as a warning. Safe under threads.

    Attributes:
        counts: how often each kind happened.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def report(self, kind: str, message: str) -> None:
        """Counts the kind; logs the message if it is the first of its kind."""
        with self._lock:
            self.counts[kind] += 1
            first = self.counts[kind] == 1
        if first:
            logger.warning("ratioscope: %s (said once; training goes on)", message)

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Turns an exception of the block into an incident. Interrupts pass."""
        try:
            yield
        except Exception as error:  # the first promise: nothing of ours ends a run
            kind = f"{what}: {type(error).__name__}"
            self.report(kind, f"{what} failed: {type(error).__name__}: {error}")
