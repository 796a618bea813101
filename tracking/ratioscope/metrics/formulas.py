"""Formulas of the statistics, from a summary's state. Plain float64 on the host; None means no data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ratioscope.metrics import pareto
from ratioscope.state.slots import N_LOG_RATIOS, TURNS

if TYPE_CHECKING:
    from ratioscope.metrics.view import View


def _spread(variance: float) -> float:
    return math.sqrt(max(variance, 0.0))


def log_ratio_std(view: View, level: str) -> float | None:
    """Population standard deviation of the log-ratio, in nats."""
    mean, square = view.mean(f"{level}/d", f"{level}/n"), view.mean(f"{level}/d2", f"{level}/n")
    if mean is None or square is None:
        return None
    return 0.0 if view.minimum(level) == view.maximum(level) else _spread(square - mean * mean)


def _excess(view: View, level: str) -> tuple[float, float] | None:
    """Means of r - 1 and of (r - 1)^2, which lose no digits where every ratio is near 1."""
    n = view.counts[f"{level}/n"]
    if not n:
        return None
    return view.sums[f"{level}/excess"] / n, view.sums[f"{level}/excess2"] / n


def ratio_std(view: View, level: str) -> float | None:
    """Population standard deviation of the ratio."""
    excess, largest = _excess(view, level), view.maximum(level)
    if excess is None or largest is None:
        return None
    if view.minimum(level) == largest:
        return 0.0
    if math.isfinite(excess[1]):
        return _spread(excess[1] - excess[0] ** 2)
    n = view.counts[f"{level}/n"]
    scale = view.exp(largest)
    relative = view.sums[f"{level}/w2"] / n - (view.sums[f"{level}/w"] / n) ** 2
    return None if scale is None else scale * _spread(relative)


def chi2(view: View, level: str) -> float | None:
    """E[w^2] - 1."""
    excess, largest = _excess(view, level), view.maximum(level)
    if excess is None or largest is None:
        return None
    if math.isfinite(excess[1]):
        return excess[1] + 2.0 * excess[0]
    return view.exp(2.0 * largest + math.log(view.sums[f"{level}/w2"] / view.counts[f"{level}/n"]))


def abs_max(view: View, level: str) -> float | None:
    """Largest absolute log-ratio."""
    low, high = view.minimum(level), view.maximum(level)
    return None if low is None or high is None else max(abs(low), abs(high))


def ess_raw(view: View, level: str) -> float | None:
    """Kong's effective sample size as a fraction, (sum w)^2 / (n sum w^2)."""
    n, square = view.counts[f"{level}/n"], view.sums[f"{level}/w2"]
    return view.sums[f"{level}/w"] ** 2 / (n * square) if n else None


def ess_corrected(view: View) -> float | None:
    """Effective sample size of the weights after the rule, as a fraction; 0 where all weights are zero."""
    n, square = view.counts["corrected/n"], view.sums["corrected/w2"]
    if not n:
        return None
    return view.corrected(view.sums["corrected/w"] ** 2 / (n * square) if square else 0.0)


def max_weight_share(view: View, level: str) -> float | None:
    """Largest weight over the sum of weights."""
    return 1.0 / view.sums[f"{level}/w"] if view.counts[f"{level}/n"] else None


def weight_perplexity(view: View, level: str) -> float | None:
    """Exp of the entropy of the normalised weights, over n."""
    n, total = view.counts[f"{level}/n"], view.sums[f"{level}/w"]
    return math.exp(math.log(total) - view.sums[f"{level}/wd"] / total) / n if n else None


def _scaled(view: View, value: float | None) -> float | None:
    """A weight as the rule normalises it, where it does: over its mean over the whole window, unless that is 0."""
    normalizes = view.correction is not None and view.correction.batch_normalize
    if value is None or not normalizes or not view.sums["normalizer/w"]:
        return value
    return value * view.counts["normalizer/n"] / view.sums["normalizer/w"]


def corrected_min(view: View) -> float | None:
    """Smallest weight after the rule."""
    return _scaled(view, view.minimum("corrected"))


