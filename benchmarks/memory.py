"""Peak memory of observing, beyond the batch itself.

Torch's profiler records the allocations of its CPU allocator, tracemalloc those of numpy and of Python objects. The two
peaks need not coincide, so their sum is an upper bound.
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
    """Bytes allocated at the peak of a call, beyond those allocated before it."""
    work()  # allocates caches, which are not counted
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


def run(*, short: bool) -> Iterator[Row]:  # noqa: ARG001 - every part of the benchmarks is called with `short`
    """Measures observing and TRL's block at the target shapes."""
    for case in TARGET_CASES:
        batch = case.make()
        size = batch.train.numel() * batch.train.element_size()
        works: dict[str, Callable[[], object]] = {**ours(batch), "TRL": partial(peers.trl, batch)}
        for name, work in works.items():
            allocated = peak(work)
            targets = {INPUT: 1.0} if name in (FULL, HEADLINE) else {}
            yield Row(
                "memory", str(case), name, float(allocated), "bytes", ratios={INPUT: allocated / size}, targets=targets
            )
