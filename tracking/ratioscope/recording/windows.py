"""Windows: the batches since the last flush, one window for each split."""

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

    from ratioscope.correction.rule import Rule
    from ratioscope.summary.host import HostSummary


MOST_UNMERGED = 8
"""Batches that a window holds before it merges them; merging all of them at once costs little more than two."""


class Windows:
    """The open window of each split, on the device of its last batch.

    Args:
        correction: the rule; None to watch raw ratios only.
        group: process group to merge over; None for the default one.
    """

    def __init__(self, correction: Rule | None, group: dist.ProcessGroup | None) -> None:
        self._correction = correction
        self._group = group
        self._open: dict[str, list[RatioSummary]] = {}
        self._seconds: dict[str, float] = {}
        self.observe_s = 0.0
        """Seconds that observing took this thread, in the window of the newest record."""
        self.stop = False
        """True once a rank requested a stop; identical on all ranks after each ``close``."""

    def add(self, split: str, summary: RatioSummary) -> None:
        """Adds a batch.

        Raises:
            ValueError: if the batch's rule is not the window's. The window stays as it was.
        """
        with self._timed(split):
            window = self._open.setdefault(split, [])
            for earlier in window:
                common_correction(earlier.correction, summary.correction)
            window.append(summary)
            if len(window) > MOST_UNMERGED:
                window[:] = [_merged(window)]

    @contextmanager
    def counting_failure(self, split: str) -> Iterator[None]:
        """Counts an exception of the block in the window and lets it pass; adds the block's time in either case."""
        try:
            with self._timed(split):
                yield
        except Exception:
            self._open[split] = [self.take(split).failed()]
            raise

    def take(self, split: str) -> RatioSummary:
        """Returns this rank's part of a window and empties the window."""
        window = self._open.pop(split, None)
        return _merged(window) if window else RatioSummary.empty(self._correction)

    def close(self, split: str, *, step: int, stop: bool = False) -> Record | None:
        """Closes a window, merged over ranks; every rank must call it. Returns None if no rank observed a batch.

        Drift without a batch (steps that reuse a generation) stays for the window's next record.

        Args:
            split: the window to close.
            step: the trainer's global step.
            stop: True if this rank requests a stop; the request is shared with all ranks.
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

    def forget(self) -> None:
        """Empties every window, and takes a requested stop back."""
        self._open.clear()
        self._seconds.clear()
        self.stop = False

    @contextmanager
    def _timed(self, split: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[split] = self._seconds.get(split, 0.0) + time.perf_counter() - start


def _merged(window: list[RatioSummary]) -> RatioSummary:
    """Merges all batches of a window, on the device of its last batch."""
    first, *others = window
    return first.to(window[-1].maxima.device).merge(*others)


def _events(summary: HostSummary) -> Iterator[str]:
    if failures := summary.count("errors"):
        yield f"observations that failed and are not in this record: {failures}"
    if differing := summary.count("disagreements"):
        yield f"{differing} of the trainer's weights are not what the rule gives; corrected statistics withheld"
