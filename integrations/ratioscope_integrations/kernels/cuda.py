"""The kernel for CUDA: two passes over a batch's tokens and two small kernels after them, in Triton.

It needs Triton, which torch's CUDA builds bring along. It has been tested in Triton's interpreter and compiled for
GPUs, so :func:`make` proves it on the device at hand before it is used.
"""

# pyright: reportCallIssue=false, reportArgumentType=false
# A launch takes options beside what the kernel itself takes.

from __future__ import annotations

import math

import torch
import triton

from ratioscope.correction import Correction
from ratioscope.histogram import N_BUCKETS
from ratioscope.lengths import LENGTH_COUNTS, N_LENGTHS
from ratioscope.observation import Observation
from ratioscope.slots import HISTOGRAMS
from ratioscope.state import Reduced, State
from ratioscope.token_part import is_by_token
from ratioscope.top import N_LOG_RATIOS, N_ROWS, N_TOKENS, Top, of_advantages, powers_of
from ratioscope.worst import ROW_COLUMNS, TOKEN_COLUMNS
from ratioscope_integrations.kernels import cuda_exp, cuda_finish
from ratioscope_integrations.kernels.cuda_moments import moments
from ratioscope_integrations.kernels.cuda_ratios import ratios
from ratioscope_integrations.kernels.cuda_types import (
    BLOCK,
    FIRST_COUNTS,
    FIRST_MAXIMA,
    FIRST_SUMS,
    ROW_COUNTS,
    ROW_MAXIMA,
    ROW_SUMS,
    SHIFTED,
    SPAN,
    TABLES,
    WARPS,
    Order,
)
from ratioscope_integrations.kernels.proof import prove

_COPIES = 64
"""Copies of the histograms, so that rows seldom wait for each other."""
_MOST_AT_ONCE, _CHUNK = 1 << 14, 1 << 12
"""Keys among which torch finds the largest in few launches, and how many it is given at a time where there are more."""


def make() -> CudaKernel:
    """Compiles the kernel and proves it on the device that this process uses.

    Raises:
        RuntimeError: if there is no such device, or the kernel does not give there what the plain path gives.
    """
    if not torch.cuda.is_available():
        msg = "got no CUDA device; expected one to compile the kernel for. The plain path is taken."
        raise RuntimeError(msg)
    # A thread's own device is the first one until it says otherwise, whichever of them this process uses.
    index = max(range(torch.cuda.device_count()), key=torch.cuda.memory_reserved)
    device = torch.device("cuda", index)
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):  # training's need not wait for it
        kernel = CudaKernel(own_exp=cuda_exp.is_torchs(device))
        prove(kernel, device)
    return kernel


