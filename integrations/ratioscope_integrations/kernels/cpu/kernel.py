"""The kernel for the CPU: a batch reduced by compiled code, whose threads share its rows.

It needs numba, which vLLM brings along, and no compiler.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ratioscope.batch.observation import Observation
from ratioscope.state import histogram
from ratioscope.state.slots import N_TOKENS
from ratioscope_integrations.kernels.cpu.rows import reduce_rows
from ratioscope_integrations.kernels.cpu.state import reduced
from ratioscope_integrations.kernels.cpu.threads import n_threads, share
from ratioscope_integrations.kernels.cpu.types import (
    N_LANES,
    N_TENTHS,
    N_TURNS,
    NO_KEY,
    Batch,
    Count,
    Kept,
    Sum,
    TokenBounds,
)

if TYPE_CHECKING:
    from ratioscope.correction.bounds import Correction
    from ratioscope.correction.rule import Rule
    from ratioscope.summary.kernels import KernelResult

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_MASKS = (torch.bool, torch.uint8, torch.int32, torch.int64)
_A_THREADS_SHARE = 1 << 15
"""Tokens below which one more thread costs more than it saves."""
_AT_ONCE, _SHARES = 1 << 15, 4
"""Tokens that a thread takes at a time, at least, and how often it does: the other cores may be busy, so that shares
cannot be told beforehand."""


def make() -> CpuKernel:
    """Compiles the kernel.

    Raises:
        ImportError: if numba is not installed.
    """
    kernel = CpuKernel()
    rows = torch.zeros(1, 1)
    kernel(Observation.of(rows, rows, rows.bool()), None, None)  # a call compiles
    return kernel


class CpuKernel:
    """Reduces a batch of float32 or narrower log-probabilities on the CPU.

    Left to the plain path: lists with missing tokens, masks of another kind than bool or integer, and batches with a
    log-ratio beyond 300 nats.
    """

    def __call__(
        self, observation: Observation, correction: Rule | None, applied: torch.Tensor | None
    ) -> KernelResult | None:
        """As :class:`ratioscope.summary.kernels.Kernel` has it."""
        train, rollout, mask = observation.given
        bounds = None if correction is None else correction.bounds
        token_bounds = bounds if bounds is not None and bounds.level == "token" else None
        wants_log_ratio = bounds is not None and bounds.level == "sequence"  # the rule sums it as the step does
        weights = applied.detach() if applied is not None and token_bounds is not None else None
        fits = (
            train.numel() > 0
            and train.dtype in _FLOATS
            and rollout.dtype in _FLOATS
            and mask.dtype in _MASKS
            and observation.absent is None
            and (weights is None or (weights.dtype == torch.float32 and weights.shape == train.shape))
        )
        if not fits:
            return None
        rule = _token_bounds(token_bounds)
        given = _Given.of(observation, weights, wants_log_ratio=wants_log_ratio)
        found = _kept(given, rule)
        if found is None:
            return None
        if wants_log_ratio:
            others = found[0].counts[:, [Count.inf, Count.positive_logp]]  # which the step takes as they are
            observation.take_log_ratio(given.log_ratio, of_step=not others.any())
        return reduced(observation, rule, found)


def _token_bounds(correction: Correction | None) -> TokenBounds:
    if correction is None:
        return TokenBounds(0, *(np.float32(0.0),) * 4)
    lower, upper = (
        np.float32(infinite if bound is None else bound)
        for bound, infinite in ((correction.lower, -math.inf), (correction.upper, math.inf))
    )
    low, high = correction.log_bounds
    log_lower, log_upper = np.float32(-math.inf if low is None else low), np.float32(math.inf if high is None else high)
    return TokenBounds(1 if correction.action == "truncate" else 2, lower, upper, log_lower, log_upper)


class _Given(NamedTuple):
    """Rows as they were given, and what is made of them; without a column where there is nothing."""

    train: torch.Tensor
    rollout: torch.Tensor
    mask: torch.Tensor
    applied: torch.Tensor
    token_ids: torch.Tensor
    advantage: torch.Tensor
    log_ratio: torch.Tensor

    @classmethod
    def of(cls, observation: Observation, weights: torch.Tensor | None, *, wants_log_ratio: bool) -> _Given:
        train, rollout, mask = observation.given
        nothing, ids = torch.zeros(len(train), 0), observation.token_ids
        return cls(
            train,
            rollout,
            mask,
            applied=nothing if weights is None else weights,
            token_ids=nothing.to(torch.int64) if ids is None else ids,
            advantage=torch.zeros(len(train)) if observation.advantages is None else observation.advantages,
            log_ratio=torch.zeros(train.shape) if wants_log_ratio else nothing,
        )

    def split(self, step: int) -> list[_Given]:
        """The same, ``step`` rows at a time."""
        return [_Given(*parts) for parts in zip(*(tensor.split(step) for tensor in self), strict=True)]

    def arrays(self, ratio: torch.Tensor) -> Batch:
        """Arrays as the compiled functions take them; ``ratio`` is where the rows' ratios go."""
        train, rollout = self.train.float(), self.rollout.float()
        return Batch(
            train=_array(train),
            rollout=_array(rollout),
            mask=_array(_bytes(self.mask)),
            ratio=torch.sub(train, rollout, out=ratio[: len(train)]).exp_().numpy(),
            applied=_array(self.applied),
            token_ids=_array(self.token_ids),
            advantage=_array(self.advantage).view(np.int32),
            log_ratio=self.log_ratio.numpy(),
        )


def _kept(given: _Given, rule: TokenBounds) -> list[Kept] | None:
    """What each thread found, all of them in the same arrays of rows; None if a row does not fit."""
    n_rows, width = given.train.shape
    # All or one: OpenMP ends the threads that a smaller team leaves out, and torch would have to start them again.
    n = n_threads() if n_rows * width >= n_threads() * _A_THREADS_SHARE else 1
    sums, counts = np.zeros((n_rows, len(Sum))), np.zeros((n_rows, len(Count)), np.int64)
    kept = [
        Kept(
            sums=sums,
            counts=counts,
            histograms=np.zeros((N_LANES + 1, histogram.N_BUCKETS), np.int32),
            places=np.zeros((3, N_TURNS * N_TENTHS + 1)),
            keys=np.full(N_TOKENS, NO_KEY),
            where=np.zeros((3, N_TOKENS), np.int64),
            logps=np.zeros((3, N_TOKENS), np.float32),
            valid=np.empty(width, np.uint8),
            narrow=np.empty((5, width), np.float32),
            wide=np.empty((2, width)),
        )
        for _ in range(n)
    ]
    step = min(n_rows, max(1, _AT_ONCE // width, n_rows // (n * _SHARES)))
    ratios = torch.empty(n, step, width)
    parts = iter(zip(range(0, n_rows, step), given.split(step), strict=True))  # gives each once, whoever asks
    odd: list[int] = []

    def work(number: int) -> None:
        for start, part in parts:
            if not reduce_rows(start, part.arrays(ratios[number]), rule, kept[number]):
                odd.append(start)
                return

    share(work, n)
    return None if odd else kept


def _bytes(mask: torch.Tensor) -> torch.Tensor:
    """0 and 1 as they are; anything else is neither."""
    if mask.dtype in (torch.bool, torch.uint8):
        return mask.view(torch.uint8)
    return mask.clamp(min=-1, max=2).to(torch.uint8)


def _array(values: torch.Tensor) -> Any:
    return values.contiguous().numpy()
