"""Bounds on sums of weights, computed from histogram buckets.

A histogram holds how many log-ratios fall into a bucket, not their values. Each function here therefore returns the
smallest and largest result that any values inside the buckets can give, and a best guess that spreads them evenly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ratioscope.state.histogram import BOUNDARIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ratioscope.correction.bounds import Correction

    Array = NDArray[np.float64]

_SAME_LOG = 1e-15  # absolute (relative above 1): the rounding of exp followed by log in float64
_SUM_ROUNDING = 1e-12  # relative: the rounding of a float64 sum over many windows
_LARGEST_LOG = 700.0  # exp overflows float64 above 709
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
        """Largest possible difference between the true number and the value; 0 where it is exact."""
        return max(self.value - self.low, self.high - self.value)

    def to_json(self) -> dict[str, float]:
        """Fields as plain JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


class Share(NamedTuple):
    """Fraction of each bucket's log-ratios on one side of a bound, ``(k,)`` each."""

    guess: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Cells:
    """Occupied buckets and the two exact extremes, ``(k,)`` each, divided by the bounds of a rule.

    Attributes:
        counts: number of log-ratios in each cell.
        start: smallest log-ratio that each cell can hold.
        end: largest log-ratio that each cell can hold.
        lower: logarithm of the lower bound, minus infinity for none.
        upper: logarithm of the upper bound, infinity for none.
        below: share of each cell below the lower bound.
        above: share of each cell above the upper bound.
        masks: True if a ratio outside the bounds gets weight 0, False if it gets the bound.
    """

    counts: Array
    start: Array
    end: Array
    lower: float
    upper: float
    below: Share
    above: Share
    masks: bool

    @classmethod
    def from_counts(cls, counts: NDArray[np.int64], correction: Correction, *, minimum: float, maximum: float) -> Cells:
        """Divides the buckets of a histogram by the bounds of a rule.

        Args:
            counts: int64 ``(N_BUCKETS,)``, with at least one log-ratio.
            correction: the rule.
            minimum: smallest log-ratio, exact.
            maximum: largest log-ratio, exact.
        """
        number, start, end = _cells(counts, minimum, maximum)
        low, high = correction.log_bounds
        (lower, lower_is_edge), (upper, upper_is_edge) = _at_edge(low, -math.inf), _at_edge(high, math.inf)
        width = np.where(end > start, end - start, 1.0)
        # A ratio equal to a bound is inside. A bucket that ends exactly on a bound contains no value equal to it, so
        # at an edge such a bucket is entirely outside; elsewhere its last value may be the bound itself.
        all_below = end <= lower if lower_is_edge else end < lower
        all_above = start >= upper if upper_is_edge else start > upper
        below = _share(start >= lower, all_below, (lower - start) / width)
        above = _share(end <= upper, all_above, (end - upper) / width)
        return cls(number, start, end, lower, upper, below, above, masks=correction.action == "mask")

    @property
    def modified(self) -> Share:
        """Share of each cell outside the bounds."""
        return Share(*(np.minimum(a + b, 1.0) for a, b in zip(self.below, self.above, strict=True)))

    def fraction(self, share: Share) -> Bounded:
        """A share of each cell as a fraction of all log-ratios."""
        n = self.counts.sum()
        return Bounded(*(float(self.counts @ part / n) for part in share))

    def weights(self, power: int, relative: float | None) -> Bounded:
        """Sum of a power of the weights after the rule.

        Two intervals hold it, and their intersection is returned: the sum over cells of each cell's smallest and
        largest weight; and, where the sum before the rule is known, that sum plus what the rule changes in each cell.
        The second is narrower where the rule changes little, because unchanged cells add no uncertainty to it.

        Args:
            power: 1 or 2.
            relative: the same sum before the rule, divided by that power of the largest ratio; None if unknown.
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
                    # Correcting the exact total by the guessed change beats a guess of every weight.
                    value = total + float(self.counts @ (guess - _mean_power(self.start, self.end, power)))
                low = max(low, total + change_low - rounding)
                high = min(high, total + change_high + rounding)
        low = min(low, high)  # the two intervals may miss each other by rounding
        return Bounded(min(max(value, low), high), low, high)

    def _after(self, power: int) -> tuple[Array, Array]:
        """Smallest and largest power of a weight after the rule, in each cell."""
        if not self.masks:
            start, end = (np.clip(ends, self.lower, self.upper) for ends in (self.start, self.end))
            return np.exp(power * start), np.exp(power * end)
        outside = self.modified
        # One ratio that may be masked makes 0 possible; only a cell that is wholly outside has no positive weight.
        smallest = np.where(outside.high > 0, 0.0, np.exp(power * self.start))
        return smallest, np.where(outside.low > 0, 0.0, np.exp(power * np.minimum(self.end, self.upper)))

    def _change(self, power: int) -> tuple[Array, Array]:
        """Smallest and largest difference that the rule makes to a power of a ratio, in each cell."""
        if not self.masks:
            # Clipping minus identity falls with the ratio, so the end gives the smallest change, the start the largest.
            after = (np.exp(power * np.clip(ends, self.lower, self.upper)) for ends in (self.end, self.start))
            low, high = (new - np.exp(power * ends) for new, ends in zip(after, (self.end, self.start), strict=True))
            return low, high
        outside = self.modified
        # The largest ratio that may be masked is the cell's end, or the lower bound in a cell that has nothing above.
        largest = np.where(self.above.high > 0, self.end, np.minimum(self.end, self.lower))
        low = np.where(outside.high > 0, -np.exp(power * largest), 0.0)
        return low, np.where(outside.low > 0, -np.exp(power * self.start), 0.0)

    def _guess(self, power: int) -> Array:
        """Mean power of a weight after the rule in each cell, with log-ratios spread evenly."""
        start, end = (np.clip(ends, self.lower, self.upper) for ends in (self.start, self.end))
        inside = (1.0 - self.modified.guess) * _mean_power(start, end, power)
        if self.masks:
            return inside
        bounds = ((self.below, self.lower), (self.above, self.upper))
        # An open side has an infinite bound and no share, so it is skipped before exp of it overflows.
        return inside + sum(share.guess * math.exp(power * bound) for share, bound in bounds if share.guess.any())


def _cells(counts: NDArray[np.int64], minimum: float, maximum: float) -> tuple[Array, Array, Array]:
    """Counts, starts and ends of the cells: the two extremes as points, then the buckets of all other log-ratios.

    The extremes are known exactly, and they are the largest weights: as points they add no uncertainty.
    """
    extremes = np.array([minimum, maximum])[: int(counts.sum())]  # a single log-ratio is both
    occupied = np.flatnonzero(counts)
    counts = counts.copy()
    np.subtract.at(counts, [occupied[0], occupied[-1]][: extremes.size], 1)  # both may be in one bucket
    occupied = np.flatnonzero(counts)
    start = np.concatenate([extremes, np.clip(_STARTS[occupied], minimum, maximum)])
    end = np.concatenate([extremes, np.clip(_ENDS[occupied], minimum, maximum)])
    return np.concatenate([np.ones(extremes.size), counts[occupied].astype(np.float64)]), start, end


def _share(never: NDArray[np.bool_], always: NDArray[np.bool_], guess: Array) -> Share:
    """Share of each cell on one side of a bound: 0, 1, or in between for the cell that the bound divides."""
    clipped = np.where(never, 0.0, np.where(always, 1.0, np.clip(guess, 0.0, 1.0)))
    return Share(clipped, (always & ~never).astype(np.float64), (~never).astype(np.float64))


def _mean_power(start: Array, end: Array, power: int) -> Array:
    """Mean of ``exp(power * d)`` over d from start to end: ``(exp(p*end) - exp(p*start)) / (p*(end - start))``.

    Written with expm1, which keeps all digits where a cell is narrow.
    """
    wide = end > start
    width = power * (np.where(wide, end, 0.0) - np.where(wide, start, 0.0))  # both ends may be minus infinity
    mean: Array = np.exp(power * end) * np.where(wide, -np.expm1(-width) / np.where(wide, width, 1.0), 1.0)
    return mean


def _at_edge(bound: float | None, no_bound: float) -> tuple[float, bool]:
    """Logarithm of a bound, and True if it is a bucket's edge.

    A bound that differs from an edge by no more than the rounding of exp and log is taken for that edge.
    """
    if bound is None:
        return no_bound, False
    after = int(np.searchsorted(BOUNDARIES, bound))
    for edge in BOUNDARIES[max(0, after - 1) : after + 1].tolist():
        if abs(bound - edge) <= _SAME_LOG * max(1.0, abs(edge)):
            return edge, True
    return bound, False
