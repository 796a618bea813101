"""Kernels: faster ways to the same state, where one is installed for a device.

A kernel is found by an entry point of its device's type in :data:`GROUP`, a function without arguments that makes it.
That may take some seconds, so it is called on a thread of its own, some time after the first batch on such a device was
observed, and the plain path is taken until it has returned. The thread may be cut off by the end of the process, and
forked, at any moment: a kernel that cannot bear this waits by hooks of its own. Counts and histograms are the same to
the bit either way, sums to 1e-12.
"""

from __future__ import annotations

import logging
import os
import time
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from ratioscope.incidents import log
from ratioscope.state.histogram import N_BUCKETS
from ratioscope.state.length_histogram import LENGTH_COUNTS, N_LENGTHS
from ratioscope.state.slots import COUNTS, GENERATIONS, HISTOGRAMS, MAXIMA, SUMS
from ratioscope.state.tables import Top
from ratioscope.threads import Worker

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation
    from ratioscope.correction.rule import Rule

GROUP = "ratioscope.kernels"
"""Entry-point group: a device's type, as in ``torch.device.type`` -> a function that makes its kernel."""

SWITCH = "RATIOSCOPE_KERNELS"
"""Environment variable: types of the devices whose kernels are used, by commas; ``0`` for only the plain path."""

DEFAULT = "cpu"
"""Its value where it is not set."""

START_AFTER_S = 30.0
"""Seconds from a device's first batch until its kernel is made: a short script has no use for one."""

LONGEST_S = 120.0
"""Seconds that :func:`ready` waits for a kernel, unless it is called with others."""


class BatchState(NamedTuple):
    """State of one batch: the fields of :class:`ratioscope.summary.summary.RatioSummary` but its correction."""

    maxima: torch.Tensor
    sums: torch.Tensor
    counts: torch.Tensor
    histograms: torch.Tensor
    lengths: torch.Tensor
    top: Top

    @classmethod
    def empty(cls, n_rows: int, device: torch.device) -> BatchState:
        """The state of a batch of completions without a column."""
        integers = torch.zeros(len(COUNTS), dtype=torch.int64, device=device)
        integers[COUNTS.index("rows_empty")] = n_rows
        maxima = torch.full((len(MAXIMA),), -torch.inf, dtype=torch.float64, device=device)
        maxima[GENERATIONS] = 1.0
        return cls(
            maxima=maxima,
            sums=torch.zeros(len(SUMS), dtype=torch.float64, device=device),
            counts=integers,
            histograms=integers.new_zeros(len(HISTOGRAMS), N_BUCKETS),
            lengths=integers.new_zeros(len(LENGTH_COUNTS), N_LENGTHS),
            top=Top.empty(device),
        )


class KernelResult(NamedTuple):
    """Result of a kernel for one batch.

    Attributes:
        state: of the batch.
        n: int64 ``(B,)`` valid tokens of each completion.
        row_d: float64 ``(B,)`` sums of log-ratios, exact and then rounded to float32.
        counts_rule: whether the state has what the rule did; otherwise it is as if there were no rule.
    """

    state: BatchState
    n: torch.Tensor
    row_d: torch.Tensor
    counts_rule: bool


class Kernel(Protocol):
    """Reduces a batch as :func:`ratioscope.summary.reduce.reduce` does."""

    def __call__(
        self, observation: Observation, correction: Rule | None, applied: torch.Tensor | None
    ) -> KernelResult | None:
        """The batch, reduced; None to leave it to the plain path."""
        ...


class _Maker:
    """One device's kernel: not yet due, being made, or made."""

    def __init__(self, device: str) -> None:
        self.kernel: Kernel | None = None
        self._device = device
        self._due = time.monotonic() + START_AFTER_S
        self._worker = Worker(self._make, name=f"ratioscope-kernel-{device}", incidents=None)

    def poll(self) -> Kernel | None:
        """The kernel, if it is made; has it made when it is due."""
        if not self._worker.was_started and time.monotonic() >= self._due:
            self.start()
        return self.kernel

    def start(self) -> None:
        """Begins to make it, once; tries again after a while where no thread can be started."""
        if not self._worker.start():
            self._due = time.monotonic() + START_AFTER_S

    def wait(self, timeout: float | None = LONGEST_S) -> None:
        """Until it is made, or cannot be."""
        self._worker.join(timeout)

    def _make(self) -> None:
        try:
            for entry in entry_points(group=GROUP, name=self._device):
                self.kernel = entry.load()()
        except Exception as error:  # whatever is wrong with it, the plain path has the same numbers
            level = logging.WARNING if SWITCH in os.environ else logging.DEBUG  # where somebody has asked for it
            log.log(level, "no kernel for %s: %s: %s", self._device, type(error).__name__, error)


_makers: dict[str, _Maker] = {}


def reduced(observation: Observation, correction: Rule | None, applied: torch.Tensor | None) -> KernelResult | None:
    """A batch reduced by its device's kernel; None if there is none, not yet, or not for this batch."""
    device = observation.given[0].device.type
    maker = _maker(device)
    kernel = None if maker is None else maker.poll()
    if maker is None or kernel is None:
        return None
    try:
        return kernel(observation, correction, applied)
    except Exception as error:
        maker.kernel = None
        log.warning("the kernel for %s failed, the plain path is taken from now on: %s", device, error)
        return None


def ready(device: str = "cpu", timeout: float | None = LONGEST_S) -> bool:
    """Has a device's kernel made at once and waits for it; whether there is one.

    Args:
        device: type of the device.
        timeout: seconds to wait at most; None for as long as it takes.
    """
    maker = _maker(device)
    if maker is None:
        return False
    maker.start()
    maker.wait(timeout)
    return maker.kernel is not None


def _maker(device: str) -> _Maker | None:
    """Returns a device's kernel maker; None if its kernel is not to be used."""
    if device not in _makers and device in os.environ.get(SWITCH, DEFAULT).replace(" ", "").split(","):
        _makers[device] = _Maker(device)
    return _makers.get(device)
