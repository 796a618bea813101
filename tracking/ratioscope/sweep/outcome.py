"""What another rule would have done, from stored histograms of raw log-ratios.

A bucket's log-ratios lie between its edges and between the extremes, which are exact. So each number comes with an
interval that holds it: a bucket that a bound divides is put wholly on either side, and every weight is taken at either
edge. Where the sums of all raw weights are known, what the rule takes away is bounded too, and the narrower of
the two intervals is given. The value in it takes the log-ratios of a bucket to be spread evenly.

Two things are not in the intervals. A trainer compares and exponentiates in float32, so a ratio within about 1e-7 of a
bound may fall on either side, and weights differ by as much; rows whose log-ratios it adds up in float32 by somewhat
more. And a ratio that equals a bound whose logarithm is a bucket's edge is counted in the bucket away from 1.
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
    """What a rule does to the ratios of its level. A number without data, or that is infinite, is None.

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
        return {**rule, "n": self.n, **{name: found and found.to_json() for name, found in numbers.items()}}


def sweep(
    counts: NDArray[np.int64],
    correction: Rule,
    *,
    minimum: float | None,
    maximum: float | None,
    w: float | None = None,
    w2: float | None = None,
) -> Outcome:
    """What a rule would do.

    Args:
        counts: int64 ``(N_BUCKETS,)``, of the raw log-ratios at the rule's level.
        correction: the rule.
        minimum: the smallest log-ratio, exact; None if there is none.
        maximum: the largest.
        w: sum of ``exp(d - maximum)`` over all log-ratios; makes intervals narrower.
        w2: sum of its squares.

    Raises:
        ValueError: if it is a rule of stages, whose statistics no histogram of one level holds together.
    """
    bounds = correction.bounds
    if bounds is None:
        msg = f"got a rule of stages, {correction.mode}; expected a level and an action, of which histograms tell. "
        msg += "Observe a batch with the rule itself."
        raise ValueError(msg)
    n = int(counts.sum())
    if not n or minimum is None or maximum is None:
        return Outcome(bounds, 0)
    cells = Cells.of(counts, bounds, minimum, maximum)
    below, above = cells.fraction(cells.below), cells.fraction(cells.above)
    modified = cells.fraction(cells.modified)
    if max(cells.lower, min(cells.upper, maximum)) > OVERFLOW:  # the trainer's weight is infinite
        return Outcome(bounds, n, modified, below, above)
    first, second = (cells.weights(power, total) for power, total in ((1, w), (2, w2)))
    mean = Bounded(first.value / n, first.low / n, first.high / n)
    ess = _ess(first, second, n, ceiling=1.0 - modified.low if bounds.action == "mask" else 1.0)
    return Outcome(bounds, n, modified, below, above, mean, ess)


def sweep_view(view: View, correction: Rule) -> Outcome:
    """The same from a summary's state, at the rule's level."""
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
    """What the rule of the training did, as it was counted.

    None without a rule, of stages, or where the trainer did otherwise.
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
    return None if value is None else Bounded(value, value, value)


def _ess(first: Bounded, second: Bounded, n: int, *, ceiling: float) -> Bounded | None:
    """From bounds on the sums of weights and of their squares; None where every weight is 0."""
    if second.high == 0.0:
        return None
    low = first.low**2 / (n * second.high)
    high = min(ceiling, first.high**2 / (n * second.low)) if second.low else ceiling
    value = first.value**2 / (n * second.value) if second.value else low
    return Bounded(min(max(value, low), high), min(low, high), high)
