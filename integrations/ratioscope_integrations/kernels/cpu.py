"""The kernel for the CPU: rows reduced by compiled code, split over the cores that torch does not use.

It needs numba, which vLLM brings along, and no compiler. Threads are started for one call and end with it, so that a
fork at any other time finds none.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Any

import numpy as np
import torch

from ratioscope import histogram
from ratioscope.correction import Correction
from ratioscope.observation import Observation
from ratioscope.token_part import TokenPart, is_by_token
from ratioscope.top import MULTIPLIERS, N_TOKENS, of_advantages, powers_of
from ratioscope_integrations.kernels.cpu_part import part
from ratioscope_integrations.kernels.cpu_rows import reduce_rows
from ratioscope_integrations.kernels.cpu_types import N_TENTHS, N_TURNS, Batch, Count, Hash, Kept, Rule, Sum

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_MASKS = (torch.bool, torch.uint8, torch.int32, torch.int64)
_A_THREADS_SHARE = 1 << 15
"""Tokens below which one more thread costs more than it saves."""
_MOST_SPARE = 3
_AT_ONCE = 1 << 14
"""Tokens that a thread takes at a time; the other cores may be busy, so that shares cannot be told beforehand."""


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
    """The token part of a batch of float32 or narrower log-probabilities on the CPU.

    Left to the plain path: lists with missing tokens, masks of another kind than bool or integer, and batches with a
    log-ratio beyond 300 nats.
    """

    def __call__(
        self, observation: Observation, correction: Correction | None, applied: torch.Tensor | None
    ) -> TokenPart | None:
        """As :class:`ratioscope.kernels.Kernel` has it."""
        train, rollout, mask = observation.given
        by_token = is_by_token(correction)
        weights = applied.detach() if applied is not None and by_token else None
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
        rule = _rule(correction)
        found = _reduced(observation, rule, weights)
        return None if found is None else part(observation, correction if by_token else None, weights, found)


def _rule(correction: Correction | None) -> Rule:
    if not is_by_token(correction):
        return Rule(0, *(np.float32(0.0),) * 4)
    lower, upper = (
        np.float32(infinite if bound is None else bound)
        for bound, infinite in ((correction.lower, -math.inf), (correction.upper, math.inf))
    )
    low, high = correction.log_bounds
    log_lower, log_upper = np.float32(-math.inf if low is None else low), np.float32(math.inf if high is None else high)
    return Rule(1 if correction.action == "truncate" else 2, lower, upper, log_lower, log_upper)


def _reduced(observation: Observation, rule: Rule, weights: torch.Tensor | None) -> list[Kept] | None:
    """What each thread found, all of them in the same arrays of rows; None if a row does not fit."""
    train, rollout, mask = observation.given
    n_rows, width = train.shape
    step, back = powers_of(width, train.device)
    hashing = Hash((step * back[0]).numpy(), np.array(MULTIPLIERS, dtype=np.int64))  # from the power of 0 on
    ids = observation.token_ids
    advantage = of_advantages(observation)
    n_threads = max(1, min(_spare_cores(), n_rows, n_rows * width // _A_THREADS_SHARE))
    sums, counts = np.zeros((n_rows, len(Sum))), np.zeros((n_rows, len(Count)), np.int64)
    kept = [
        Kept(
            sums=sums,
            counts=counts,
            histograms=np.zeros((2, histogram.N_BUCKETS), np.int64),
            places=np.zeros((3, N_TURNS * N_TENTHS + 1)),
            keys=np.full(N_TOKENS, np.iinfo(np.int64).min),
            where=np.zeros((3, N_TOKENS), np.int64),
        )
        for _ in range(n_threads)
    ]
    # A quarter of the rows at a time, so that what is made of them is far smaller than what is given.
    chunk = max(1, (n_rows + 3) // 4)
    for start in range(0, n_rows, chunk):
        rows = slice(start, start + chunk)
        part = None if weights is None else weights[rows], None if ids is None else ids[rows], advantage[rows]
        batch = _batch(train[rows].float(), rollout[rows].float(), mask[rows].to(torch.uint8), *part)
        fits = _on_threads(batch, start, rule, hashing, kept)
        del batch
        if not fits:
            return None
    return kept


def _batch(
    train: torch.Tensor,
    rollout: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor | None,
    ids: torch.Tensor | None,
    advantage: torch.Tensor,
) -> Batch:
    return Batch(
        train=_array(train),
        rollout=_array(rollout),
        mask=_array(mask),
        ratio=torch.sub(train, rollout).exp_().numpy(),
        applied=np.empty((len(train), 0), np.float32) if weights is None else _array(weights),
        token_ids=np.empty((len(train), 0), np.int64) if ids is None else _array(ids),
        advantage=advantage.numpy(),
    )


def _spare_cores() -> int:
    """One core, and those that torch leaves: its own threads keep theirs busy for a while after each operation."""
    return 1 + min(_MOST_SPARE, max(0, (os.cpu_count() or 1) - torch.get_num_threads()))


def _array(values: torch.Tensor) -> Any:
    return values.contiguous().numpy()


def _on_threads(batch: Batch, offset: int, rule: Rule, hashing: Hash, kept: list[Kept]) -> bool:
    """Lets threads take a few rows at a time, as fast as each gets on; whether all of them fit."""
    n_rows, width = batch.train.shape
    step = max(1, _AT_ONCE // width)
    starts = iter(range(0, n_rows, step))
    odd: list[int] = []

    def work(found: Kept) -> None:
        for start in starts:  # a range's iterator gives each number once, whoever asks
            odd.append(start)  # also where this raises, which on another thread nobody would hear of
            if reduce_rows(start, min(start + step, n_rows), offset, batch, rule, hashing, found):
                odd.remove(start)
            else:
                return

    threads = [threading.Thread(target=work, args=(found,), daemon=True) for found in kept[1:]]
    for thread in threads:
        thread.start()
    work(kept[0])
    for thread in threads:
        thread.join()
    return not odd
