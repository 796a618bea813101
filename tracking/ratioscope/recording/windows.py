"""Windows: what was observed since the last flush, one state for each split."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ratioscope.record import Record
from ratioscope.recording.ranks import all_merge, world_size
from ratioscope.state.slots import GENERATIONS
from ratioscope.summary.host import common_correction
from ratioscope.summary.summary import RatioSummary

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch.distributed as dist

    from ratioscope.correction.rule import Correction
    from ratioscope.summary.host import HostSummary


MOST_APART = 8
"""Batches that a window keeps apart before it merges them; all at once costs little more than two."""


class Windows:
    """The open window of each split, on the device of its last batch.

    Args:
        correction: the rule; None to watch raw ratios only.
        group: process group to merge over; None for the default one.
    """

    def __init__(self, correction: Correction | None, group: dist.ProcessGroup | None) -> None:
        self._correction = correction
        self._group = group
        self._open: dict[str, list[RatioSummary]] = {}
        self._seconds: dict[str, float] = {}
        self.observe_s = 0.0
        """Seconds that observing took this thread, in the window that gave the newest record."""
        self.stop = False
        """Whether a rank has asked for an end; the same on every rank after each ``close``."""

    def add(self, split: str, summary: RatioSummary) -> None:
        """Adds a batch.

        Raises:
            ValueError: if it follows another rule than the window; which keeps what it has.
        """
        with self._timed(split):
            window = self._open.setdefault(split, [])
            for earlier in window:
                common_correction(earlier.correction, summary.correction)
            window.append(summary)
            if len(window) > MOST_APART:
                window[:] = [_merged(window)]

    @contextmanager
    def counting_failure(self, split: str) -> Iterator[None]:
        """Counts an exception of the block in the window, and lets it pass; the block's time counts either way."""
        try:
            with self._timed(split):
                yield
        except Exception:
            self._open[split] = [self.take(split).failed()]
            raise

    def take(self, split: str) -> RatioSummary:
        """This rank's part of a window, which begins anew."""
        window = self._open.pop(split, None)
        return _merged(window) if window else RatioSummary.empty(self._correction)

    def close(self, split: str, *, step: int, stop: bool = False) -> Record | None:
        """Closes a window, merged over ranks; every rank must call it. None if no rank observed a batch.

        Drift without a batch, of steps that use a generation again, stays for the window's next record.

        Args:
            split: the window's.
            step: the trainer's.
            stop: that this rank asks for an end, of which all hear by it.
        """
        own = self.take(split)
        summary, self.stop = all_merge(own, group=self._group, flag=stop or self.stop)
        if not summary.count("errors") and not summary.maxima[GENERATIONS]:
            if summary.count("drift/n"):
                self._open[split] = [own]
            return None
        self.observe_s = self._seconds.pop(split, 0.0)
        return Record(
            step=step,
            split=split,
            time=time.time(),
            scalars=summary.metrics(),
            summary=summary,
            world_size=world_size(self._group),
            events=tuple(_events(summary)),
        )

    @contextmanager
    def _timed(self, split: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[split] = self._seconds.get(split, 0.0) + time.perf_counter() - start


def _merged(window: list[RatioSummary]) -> RatioSummary:
    """All of a window, on the device of its last batch."""
    first, *others = window
    return first.to(window[-1].maxima.device).merge(*others)


def _events(summary: HostSummary) -> Iterator[str]:
    if failures := summary.count("errors"):
        yield f"observations that failed and are not in this record: {failures}"
    if differing := summary.count("disagreements"):
        yield f"{differing} of the trainer's weights are not what the rule gives; corrected statistics withheld"
