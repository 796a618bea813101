"""Threads that ratioscope starts: all are made here, may fail to start, and are waited for only within a bound.

A signal handler may run between any two lines of the training thread and call ``close`` or ``relay``. So nothing here
holds a lock that the handler could wait for: a flag is a reentrant queue, and a call that interrupts another one of the
same recorder is made after it.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratioscope.incidents import Incidents

_T = TypeVar("_T")


class Flag:
    """Flag for which one thread waits. Unlike ``threading.Event`` it may be set by a signal handler at any moment."""

    def __init__(self) -> None:
        self._is_set = False
        self._queue: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Sets the flag and wakes the thread that waits."""
        self._is_set = True
        if self._queue.empty():
            self._queue.put(None)

    def clear(self) -> None:
        """Takes the flag back."""
        self._is_set = False
        with suppress(Empty):
            while True:
                self._queue.get_nowait()

    def is_set(self) -> bool:
        """Returns whether the flag is set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the flag is set, at most for the timeout in seconds; may return earlier."""
        if not self._is_set:
            with suppress(Empty):
                self._queue.get(timeout=None if timeout is None else max(0.0, timeout))


class Worker:
    """Daemon thread that is started once, or not at all where the system refuses a thread.

    Args:
        work: called on the thread.
        name: the thread's name.
        incidents: receives one warning if the thread cannot be started; None to start it or not without a word.
    """

    def __init__(self, work: Callable[[], None], *, name: str, incidents: Incidents | None) -> None:
        self._work = work
        self._name = name
        self._incidents = incidents
        self._claims: dict[str, int] = {}
        self._thread: threading.Thread | None = None

    @property
    def was_started(self) -> bool:
        """True once the thread was started, also after its end."""
        return self._thread is not None

    def start(self) -> bool:
        """Starts the thread unless it was started before; returns False if the system refuses, to be tried again."""
        if self._thread is not None:
            return True
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except Exception as error:
            if self._incidents is None:
                return False
            text = f"no thread can be started ({error}); the journal gets every record, but trackers and the diagnosis "
            text += "wait for a thread. Raise the limit of processes and threads (ulimit -u, the container's pids "
            self._incidents.report("no thread", f"{text}limit), and deliver the rest with ratioscope sync")
            return False
        self._thread = self._thread or thread
        return True

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the end of the thread, at most for the timeout in seconds; returns whether no thread runs."""
        thread = self._thread
        if thread is None or thread is threading.current_thread() or not thread.is_alive():
            return True
        thread.join(None if timeout is None else max(0.0, timeout))
        return not thread.is_alive()

    def _run(self) -> None:
        # An interrupt inside ``start`` may leave a running thread that nobody has stored; a second one ends here.
        if self._claims.setdefault("owner", threading.get_ident()) != threading.get_ident():
            return
        self._thread = threading.current_thread()
        self._work()


class OneAtATime:
    """Makes calls one at a time. A call that interrupts another one, from a signal handler, is made right after it."""

    def __init__(self) -> None:
        self._is_busy = False
        self._later: deque[Callable[[], object]] = deque()

    def run(self, call: Callable[[], _T]) -> _T | None:
        """Makes a call and returns its result; None if it has to wait for the call that it interrupts."""
        if self._is_busy:
            self._later.append(call)
            return None
        try:
            self._is_busy = True
            return call()
        finally:
            self._is_busy = False
            if self._later:
                self.run(self._later.popleft())

    def free(self) -> None:
        """Takes the call in progress as ended, at the exit of the process, when nothing can be in progress."""
        self._is_busy = False
