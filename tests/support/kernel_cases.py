"""Batches for tests of a kernel, and the comparison of its state with that of the reference implementation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ratioscope.batch.observation import Observation
from ratioscope.state.slots import COUNTS, MAXIMA, SUMS

if TYPE_CHECKING:
    from ratioscope.summary.kernels import BatchState

CLOSE = 1e-12
"""Tolerance of a sum, relative to the magnitudes of its terms; counts, histograms and tables must be equal."""

_OF_EXPONENTIALS = "probability/abs_max"
"""The only maximum of exponentials: it has the tolerance of a sum, since exponentials may differ in the last bits."""
_ODD = (torch.nan, torch.inf, -torch.inf, 0.5, 0.0, -2000.0)


def difference(result: BatchState, expected: BatchState) -> str | None:
    """Describes the first difference between two states of one batch; None if there is none.

    Args:
        result: the kernel's state.
        expected: the state by the reference implementation.
    """
    exact = {name: (getattr(result, name), getattr(expected, name)) for name in ("counts", "histograms", "lengths")}
    exact |= {
        name: (getattr(result.top, name), getattr(expected.top, name)) for name in ("log_ratios", "tokens", "rows")
    }
    for name, (tensor, other) in exact.items():
        if not _equal(tensor, other):
            return f"{name} differ"
    sums = dict(zip(SUMS, expected.sums.tolist(), strict=True))
    n = int(expected.counts[COUNTS.index("token/n")])
    squares = sums["logp/xx"] + sums["logp/yy"]
    # Sums of values of both signs may cancel. By Cauchy-Schwarz sqrt(n * squares) bounds the sums of log-probabilities.
    terms = n + sums["token/abs_d"] + math.sqrt(n * squares) + sums["token/w"]
    for name, value, right in zip(SUMS, result.sums.tolist(), expected.sums.tolist(), strict=True):
        # A sum of -0 would change when a sum of 0 is added to it.
        if not _close(value, right, terms) or (value == 0.0 and math.copysign(1.0, value) < 0.0):
            return f"the sum {name} is {value!r}, not {right!r}"
    for name, value, right in zip(MAXIMA, result.maxima.tolist(), expected.maxima.tolist(), strict=True):
        if value != right and not (name == _OF_EXPONENTIALS and _close(value, right, 1.0)):
            return f"the maximum {name} is {value!r}, not {right!r}"
    return None


def batch(
    n_rows: int, width: int, *, seed: int, scale: float, strange: bool, dtype: torch.dtype = torch.float32
) -> Observation:
    """Makes completions with holes, with padding and without any token; a fifth of the tokens have a ratio of 1.

    Args:
        n_rows: number of completions.
        width: columns.
        seed: of the random generator. Odd seeds give a mask of bool, multiples of 3 no token ids, multiples of 5 no
            advantages.
        scale: standard deviation of log-ratios, in nats.
        strange: adds NaN, infinities, positive log-probabilities, and very small ones.
        dtype: of the log-probabilities.
    """
    random = torch.Generator().manual_seed(seed)

    def some(share: float) -> torch.Tensor:
        return torch.rand(n_rows, width, generator=random) < share

    rollout = (-3.0 * torch.rand(n_rows, width, generator=random)).to(dtype)
    train = (rollout + scale * torch.randn(n_rows, width, generator=random)).to(dtype)
    equal = some(0.2)
    train[equal] = rollout[equal]
    if strange:
        for value in _ODD:
            odd = some(0.05)
            rollout[odd] = value
            train[odd & some(0.5)] = value
        train[some(0.02)] = torch.nan
    start, stop = (torch.randint(0, width + 1, (n_rows, 1), generator=random) for _ in range(2))
    column = torch.arange(width)
    mask = (column >= start) & (column < stop) | (column < stop // 2) & some(0.7)
    return Observation.of(
        train,
        rollout,
        mask if seed % 2 else mask.long(),
        advantages=torch.randn(n_rows, generator=random) if seed % 5 else None,
        token_ids=torch.randint(0, 99, (n_rows, width), generator=random) if seed % 3 else None,
    )


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors are equal, where any NaN equals any other."""
    return bool(((tensor == other) | ((tensor != tensor) & (other != other))).all())


def _close(value: float, expected: float, terms: float) -> bool:
    if not math.isfinite(expected):
        return value == expected or (math.isnan(value) and math.isnan(expected))
    return abs(value - expected) <= CLOSE * max(abs(expected), terms)