class CudaKernel:
    """A batch of any floating-point log-probabilities, reduced on its device without a host sync.

    Left to the plain path: lists with missing tokens, batches without a token, and applied weights of another shape or
    type than the rule's.

    Args:
        own_exp: whether the kernel's own exponential has the bits of torch's; else torch takes it beforehand.
    """

    def __init__(self, *, own_exp: bool) -> None:
        self._own_exp = own_exp
        self._orders: dict[torch.device, Order] = {}
        self._powers: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self, observation: Observation, correction: Correction | None, applied: torch.Tensor | None
    ) -> Reduced | None:
        """As :class:`ratioscope.kernels.Kernel` has it."""
        shape = observation.given[0].shape
        rule = correction if is_by_token(correction) else None
        weights = applied.detach() if applied is not None and rule is not None else None
        odd = weights is not None and (weights.dtype != torch.float32 or weights.shape != shape)
        if odd or not shape.numel() or observation.absent is not None:
            return None
        with torch.cuda.device_of(observation.given[0]):
            return self._reduced(observation, rule, weights)

    def _reduced(self, observation: Observation, rule: Correction | None, weights: torch.Tensor | None) -> Reduced:
        train, rollout = (_by_row(logps.float()) for logps in observation.given[:2])
        given_mask, advantages, ids = observation.given[2], observation.advantages, observation.token_ids
        mask = _by_row((given_mask if given_mask.dtype == torch.bool else given_mask != 0).view(torch.uint8))
        n_rows, width = train.shape
        n_blocks, device = triton.cdiv(width, SPAN), train.device
        order, (powers, inverse) = self._order(device), self._powers_of(width, device)
        no_floats, no_integers = train, powers  # stand for what there is not
        ids = no_integers.unsqueeze(0) if ids is None else _by_row(ids)
        scores = no_floats if advantages is None else advantages.contiguous()
        has_ids, has_advantages = int(observation.token_ids is not None), int(advantages is not None)

        sums = torch.empty(len(ROW_SUMS), n_rows, dtype=torch.float64, device=device)
        maxima = torch.empty(len(ROW_MAXIMA), n_rows, dtype=torch.float64, device=device)
        counts = torch.empty(len(ROW_COUNTS), n_rows, dtype=torch.int64, device=device)
        keys = torch.empty(3, n_rows, dtype=torch.int64, device=device)
        copies = min(n_rows, _COPIES)
        histograms = torch.zeros(copies, TABLES, dtype=torch.int64, device=device)
        block_keys = torch.empty(n_rows, n_blocks, dtype=torch.int64, device=device)
        block_starts = torch.empty(n_rows, n_blocks, dtype=torch.int32, device=device)
        strides = train.stride(0), rollout.stride(0), mask.stride(0)
        moments[(n_rows,)](
            train, rollout, mask, ids, of_advantages(observation), powers, inverse,
            sums, counts, maxima, keys, histograms,
            *strides, ids.stride(0), has_ids, width, n_rows, copies, TABLES, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
        step = None
        if weights is not None and given_mask.dtype != torch.bool:
            step = observation.step_log_ratio.exp().contiguous()
        applied = no_floats if weights is None else _by_row(weights)
        ratios[(n_rows,)](
            train, rollout, mask,
            no_floats if self._own_exp else torch.sub(train, rollout).exp_().contiguous(),
            no_floats if step is None else step,
            applied, scores, counts, maxima,
            sums[len(FIRST_SUMS) :], counts[len(FIRST_COUNTS) :], maxima[len(FIRST_MAXIMA) :],
            keys, histograms, block_keys, block_starts,
            *strides, applied.stride(0), *_bounds(rule), int(weights is not None), int(step is not None),
            has_advantages, width, n_rows, n_blocks, copies, TABLES,
            OWN_EXP=self._own_exp, SPAN=SPAN, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip

        largest = maxima.amax(dim=1)
        totals = torch.empty(len(ROW_SUMS) + len(SHIFTED), dtype=torch.float64, device=device)
        torch.sum(sums, dim=1, out=totals[: len(ROW_SUMS)])
        cuda_finish.shifted[(1,)](sums, maxima, largest, totals, n_rows, BLOCK=cuda_finish.ROWS_AT_ONCE, num_warps=8)

        best = _largest(keys, min(N_LOG_RATIOS, n_rows))
        rows = best[2, :N_TOKENS].contiguous()
        worst = block_keys.index_select(0, rows).view(1, -1)
        blocks = _largest(worst, min(N_TOKENS, worst.shape[1])).view(-1)
        token_keys = torch.empty(len(blocks), SPAN, dtype=torch.int64, device=device)
        positions = torch.empty(len(blocks), SPAN, dtype=torch.int32, device=device)
        cuda_finish.candidates[(len(blocks),)](
            train, rollout, mask, counts, rows, blocks, block_starts, token_keys, positions,
            *strides, width, n_rows, n_blocks, BLOCK=SPAN, num_warps=WARPS,
        )  # fmt: skip
        found = _largest(token_keys.view(1, -1), N_TOKENS).view(-1)
        top = Top(
            torch.empty(N_LOG_RATIOS, dtype=torch.float64, device=device),
            torch.empty(N_TOKENS, len(TOKEN_COLUMNS), dtype=torch.float64, device=device),
            torch.empty(N_ROWS, len(ROW_COLUMNS), dtype=torch.float64, device=device),
        )
        cuda_finish.tables[(1,)](
            train, rollout, mask, ids, scores, sums, counts, maxima, best, rows, blocks, token_keys, positions, found,
            top.log_ratios, top.tokens, top.rows,
            *strides, ids.stride(0), has_ids, has_advantages, width, n_rows, n_blocks, best.shape[1], len(found),
            BLOCK=SPAN, num_warps=WARPS,
        )  # fmt: skip

        by_bucket, by_length = histograms.sum(dim=0).split(
            [len(HISTOGRAMS) * N_BUCKETS, len(LENGTH_COUNTS) * N_LENGTHS]
        )
        by_bucket = by_bucket.view(len(HISTOGRAMS), N_BUCKETS)
        if rule is not None:
            by_bucket[-1] += by_bucket[0]  # what the rule changed in it
        state = State(
            maxima=largest.index_select(0, order.maxima),
            sums=totals.index_select(0, order.sums),
            counts=counts.sum(dim=1).index_select(0, order.counts),
            histograms=by_bucket,
            lengths=by_length.view(len(LENGTH_COUNTS), N_LENGTHS),
            top=top,
        )
        return Reduced(state, counts[FIRST_COUNTS.index("token/n")], sums[FIRST_SUMS.index("row")])

    def _order(self, device: torch.device) -> Order:
        if device not in self._orders:
            self._orders[device] = Order.on(device)
        return self._orders[device]

    def _powers_of(self, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """For rows of this width and more: what is there for the widest so far."""
        known = self._powers.get(device)
        if known is None or len(known[0]) < width:
            known = self._powers[device] = powers_of(triton.next_power_of_2(width), device)
        return known


def _by_row(values: torch.Tensor) -> torch.Tensor:
    """The same, with neighbours of a row beside each other."""
    return values if values.stride(-1) == 1 else values.contiguous()


def _bounds(rule: Correction | None) -> tuple[int, float, float, float, float]:
    """What a rule at the level of tokens does, 0 being nothing, and where, infinite for an open side."""
    if rule is None:
        return 0, -math.inf, math.inf, -math.inf, math.inf
    log_lower, log_upper = rule.log_bounds
    below = (-math.inf if bound is None else bound for bound in (rule.lower, log_lower))
    above = (math.inf if bound is None else bound for bound in (rule.upper, log_upper))
    (lower, log_low), (upper, log_high) = below, above
    return 1 if rule.action == "truncate" else 2, lower, upper, log_low, log_high


def _largest(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Where each row's largest keys are, in order; int64 ``(rows, count)``."""
    size = keys.shape[1]
    if size <= _MOST_AT_ONCE:
        return keys.topk(count, dim=1).indices
    padded = torch.nn.functional.pad(keys, (0, -size % _CHUNK), value=torch.iinfo(torch.int64).min)
    some = padded.view(len(keys), -1, _CHUNK).topk(count, dim=2)
    starts = torch.arange(0, padded.shape[1], _CHUNK, device=keys.device).unsqueeze(-1)
    where = (some.indices + starts).flatten(1)
    return where.gather(1, some.values.flatten(1).topk(count, dim=1).indices)
