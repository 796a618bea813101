"""Observing on a CUDA device: no wait, few launches, near the memory's own speed. Not run where there is none."""

from __future__ import annotations

import statistics
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.batches import Case
from benchmarks.harness import Row
from benchmarks.observe import FULL, HEADLINE, ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NONE = "no CUDA device"
CASE = Case(512, 8192)
BYTES_PER_TOKEN = 9
"""Two float32 and a bool, each read once."""
MOST_LAUNCHES, MOST_OVER_LIMIT = 60, 3.0
ROUNDS = 20


@contextmanager
def no_wait() -> Iterator[None]:
    """Within the block, whatever waits for the device raises."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def launches(work: Callable[[], object]) -> int:
    """Kernels that a call of some work launches."""
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return sum(event.count for event in seen.key_averages() if "LaunchKernel" in event.key)


def milliseconds(work: Callable[[], object]) -> float:
    """Median time of a call on the device."""
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return float(statistics.median(times[ROUNDS // 4 :]))


def limit(case: Case) -> float:
    """Milliseconds that reading a batch once takes at the speed at which the device copies."""
    source = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    per_byte = milliseconds(lambda: target.copy_(source)) / (2 * source.numel())
    return BYTES_PER_TOKEN * case.tokens * per_byte


def run(*, short: bool) -> Iterator[Row]:
    """Launches, and the time against that of reading the batch once."""
    if not torch.cuda.is_available():
        yield Row("cuda", str(CASE), "everything", None, note=f"not run: {NONE}")
        return
    works = ours(CASE.make(device="cuda"))
    least = limit(CASE)
    for name in (FULL, HEADLINE):
        count = launches(works[name])
        yield Row("cuda", str(CASE), f"{name}, launches", count, "count", targets={"value": MOST_LAUNCHES})
        taken = milliseconds(works[name])
        over = {"reading it once": taken / least}
        targets = {"reading it once": MOST_OVER_LIMIT}
        yield Row("cuda", str(CASE), name, taken, ratios=over, targets=targets)
