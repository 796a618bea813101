"""Outcome of a rule that was not used in training, from stored histograms of raw log-ratios.

A bucket's log-ratios lie between its edges and between the extremes, which are exact. Each number therefore comes with
an interval that holds it: a bucket that a bound divides is counted entirely on either side, and every weight is taken
at either edge. Where the sums of all raw weights are known, the change that the rule makes is bounded too, and the
narrower of the two intervals is given. The value in the interval spreads the log-ratios of a bucket evenly.

Two effects are not in the intervals. A trainer compares and exponentiates in float32, so a ratio within about 1e-7 of a
bound may fall on either side, and weights differ by as much; completions whose log-ratios it adds up in float32 differ
by somewhat more. And a ratio equal to a bound whose logarithm is a bucket's edge is counted in the bucket away from 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratioscope.numerics import OVERFLOW
from ratioscope.sweep.bounds import Bounded, Cells

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ratioscope.correction.bounds import Correction
    from ratioscope.correction.rule import Rule
    from ratioscope.metrics.view import View


@dataclass(frozen=True)
class Outcome:
    """Effect of a rule on the ratios of its level. A number is None without data or if it is infinite.

    Attributes:
        correction: the rule.
        n: number of ratios.
        modified: fraction of raw ratios outside the bounds.
        below: fraction below the lower bound.
        above: fraction above the upper bound.
        mean: mean weight after the rule, zeros of masking included.
        ess: effective sample size of these weights as a fraction, (sum w)^2 / (n sum w^2).
    """

    correction: Correction
    n: int
    modified: Bounded | None = None
    below: Bounded | None = None
    above: Bounded | None = None
    mean: Bounded | None = None
    ess: Bounded | None = None

    def to_json(self) -> dict[str, Any]:
        """Numbers by name, after the rule's mode and bounds."""
        rule = {"mode": self.correction.mode, "lower": self.correction.lower, "upper": self.correction.upper}
        numbers = {name: getattr(self, name) for name in ("modified", "below", "above", "mean", "ess")}
        return {**rule, "n": self.n, **{name: number and number.to_json() for name, number in numbers.items()}}


def sweep(
    counts: NDArray[np.int64],
    correction: Rule,
    *,
    minimum: float | None,
    maximum: float | None,
    w: float | None = None,
    w2: float | None = None,
) -> Outcome:
    """Computes the effect of a rule on a histogram of raw log-ratios.

    Args:
        counts: int64 ``(N_BUCKETS,)``, raw log-ratios at the rule's level.
        correction: the rule.
        minimum: smallest log-ratio, exact; None if there is none.
        maximum: largest log-ratio, exact; None if there is none.
        w: sum of ``exp(d - maximum)`` over all log-ratios; makes the intervals narrower.
        w2: sum of ``exp(2 * (d - maximum))``; makes the intervals narrower.

    Raises:
        ValueError: if the rule has stages, which compare statistics of several levels; a histogram has one level.
    """
    bounds = correction.bounds
    if bounds is None:
        msg = f"got a rule of stages, {correction.mode}; expected a level and an action: a histogram has one level. "
        msg += "Observe a batch with the rule itself."
        raise ValueError(msg)
    n = int(counts.sum())
    if not n or minimum is None or maximum is None:
        return Outcome(bounds, 0)
    cells = Cells.from_counts(counts, bounds, minimum=minimum, maximum=maximum)
    below, above = cells.fraction(cells.below), cells.fraction(cells.above)
    modified = cells.fraction(cells.modified)
    if max(cells.lower, min(cells.upper, maximum)) > OVERFLOW:  # the trainer's float32 weight would be infinite
        return Outcome(bounds, n, modified, below, above)
    first, second = (cells.weights(power, total) for power, total in ((1, w), (2, w2)))
    mean = Bounded(first.value / n, first.low / n, first.high / n)
    ess = _ess(first, second, n, ceiling=1.0 - modified.low if bounds.action == "mask" else 1.0)
    return Outcome(bounds, n, modified, below, above, mean, ess)


def sweep_view(view: View, correction: Rule) -> Outcome:
    """Computes the effect of a rule on the log-ratios of a view, at the rule's level."""
    level = correction.level
    return sweep(
        view.histograms[f"{level}_log_ratio"],
        correction,
        minimum=view.minimum(level),
        maximum=view.maximum(level),
        w=view.sums[f"{level}/w"],
        w2=view.sums[f"{level}/w2"],
    )


def recorded(view: View) -> Outcome | None:
    """Outcome of the rule used in training, from its exact counts.

    None without a rule, for a rule of stages, or if the trainer's weights were not those of the rule.
    """
    rule = None if view.correction is None else view.correction.bounds
    if rule is None or not view.trusted:
        return None
    n = view.counts["corrected/n"]
    if not n:
        return Outcome(rule, 0)
    low, high = view.counts["modified/low"] / n, view.counts["modified/high"] / n
    w, w2 = view.sums["corrected/w"], view.sums["corrected/w2"]
    mean = w / n if math.isfinite(w) else None
    ess = w * w / (n * w2) if w2 and math.isfinite(w) and math.isfinite(w2) else None
    return Outcome(rule, n, *map(_exact, (low + high, low, high, mean, ess)))


def _exact(value: float | None) -> Bounded | None:
    """A number without an error."""
    return None if value is None else Bounded(value, value, value)


def _ess(first: Bounded, second: Bounded, n: int, *, ceiling: float) -> Bounded | None:
    """Effective sample size from bounds on the sums of weights and of their squares; None where every weight is 0.

    Args:
        first: sum of the weights.
        second: sum of their squares.
        n: number of ratios.
        ceiling: largest possible value, by the Cauchy-Schwarz inequality the share of weights that are not 0.
    """
    if second.high == 0.0:
        return None
    low = first.low**2 / (n * second.high)
    high = min(ceiling, first.high**2 / (n * second.low)) if second.low else ceiling
    value = first.value**2 / (n * second.value) if second.value else low
    return Bounded(min(max(value, low), high), min(low, high), high)
