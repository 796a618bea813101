"""Times stages by wrapping the methods that perform them, without changing the timed code."""

from __future__ import annotations

import functools
import statistics
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Stages:
    """Seconds in each stage, for a series of flushes or steps.

    Args:
        methods: stage -> its class or module, and the name of its method or function.
        clock: returns seconds; ``time.thread_time`` leaves out waiting and sleeping.
    """

    def __init__(
        self, methods: Mapping[str, tuple[Any, str]], *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._methods = methods
        self._clock = clock
        self._now = dict.fromkeys(methods, 0.0)
        self._times: dict[str, list[float]] = {name: [] for name in (*methods, "whole")}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Times the stages within the block."""
        raw = {name: vars(owner)[attribute] for name, (owner, attribute) in self._methods.items()}
        for name, (owner, attribute) in self._methods.items():
            setattr(owner, attribute, self._timed(name, raw[name]))
        try:
            yield
        finally:
            for name, (owner, attribute) in self._methods.items():
                setattr(owner, attribute, raw[name])

    def flush(self, flush: Callable[[], object]) -> None:
        """Times one flush, as a whole and by stage."""
        self._now = dict.fromkeys(self._methods, 0.0)
        start = self._clock()
        flush()
        self.end(whole=self._clock() - start)

    def end(self, *, whole: float) -> None:
        """Stores the times since the last call and resets them.

        Args:
            whole: seconds of the whole flush or step.
        """
        for name, seconds in (*self._now.items(), ("whole", whole)):
            self._times[name].append(seconds)
        self._now = dict.fromkeys(self._methods, 0.0)

    def medians(self, *, skip: int) -> dict[str, float]:
        """Median milliseconds by stage, without the first ``skip`` entries."""
        return {name: 1000.0 * statistics.median(times[skip:]) for name, times in self._times.items()}

    def _timed(self, name: str, raw: Any) -> Any:
        called = raw.__func__ if isinstance(raw, classmethod) else raw

        @functools.wraps(called)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._clock()
            try:
                return called(*args, **kwargs)
            finally:
                self._now[name] += self._clock() - start

        return classmethod(timed) if isinstance(raw, classmethod) else timed
