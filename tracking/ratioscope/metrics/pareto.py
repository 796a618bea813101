"""Pareto k-hat: how heavy the upper tail of importance weights is, by a generalised Pareto fit to their largest.

The tail's size and the prior follow Vehtari, Simpson, Gelman, Yao and Gabry, "Pareto smoothed importance sampling",
JMLR 25(72), 2024; the fit is Zhang and Stephens, "A new and efficient estimation method for the generalized Pareto
distribution", Technometrics 51(3), 2009.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_WEIGHTS = 25
"""Fewer have a tail of fewer than 5."""

_LARGEST_LOG = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float64).tiny)


def tail_size(n: int) -> int:
    """Number of the ``n`` weights that are fitted: the smaller of n / 5 and 3 sqrt(n), rounded down."""
    return math.floor(min(n / 5, 3.0 * math.sqrt(n)))


def pareto_k(largest: NDArray[np.float64], n: int) -> float | None:
    """k-hat of ``n`` weights, from the logarithms of their largest ones.

    Args:
        largest: float64, descending; at least one more than the tail has.
        n: number of weights in all.

    Returns:
        The shape; None where it means nothing: fewer than 25 weights, too few of the largest at hand, a logarithm
            beyond float32 (an infinite weight fits deceptively well), or a tail whose lowest quarter is equal to the
            weight below it or 1e-308 of the largest.
    """
    size = tail_size(n)
    if n < MIN_WEIGHTS or size + 1 > len(largest) or not np.abs(largest[: size + 1]).max() < _LARGEST_LOG:
        return None
    tail = largest[:size]
    excess = -np.exp(tail - tail[0]) * np.expm1(largest[size] - tail)
    return fit_shape(excess[::-1])


def fit_shape(excess: NDArray[np.float64]) -> float | None:
    """Shape of the generalised Pareto distribution of these excesses, drawn towards 0.5 as if by ten more of them.

    Args:
        excess: float64, ascending.

    Returns:
        The shape; None if the lowest quarter or all of them are equal.
    """
    n = len(excess)
    quarter, largest = excess[int(n / 4 + 0.5) - 1], excess[-1]
    if quarter < _SMALLEST or excess[0] == largest:
        return None
    grid = np.arange(1, 30 + int(math.sqrt(n)) + 1)
    theta = 1.0 / largest + (1.0 - np.sqrt(len(grid) / (grid - 0.5))) / (3.0 * quarter)
    shapes = np.log1p(-theta[:, None] * excess).mean(axis=1)
    likelihood = n * (np.log(-theta / shapes) - shapes - 1.0)
    weight = np.exp(likelihood - likelihood.max())
    mean = (theta * weight).sum() / weight.sum()
    shape = np.log1p(-mean * excess).mean()
    return float((n * shape + 10 * 0.5) / (n + 10))
