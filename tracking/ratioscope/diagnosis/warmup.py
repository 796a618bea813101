"""Warmup: tells growth under a rising learning rate from growth without an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ratioscope.diagnosis import thresholds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


def follows_a_warmup(values: Array) -> bool:
    """Checks that growth since the first window may come from a learning rate that rises.

    An engine that is some steps behind has a squared mismatch of the noise plus the square of the learning rate: a
    parabola while the rate rises, and then a level. Weights that never arrive have noise plus steps in random
    directions, which add up to a straight line. The fit with the smaller error decides; growth that is neither is taken
    for a warmup.

    Args:
        values: mismatch of the windows, in order.
    """
    if len(values) < thresholds.WARMUP_PARTS:
        return True
    squares = _thinned(values) ** 2
    time = np.arange(len(squares), dtype=float)
    parabolas = [np.clip(time - begin, 0.0, length) ** 2 for begin in (0.0, 1.0) for length in range(1, len(squares))]
    return min(_misfit(squares, shape) for shape in parabolas) < thresholds.WARMUP_FITS * _misfit(squares, time)


def _thinned(values: Array) -> Array:
    """Means of neighbours, at most ``WARMUP_POINTS``."""
    size = -(-len(values) // thresholds.WARMUP_POINTS)
    kept = len(values) // size * size
    means: Array = values[:kept].reshape(-1, size).mean(axis=1)
    return means


def _misfit(squares: Array, shape: Array) -> float:
    """Squared relative error of the best fit of a constant plus a multiple of a shape."""
    weights = 1.0 / squares**2
    weights = weights / weights.sum()
    x, y = shape - weights @ shape, squares - weights @ squares
    slope = max(float(weights @ (x * y)) / float(weights @ x**2), 0.0)
    return float(weights @ (y - slope * x) ** 2)
