"""Memory that observing takes on top of the batch, at its peak.

Torch's own profiler tells each allocation of its CPU allocator, whoever makes it; tracemalloc tells those of numpy and
of Python objects. The two peaks need not come at the same time, so their sum is an upper bound.
"""

from __future__ import annotations

import tracemalloc
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from torch.profiler import ProfilerActivity, profile

from benchmarks import peers
from benchmarks.harness import Row
from benchmarks.observe import FULL, HEADLINE, TARGET_CASES, ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INPUT = "one input tensor"


def peak(work: Callable[[], object]) -> int:
    """Bytes that a call of some work has allocated at its peak, beyond what there was before."""
    work()  # what is made once and kept
    return _of_torch(work) + _of_numpy(work)


def _of_torch(work: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    profiler: Any = seen.profiler
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return int(max(accumulate((event.nbytes() for event in events), initial=0)))


def _of_numpy(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def run(*, short: bool) -> Iterator[Row]:
    """At the target shapes, ours and TRL's block."""
    for case in TARGET_CASES:
        batch = case.make()
        size = batch.train.numel() * batch.train.element_size()
        works: dict[str, Callable[[], object]] = {**ours(batch), "TRL": partial(peers.trl, batch)}
        for name, work in works.items():
            got = peak(work)
            targets = {INPUT: 1.0} if name in (FULL, HEADLINE) else {}
            yield Row("memory", str(case), name, float(got), "bytes", ratios={INPUT: got / size}, targets=targets)
