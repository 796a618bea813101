"""CpuKernel: reduces a batch by compiled code whose threads share its completions."""

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
_TOKENS_PER_THREAD = 1 << 15
"""Fewest tokens for each thread; with fewer, another thread costs more than it saves."""
_TOKENS_PER_SHARE, _SHARES = 1 << 15, 4
"""Fewest tokens that a thread takes at a time, and shares per thread. Threads take the next share when they are ready,
since other work on their cores may slow some of them."""


def first_call() -> CpuKernel:
    """Returns a kernel that has reduced a batch of one token, by which its functions are compiled or found."""
    kernel = CpuKernel()
    rows = _zeros(1, 1)
    kernel(Observation.of(rows, rows, rows.bool()), None, None)
    return kernel


class CpuKernel:
    """Reduces a batch of float32 or narrower log-probabilities on the CPU.

    Declines lists with missing tokens, masks that are neither bool nor integer, and batches with a log-ratio beyond 300
    nats; the reference implementation reduces them.
    """

    def __call__(
        self, observation: Observation, correction: Rule | None, applied: torch.Tensor | None
    ) -> KernelResult | None:
        """Reduces a batch, see :class:`ratioscope.summary.kernels.Kernel`; None if it is declined."""
        bounds = None if correction is None else correction.bounds
        token_bounds = bounds if bounds is not None and bounds.level == "token" else None
        # A rule by completion sums the log-ratios itself, in the trainer's order.
        wants_log_ratio = bounds is not None and bounds.level == "sequence"
        weights = applied.detach() if applied is not None and token_bounds is not None else None
        if not _fits(observation, weights):
            return None
        rule = _token_bounds(token_bounds)
        inputs = _Inputs.from_observation(observation, weights, wants_log_ratio=wants_log_ratio)
        results = _reduce(inputs, rule)
        if results is None:
            return None
        if wants_log_ratio:
            # The trainer keeps the log-ratios of these tokens, which are 0 here.
            refused = results[0].counts[:, [Count.inf, Count.positive_logp]]
            observation.take_log_ratio(inputs.log_ratio, of_step=not refused.any())
        return reduced(observation, rule, results)


def _fits(observation: Observation, weights: torch.Tensor | None) -> bool:
    """True if the kernel is compiled for the batch's types."""
    train, rollout, mask = observation.given
    return (
        train.numel() > 0
        and train.dtype in _FLOATS
        and rollout.dtype in _FLOATS
        and mask.dtype in _MASKS
        and observation.absent is None
        and (weights is None or (weights.dtype == torch.float32 and weights.shape == train.shape))
    )


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


class _Inputs(NamedTuple):
    """Tensors of a batch, and the log-ratios to be written; an absent one has no columns."""

    train: torch.Tensor
    rollout: torch.Tensor
    mask: torch.Tensor
    applied: torch.Tensor
    token_ids: torch.Tensor
    advantage: torch.Tensor
    log_ratio: torch.Tensor

    @classmethod
    def from_observation(
        cls, observation: Observation, weights: torch.Tensor | None, *, wants_log_ratio: bool
    ) -> _Inputs:
        train, rollout, mask = observation.given
        absent, ids = _zeros(len(train), 0), observation.token_ids
        return cls(
            train,
            rollout,
            mask,
            applied=absent if weights is None else weights,
            token_ids=absent.to(torch.int64) if ids is None else ids,
            advantage=_zeros(len(train)) if observation.advantages is None else observation.advantages,
            log_ratio=_zeros(*train.shape) if wants_log_ratio else absent,
        )

    def split(self, step: int) -> list[_Inputs]:
        """Splits the batch into parts of ``step`` completions."""
        return [_Inputs(*parts) for parts in zip(*(tensor.split(step) for tensor in self), strict=True)]

    def arrays(self, ratio: torch.Tensor) -> Batch:
        """Converts to arrays for the compiled functions; the ratios are computed into ``ratio``."""
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


def _reduce(inputs: _Inputs, rule: TokenBounds) -> list[Kept] | None:
    """Reduces all completions; None if the kernel declines one of them.

    Returns:
        One result per thread; all of them share the arrays ``sums`` and ``counts``.
    """
    n_rows, width = inputs.train.shape
    # All threads or one: OpenMP ends the threads that a smaller team leaves out, and torch would start them again.
    n = n_threads() if n_rows * width >= n_threads() * _TOKENS_PER_THREAD else 1
    results = _results(n, n_rows, width)
    step = min(n_rows, max(1, _TOKENS_PER_SHARE // width, n_rows // (n * _SHARES)))
    ratios = _zeros(n, step, width)
    parts = iter(zip(range(0, n_rows, step), inputs.split(step), strict=True))  # shared: each part is taken once
    declined: list[int] = []

    def work(number: int) -> None:
        for start, part in parts:
            if not reduce_rows(start, part.arrays(ratios[number]), rule, results[number]):
                declined.append(start)
                return

    share(work, n)
    return None if declined else results


def _results(n_threads: int, n_rows: int, width: int) -> list[Kept]:
    """Allocates the results and buffers of each thread."""
    sums, counts = np.zeros((n_rows, len(Sum))), np.zeros((n_rows, len(Count)), np.int64)
    return [
        Kept(
            sums=sums,
            counts=counts,
            histograms=np.zeros((N_LANES + 1, histogram.N_BUCKETS), np.int32),
            positions=np.zeros((3, N_TURNS * N_TENTHS + 1)),
            keys=np.full(N_TOKENS, NO_KEY),
            where=np.zeros((3, N_TOKENS), np.int64),
            logps=np.zeros((3, N_TOKENS), np.float32),
            valid=np.empty(width, np.uint8),
            narrow=np.empty((5, width), np.float32),
            wide=np.empty((2, width)),
        )
        for _ in range(n_threads)
    ]


def _bytes(mask: torch.Tensor) -> torch.Tensor:
    """Mask as uint8: 0 and 1 stay, any other number becomes one above 1, for which the kernel declines the batch."""
    if mask.dtype in (torch.bool, torch.uint8):
        return mask.view(torch.uint8)
    return mask.clamp(min=-1, max=2).to(torch.uint8)


def _zeros(*shape: int) -> torch.Tensor:
    """Zeros of the type that the kernel is compiled for, whatever torch's default type and device are."""
    return torch.zeros(shape, dtype=torch.float32, device="cpu")


def _array(values: torch.Tensor) -> Any:
    return values.contiguous().numpy()