def corrected_mean(view: View) -> float | None:
    """Mean weight after the rule, over all that the loss divides by."""
    return _scaled(view, view.mean("corrected/w", "corrected/n"))


def corrected_max(view: View) -> float | None:
    """Largest weight after the rule."""
    return _scaled(view, view.maximum("corrected"))


def modified(view: View) -> float | None:
    """Fraction of raw ratios outside the bounds; under stages, of tokens that are not as they were."""
    n = _ratios(view)
    return (view.counts["modified/low"] + view.counts["modified/high"]) / n if n else None


def modified_on(view: View, side: str) -> float | None:
    """The part of it on one side, ``"low"`` or ``"high"``."""
    n = _ratios(view)
    return view.counts[f"modified/{side}"] / n if n else None


def _ratios(view: View) -> int:
    """Ratios that the rule was applied to, what it dropped included."""
    return view.counts["corrected/n"] + view.counts["dropped/n"]


def truncated(view: View) -> float | None:
    """The modified fraction if the rule truncates, 0 if it masks; under stages, that of the tokens truncated."""
    return _modified_by(view, "truncate", ("truncated_low", "truncated_high"))


def masked(view: View) -> float | None:
    """The modified fraction if the rule masks, 0 if it truncates; under stages, of tokens zeroed, dropped or vetoed."""
    return _modified_by(view, "mask", ("zeroed", "dropped", "vetoed"))


def _modified_by(view: View, action: str, classes: tuple[str, ...]) -> float | None:
    fraction = modified(view)
    if fraction is None or view.correction is None:
        return None
    bounds = view.correction.bounds
    if bounds is None:
        return sum(view.counts[f"class/{name}"] for name in classes) / view.counts["token/n"]
    return fraction if bounds.action == action else 0.0


def gradient_removed(view: View) -> float | None:
    """Share of sum(|advantage| ratio) that the rule took away."""
    total = view.sums["gradient/raw"]
    return view.corrected(view.sums["gradient/removed"] / total if total else None)


def pareto_k(view: View) -> float | None:
    """Pareto k-hat of the raw sequence ratios; None where it means nothing, or the window has too many rows for it."""
    n = view.counts["sequence/n"]
    if len(view.top_log_ratios) != min(n, N_LOG_RATIOS):
        return None  # merged with a state that was kept without them
    return pareto.pareto_k(view.top_log_ratios, n)


def modified_by_length(view: View, quartile: int) -> float | None:
    """Modified fraction in the rows of a quartile of length, 0 to 3."""
    n, changed = view.by_length[quartile]
    return changed / n if n else None


def of_turn(view: View, turn: str, total: str) -> float | None:
    """Mean over the tokens of a turn; None where no row has a second turn."""
    if not any(view.counts[f"{later}/n"] for later in TURNS[1:]):
        return None
    return view.mean(f"{turn}/{total}", f"{turn}/n")


def noise_std(view: View) -> float | None:
    """Population standard deviation of the trainer's log-probability minus itself, in nats."""
    mean, square = view.mean("noise/d", "noise/n"), view.mean("noise/d2", "noise/n")
    return None if mean is None or square is None else _spread(square - mean * mean)


def noise_multiple(view: View) -> float | None:
    """Mean absolute log-ratio over the noise floor's; None where there is no floor, or it is 0."""
    mismatch, floor = view.mean("token/abs_d", "token/n"), view.mean("noise/abs_d", "noise/n")
    return mismatch / floor if mismatch is not None and floor else None


def invalid(view: View) -> float | None:
    """Fraction of masked-in tokens that had no usable log-probability."""
    n = view.counts["masked_in"]
    return (n - view.counts["token/n"]) / n if n else None


def empty_rows(view: View) -> float | None:
    """Fraction of rows without a valid token."""
    empty = view.counts["rows_empty"]
    rows = empty + view.counts["sequence/n"]
    return empty / rows if rows else None


def identical(view: View) -> float | None:
    """1 if both sides are bit-equal on every one of more than 100 tokens: then nothing is being measured."""
    n = view.counts["token/n"]
    return float(view.counts["equal"] == n) if n > 100 else None
