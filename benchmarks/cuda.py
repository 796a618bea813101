"""Observing on a CUDA device: no wait, few launches, near the memory's own speed. Not run where there is none.

By the kernel for CUDA, which is off unless it is asked for and is asked for here.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.batches import Case
from benchmarks.harness import Row
from benchmarks.observe import ours
from ratioscope import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NONE = "no CUDA device"
CASE = Case(512, 8192)
BYTES_PER_TOKEN = 9
"""Two float32 and a bool, each read once."""
MOST_LAUNCHES, MOST_OVER_LIMIT = 60, 3.0
ROUNDS = 20


@contextmanager
def kernel() -> Iterator[bool]:
    """Within the block the kernel for CUDA is used, if it proves itself; whether it does."""
    with mock.patch.dict(os.environ, {kernels.SWITCH: "cpu,cuda"}), mock.patch.object(kernels, "_makers", {}):
        yield kernels.ready("cuda", timeout=None)


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
    """Mean time of a call's kernels and copies on the device, without the gaps in which it waits for launches."""
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(ROUNDS):
            work()
        torch.cuda.synchronize()
    on_device = [event for event in seen.key_averages() if event.device_type == DeviceType.CUDA]
    return float(sum(event.self_device_time_total for event in on_device)) / ROUNDS / 1000


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
    least = limit(CASE)
    with kernel() as proven:
        path = "" if proven else " (the plain path: the kernel could not be made)"
        for name, work in ours(CASE.make(device="cuda")).items():
            count = launches(work)
            most = {"value": float(MOST_LAUNCHES)}
            yield Row("cuda", str(CASE), f"{name}, launches{path}", count, "count", targets=most)
            taken = milliseconds(work)
            over, targets = {"reading it once": taken / least}, {"reading it once": MOST_OVER_LIMIT}
            yield Row("cuda", str(CASE), f"{name}{path}", taken, ratios=over, targets=targets)
