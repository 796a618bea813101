"""Whether a kernel gives what the plain path gives: what its tests ask, and a kernel of itself before it is used."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from ratioscope.batch.observation import Observation
from ratioscope.correction.bounds import Correction
from ratioscope.state.slots import COUNTS, MAXIMA, SUMS
from ratioscope.summary.reduce import reduce

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratioscope.summary.kernels import BatchState, Kernel

CLOSE = 1e-12
"""By this share of the terms that a sum is of it may differ; counts, histograms and tables may not at all."""

_NEAR = "probability/abs_max"
"""The one maximum that is of exponentials, and therefore as a sum is."""
_SHAPES = (
    (1, 1, 0.0, False),
    (5, 300, 0.1, True),
    (40, 131, 1e-3, False),
    (3, 140, 60.0, True),
    (9, 64, 1e-9, True),
    (2, 1100, 0.5, True),
)
_MANY = 32
_FAR = (88.6, 89.0, 355.5, 709.0, 712.0, 1e6, 1e30, -88.0, -104.0, -355.5, -746.0, -1e6, -1e30)
RULES = (
    None,
    Correction("token", "truncate", upper=1.2),
    Correction("token", "truncate", lower=0.9, upper=1.1),
    Correction("token", "mask", lower=0.8, upper=1.3),
    Correction("token", "truncate", lower=0.5),
)
"""One of each kind that a kernel sees to itself."""
_ODD = (torch.nan, torch.inf, -torch.inf, 0.5, 0.0, -2000.0)


class Case(NamedTuple):
    """A batch, a rule that a kernel sees to itself, and the weights that were applied."""

    observation: Observation
    correction: Correction | None
    applied: torch.Tensor | None


def difference(found: BatchState, right: BatchState) -> str | None:
    """The first thing in which a kernel's state is not as it should be, in words; None if there is nothing.

    Args:
        found: the kernel's.
        right: the plain path's, of the same batch.
    """
    exact = {name: (getattr(found, name), getattr(right, name)) for name in ("counts", "histograms", "lengths")}
    exact |= {name: (getattr(found.top, name), getattr(right.top, name)) for name in ("log_ratios", "tokens", "rows")}
    for name, (one, other) in exact.items():
        if not _same(one, other):
            return f"{name} differ"
    sums = dict(zip(SUMS, right.sums.tolist(), strict=True))
    n = int(right.counts[COUNTS.index("token/n")])
    squares = sums["logp/xx"] + sums["logp/yy"]
    terms = n + sums["token/abs_d"] + math.sqrt(n * squares) + sums["token/w"]
    for name, value, expected in zip(SUMS, found.sums.tolist(), right.sums.tolist(), strict=True):
        # A sum is never -0, to which adding nothing would be a change.
        if not _close(value, expected, terms) or (value == 0.0 and math.copysign(1.0, value) < 0.0):
            return f"the sum {name} is {value!r}, not {expected!r}"
    for name, value, expected in zip(MAXIMA, found.maxima.tolist(), right.maxima.tolist(), strict=True):
        if value != expected and not (name == _NEAR and _close(value, expected, 1.0)):
            return f"the maximum {name} is {value!r}, not {expected!r}"
    return None


def prove(kernel: Kernel, device: torch.device) -> None:
    """Runs a kernel and the plain path over a few batches; the caller's kernels must not be in use yet.

    Raises:
        RuntimeError: if the two do not agree.
    """
    for number, (observation, correction, applied) in enumerate(cases(device)):
        found = kernel(observation, correction, applied)
        right = reduce(observation, correction, applied=applied)
        wrong = "it was declined" if found is None else difference(found.state, right)
        if wrong is not None:
            msg = f"the kernel for {device.type} does not agree with the plain path on batch {number}: {wrong}. "
            msg += "The plain path is taken. Please report it, with the device and the version of torch."
            raise RuntimeError(msg)


def cases(device: torch.device) -> Iterator[Case]:
    """A few batches with everything odd that a batch can have, the same every time."""
    for seed, (n_rows, width, scale, strange) in enumerate(_SHAPES):
        given = on(batch(n_rows, width, seed=seed, scale=scale, strange=strange), device)
        for rule in RULES if n_rows < _MANY else RULES[:2]:
            applied = None
            if rule is not None and seed % 2:
                applied = rule.apply(rule.raw_ratio(given.step_log_ratio))
                applied[:, ::7] += 0.5
            yield Case(given, rule, applied)
    for number, size in enumerate(_FAR):
        rollout = torch.linspace(-3.0, 0.0, 6, device=device).view(2, 3)
        train = rollout + 0.25
        train[0, 1] = size
        yield Case(Observation.of(train, rollout, rollout < 1.0), RULES[number % len(RULES)], None)


def batch(
    n_rows: int, width: int, *, seed: int, scale: float, strange: bool, dtype: torch.dtype = torch.float32
) -> Observation:
    """Rows of every kind, on the CPU: holes, padding, nothing at all; some tokens equal, and some of no use.

    Args:
        n_rows: how many.
        width: columns.
        seed: what it is made from; odd ones have a mask of bool, multiples of 3 no token ids, of 5 no advantages.
        scale: standard deviation of log-ratios, in nats.
        strange: whether there are NaN, infinities, positive log-probabilities, and very small ones.
        dtype: the log-probabilities'.
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
            where = some(0.05)
            rollout[where] = value
            train[where & some(0.5)] = value
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


def on(observation: Observation, device: torch.device) -> Observation:
    """The same batch on another device."""
    train, rollout, mask = (part.to(device) for part in observation.given)
    advantages, token_ids = (
        None if part is None else part.to(device) for part in (observation.advantages, observation.token_ids)
    )
    return Observation(given=(train, rollout, mask), absent=None, advantages=advantages, token_ids=token_ids)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal; one NaN is like another."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _close(value: float, expected: float, terms: float) -> bool:
    if not math.isfinite(expected):
        return value == expected or (math.isnan(value) and math.isnan(expected))
    return abs(value - expected) <= CLOSE * max(abs(expected), terms)
