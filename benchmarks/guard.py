"""Guard against regressions: compares the ratios of the short form with the committed ones in reference.json.

A ratio may grow by at most half. It is one of processor times on one thread, since other work on the machine disturbs
these the least. A ratio above its bound is measured again, and fails only if it is above in every try.
"""

from __future__ import annotations

import ctypes
import json
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import torch

from benchmarks import memory, observe, peers
from benchmarks.harness import Row
from ratioscope.summary import kernels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from benchmarks.batches import Case

PATH = Path(__file__).with_name("reference.json")
FACTOR, TRIES = 1.5, 3
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # constants of malloc.h
OVER = ("TRL", "verl", memory.INPUT)

Ratios = dict[str, float]


def ratios(rows: Iterable[Row]) -> Ratios:
    """Selects the guarded ratios of some rows, by their names in reference.json."""
    return {
        f"{row.subject} {row.case}: {row.name} / {name}": ratio
        for row in rows
        for name, ratio in row.ratios.items()
        if name in OVER and row.name in (observe.FULL, observe.HEADLINE)
    }


def worse(now: Mapping[str, float], reference: Mapping[str, float]) -> list[str]:
    """Names of the ratios that worsened by more than half."""
    return [name for name, ratio in now.items() if name in reference and ratio > FACTOR * reference[name]]


def expected() -> Ratios:
    """Committed ratios."""
    committed: Ratios = json.loads(PATH.read_text())
    return committed


def measure(cases: Iterable[Case], *, seconds: float) -> Ratios:
    """Measures the guarded ratios of some cases."""
    loaded, _ = peers.load()
    wanted = {name: peer for name, peer in loaded.items() if name in OVER}
    return ratios(
        row for case in cases for row in observe.measure(case, wanted, seconds=seconds, clock=time.process_time)
    )


def check(reference: Mapping[str, float], *, seconds: float = 2.0) -> Ratios:
    """Measures all guarded ratios with the CPU kernel, each as the best of up to three tries.

    Raises:
        RuntimeError: if there is no CPU kernel.
    """
    if not kernels.ready("cpu"):
        msg = "got no kernel for the CPU; expected numba to be installed and RATIOSCOPE_KERNELS not to be 0"
        raise RuntimeError(msg)
    cases = observe.cases(short=True)
    _keep_memory()
    with _one_thread():
        best = measure(cases, seconds=seconds) | ratios(memory.run(short=True))
        for _ in range(TRIES - 1):
            bad = worse(best, reference)
            again = [case for case in cases if any(name.startswith(f"observe {case}:") for name in bad)]
            for name, ratio in measure(again, seconds=2 * seconds).items():
                best[name] = min(ratio, best[name])
    return best


def _keep_memory() -> None:
    """Lets the C library keep freed memory, where it has this setting.

    By default glibc adapts its thresholds while a process runs, and the time of TRL's block, which allocates seven
    tensors, varies by a factor of two with it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for threshold in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(threshold, 1 << 30)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with mock.patch("os.cpu_count", return_value=1):  # without OpenMP the kernel uses the cores that torch leaves
            yield
    finally:
        torch.set_num_threads(before)


def run(*, short: bool, write: bool = False) -> Iterator[Row]:  # noqa: ARG001 - every part of the benchmarks is called with `short`
    """Measures each ratio over its reference.

    Args:
        short: without effect, since the committed ratios are those of the short form.
        write: replaces the committed ratios by the measured ones.
    """
    reference = {} if write else expected()
    now = check(reference)
    if write:
        rounded = {name: round(ratio, 3) for name, ratio in now.items()}
        PATH.write_text(json.dumps(rounded, indent=1) + "\n")
        reference = rounded
    for name, ratio in now.items():
        if name in reference:
            over = {"reference": ratio / reference[name]}
            yield Row("guard", "", name, ratio, "x", ratios=over, targets={"reference": FACTOR})
