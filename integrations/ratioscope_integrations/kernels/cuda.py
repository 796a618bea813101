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
from ratioscope.top import of_advantages, powers_of
from ratioscope_integrations.kernels import cuda_exp, cuda_finish
from ratioscope_integrations.kernels.cuda_moments import moments
from ratioscope_integrations.kernels.cuda_ratios import ratios
from ratioscope_integrations.kernels.cuda_top import top_of
from ratioscope_integrations.kernels.cuda_types import (
    BLOCK,
    FIRST_COUNTS,
    FIRST_MAXIMA,
    FIRST_SUMS,
    ROW_SUMS,
    SHIFTED,
    SPAN,
    TABLES,
    WARPS,
    Batch,
    Order,
    Rows,
)
from ratioscope_integrations.kernels.proof import prove


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
        of = self._batch(observation)
        rows = Rows.of(of.n_rows, of.width, of.train.device)
        n_rows, width, n_blocks, device = of.n_rows, of.width, rows.block_keys.shape[1], of.train.device
        moments[(n_rows,)](
            of.train, of.rollout, of.mask, of.ids, of_advantages(observation), *self._powers_of(width, device),
            rows.sums, rows.counts, rows.maxima, rows.keys, rows.histograms,
            *of.strides, of.ids.stride(0), of.has_ids, width, n_rows, len(rows.histograms), TABLES,
            BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
        step = None
        if weights is not None and observation.given[2].dtype != torch.bool:
            step = observation.step_log_ratio.exp().contiguous()
        applied = of.train if weights is None else _by_row(weights)
        ratios[(n_rows,)](
            of.train, of.rollout, of.mask,
            of.train if self._own_exp else torch.sub(of.train, of.rollout).exp_().contiguous(),
            of.train if step is None else step,
            applied, of.advantages, rows.counts, rows.maxima,
            rows.sums[len(FIRST_SUMS) :], rows.counts[len(FIRST_COUNTS) :], rows.maxima[len(FIRST_MAXIMA) :],
            rows.keys, rows.histograms, rows.block_keys, rows.block_starts,
            *of.strides, applied.stride(0), *_bounds(rule), int(weights is not None), int(step is not None),
            of.has_advantages, width, n_rows, n_blocks, len(rows.histograms), TABLES,
            OWN_EXP=self._own_exp, SPAN=SPAN, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip

        largest = rows.maxima.amax(dim=1)
        totals = torch.empty(len(ROW_SUMS) + len(SHIFTED), dtype=torch.float64, device=device)
        torch.sum(rows.sums, dim=1, out=totals[: len(ROW_SUMS)])
        cuda_finish.shifted[(1,)](
            rows.sums, rows.maxima, largest, totals, n_rows, BLOCK=cuda_finish.ROWS_AT_ONCE, num_warps=8
        )
        sizes = [len(HISTOGRAMS) * N_BUCKETS, len(LENGTH_COUNTS) * N_LENGTHS]
        by_bucket, by_length = rows.histograms.sum(dim=0).split(sizes)
        by_bucket = by_bucket.view(len(HISTOGRAMS), N_BUCKETS)
        if rule is not None:
            by_bucket[-1].add_(by_bucket[0])  # what the rule changed in it
        order = self._order(device)
        state = State(
            maxima=largest.index_select(0, order.maxima),
            sums=totals.index_select(0, order.sums),
            counts=rows.counts.sum(dim=1).index_select(0, order.counts),
            histograms=by_bucket,
            lengths=by_length.view(len(LENGTH_COUNTS), N_LENGTHS),
            top=top_of(of, rows),
        )
        return Reduced(state, rows.counts[FIRST_COUNTS.index("token/n")], rows.sums[FIRST_SUMS.index("row")])

    def _batch(self, observation: Observation) -> Batch:
        """A batch as the kernels read it, without a copy where it is so already."""
        train, rollout = (_by_row(logps.float()) for logps in observation.given[:2])
        given_mask, advantages, ids = observation.given[2], observation.advantages, observation.token_ids
        return Batch(
            train=train,
            rollout=rollout,
            mask=_by_row((given_mask if given_mask.dtype == torch.bool else given_mask != 0).view(torch.uint8)),
            ids=self._powers_of(1, train.device)[0].unsqueeze(0) if ids is None else _by_row(ids),
            advantages=train if advantages is None else advantages.contiguous(),
            has_ids=int(ids is not None),
            has_advantages=int(advantages is not None),
        )

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
