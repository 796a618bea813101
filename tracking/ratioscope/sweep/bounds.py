"""What is known of numbers that are kept by the bucket: bounds on sums of weights after a rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ratioscope.state.histogram import BOUNDARIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ratioscope.correction.bounds import Correction

    Array = NDArray[np.float64]

_SAME_LOG = 1e-15  # what exp and log of a float64 lose together
_SUM_ROUNDING = 1e-12  # relative, of a float64 sum over many windows
_LARGEST_LOG = 700.0  # exp of it is a float64 still
_STARTS, _ENDS = np.concatenate([[-np.inf], BOUNDARIES]), np.concatenate([BOUNDARIES, [np.inf]])


@dataclass(frozen=True)
class Bounded:
    """A number that is known to lie in an interval.

    Attributes:
        value: the best guess.
        low: smallest possible.
        high: largest possible.
    """

    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """How far the true number can be from the value; 0 where it is exact."""
        return max(self.value - self.low, self.high - self.value)

    def to_json(self) -> dict[str, float]:
        """Fields as plain JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Cells:
    """The two extremes and the buckets that hold something else, ``(k,)`` each, and how the bounds divide them.

    Attributes:
        counts: how many each holds.
        start: smallest log-ratio that each can hold.
        end: largest.
        lower: logarithm of the lower bound, minus infinity for none.
        upper: logarithm of the upper bound, infinity for none.
        below: share of each that is below the lower bound: the best guess, the smallest and the largest.
        above: the same of the upper bound.
        masks: whether what is outside weighs nothing, or as much as the bound.
    """

    counts: Array
    start: Array
    end: Array
    lower: float
    upper: float
    below: tuple[Array, Array, Array]
    above: tuple[Array, Array, Array]
    masks: bool

    @classmethod
    def of(cls, counts: NDArray[np.int64], correction: Correction, minimum: float, maximum: float) -> Cells:
        """Divides the buckets, ``(N_BUCKETS,)``, of log-ratios from ``minimum`` to ``maximum``, which stand apart."""
        apart = np.array([minimum, maximum])[: int(counts.sum())]
        held = np.flatnonzero(counts)
        counts = counts.copy()
        np.subtract.at(counts, [held[0], held[-1]][: apart.size], 1)
        held = np.flatnonzero(counts)
        start = np.clip(_STARTS[held], minimum, maximum)
        end = np.clip(_ENDS[held], minimum, maximum)
        start, end = np.concatenate([apart, start]), np.concatenate([apart, end])
        low, high = correction.log_bounds
        (lower, lower_is_edge), (upper, upper_is_edge) = _at_edge(low, -math.inf), _at_edge(high, math.inf)
        width = np.where(end > start, end - start, 1.0)
        # Only at an edge does a bucket that ends there hold nothing on the bound itself, which is kept.
        all_below = end <= lower if lower_is_edge else end < lower
        all_above = start >= upper if upper_is_edge else start > upper
        below = _shares(start >= lower, all_below, (lower - start) / width)
        above = _shares(end <= upper, all_above, (end - upper) / width)
        masks = correction.action == "mask"
        number = np.concatenate([np.ones(apart.size), counts[held].astype(np.float64)])
        return cls(number, start, end, lower, upper, below, above, masks)

    @property
    def modified(self) -> tuple[Array, Array, Array]:
        """Share of each that is outside the bounds."""
        guess, smallest, largest = (np.minimum(a + b, 1.0) for a, b in zip(self.below, self.above, strict=True))
        return guess, smallest, largest

    def fraction(self, shares: tuple[Array, Array, Array]) -> Bounded:
        """A share of each as a fraction of all."""
        n = self.counts.sum()
        return Bounded(*(float(self.counts @ share / n) for share in shares))

    def weights(self, power: int, relative: float | None) -> Bounded:
        """Sum of a power of the weights after the rule.

        Args:
            power: 1 or 2.
            relative: the same sum before the rule, over that power of the largest ratio; None if unknown.
        """
        with np.errstate(over="ignore"):
            low, high = (float(self.counts @ ends) for ends in self._after(power))
            guess = self._guess(power)
            value = float(self.counts @ guess)
            largest = power * float(self.end.max())
            if relative is not None and largest < _LARGEST_LOG:
                total = float(relative) * math.exp(largest)
                change_low, change_high = (float(self.counts @ ends) for ends in self._change(power))
                rounding = _SUM_ROUNDING * total if change_low < 0.0 or change_high > 0.0 else 0.0
                if change_high - change_low + 2 * rounding < high - low:
                    value = total + float(self.counts @ (guess - _mean_power(self.start, self.end, power)))
                low = max(low, total + change_low - rounding)
                high = min(high, total + change_high + rounding)
        low = min(low, high)
        return Bounded(min(max(value, low), high), low, high)

    def _after(self, power: int) -> tuple[Array, Array]:
        """Smallest and largest power of a weight after the rule, in each bucket."""
        if not self.masks:
            start, end = (np.clip(ends, self.lower, self.upper) for ends in (self.start, self.end))
            return np.exp(power * start), np.exp(power * end)
        _, surely_out, maybe_out = self.modified
        smallest = np.where(maybe_out > 0, 0.0, np.exp(power * self.start))
        return smallest, np.where(surely_out > 0, 0.0, np.exp(power * np.minimum(self.end, self.upper)))

    def _change(self, power: int) -> tuple[Array, Array]:
        """Smallest and largest difference that the rule makes to a power of a ratio, in each bucket."""
        if not self.masks:
            after = (np.exp(power * np.clip(ends, self.lower, self.upper)) for ends in (self.end, self.start))
            low, high = (new - np.exp(power * ends) for new, ends in zip(after, (self.end, self.start), strict=True))
            return low, high
        _, surely_out, maybe_out = self.modified
        largest = np.where(self.above[2] > 0, self.end, np.minimum(self.end, self.lower))
        low = np.where(maybe_out > 0, -np.exp(power * largest), 0.0)
        return low, np.where(surely_out > 0, -np.exp(power * self.start), 0.0)

    def _guess(self, power: int) -> Array:
        """Mean power of a weight after the rule in each bucket, of log-ratios spread evenly."""
        start, end = (np.clip(ends, self.lower, self.upper) for ends in (self.start, self.end))
        kept = (1.0 - self.modified[0]) * _mean_power(start, end, power)
        if self.masks:
            return kept
        bounds = ((self.below, self.lower), (self.above, self.upper))
        return kept + sum(shares[0] * math.exp(power * bound) for shares, bound in bounds if shares[0].any())


