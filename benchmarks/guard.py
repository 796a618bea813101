"""Holds the ratios of the short form to those that are committed, in reference.json.

A ratio may not worsen by more than half. Here it is one of processor times on one thread, which other work on the
machine disturbs the least. What looks worse all the same is measured again, and only what looks worse each time is.
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
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
OVER = ("TRL", "verl", memory.INPUT)

Ratios = dict[str, float]


def ratios(rows: Iterable[Row]) -> Ratios:
    """Those that are held, by what they are."""
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
    """What is committed."""
    held: Ratios = json.loads(PATH.read_text())
    return held


def measure(cases: Iterable[Case], *, seconds: float) -> Ratios:
    """Ratios of some cases of the short form."""
    found, _ = peers.load()
    wanted = {name: peer for name, peer in found.items() if name in OVER}
    return ratios(
        row for case in cases for row in observe.measure(case, wanted, seconds=seconds, clock=time.process_time)
    )


def check(reference: Mapping[str, float], *, seconds: float = 2.0) -> Ratios:
    """All ratios, each the best of up to three tries; by the CPU's kernel, which must be there."""
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
    """Has the C library keep what is freed, where it can be told to.

    Else it changes its mind within a process about giving pages back, and what TRL's block takes doubles or halves.
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
        with mock.patch("os.cpu_count", return_value=1):  # the kernel takes the cores that torch leaves
            yield
    finally:
        torch.set_num_threads(before)


def run(*, short: bool, write: bool = False) -> Iterator[Row]:
    """Each ratio over its reference; with ``write`` commits what it measures.

    Args:
        short: makes no difference; what is committed is the short form's.
        write: commit.
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