def _shares(never: NDArray[np.bool_], always: NDArray[np.bool_], guess: Array) -> tuple[Array, Array, Array]:
    """The best guess of a share, and its smallest and largest value."""
    inner = np.where(never, 0.0, np.where(always, 1.0, np.clip(guess, 0.0, 1.0)))
    return inner, (always & ~never).astype(np.float64), (~never).astype(np.float64)


def _mean_power(start: Array, end: Array, power: int) -> Array:
    """Mean of ``exp(power * d)`` over d from start to end."""
    wide = end > start
    width = power * (np.where(wide, end, 0.0) - np.where(wide, start, 0.0))  # both may be minus infinity
    mean: Array = np.exp(power * end) * np.where(wide, -np.expm1(-width) / np.where(wide, width, 1.0), 1.0)
    return mean


def _at_edge(bound: float | None, no_bound: float) -> tuple[float, bool]:
    """A bound's logarithm, and whether it is a bucket's edge, which it then is but for rounding."""
    if bound is None:
        return no_bound, False
    after = int(np.searchsorted(BOUNDARIES, bound))
    for edge in BOUNDARIES[max(0, after - 1) : after + 1].tolist():
        if abs(bound - edge) <= _SAME_LOG * max(1.0, abs(edge)):
            return edge, True
    return bound, False
