"""The catalogue: every statistic's key, meaning and formula, in the order of the reference page."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, get_args

from ratioscope.metrics import correlation, formulas
from ratioscope.metrics.level_metrics import level_metrics, row_metrics
from ratioscope.metrics.metric import FRACTION, PREFIX, RAW, Detail, Formula, Metric
from ratioscope.metrics.stage_metrics import stage_metrics
from ratioscope.metrics.terms import (
    at_level,
    corrected_of,
    fraction_of,
    lag_of,
    maximum_of,
    mean_of,
    modified_on,
    quantile_of,
)
from ratioscope.metrics.view import QUANTILES, View
from ratioscope.state.slots import DECILES, TURNS

if TYPE_CHECKING:
    from collections.abc import Iterator


def _headline() -> Iterator[Metric]:
    at = "ratio before truncation or masking, at the level of the mode"
    yield Metric(f"{RAW}/min", f"smallest {at}", "headline", at_level(None, View.ratio_min))
    yield Metric(f"{RAW}/mean", f"mean {at}", "headline", at_level(None, View.ratio_mean))
    yield Metric(f"{RAW}/max", f"largest {at}", "headline", at_level(None, View.ratio_max))
    yield Metric(FRACTION, "fraction of those ratios outside [lower, upper]", "headline", formulas.modified)
    for side, bound in (("low", "below lower"), ("high", "above upper")):
        meaning = f"fraction of those ratios {bound}"
        yield Metric(f"{PREFIX}modified/{side}", meaning, "headline", modified_on(side))
    for name in ("p01", "p50", "p99"):
        meaning = f"{QUANTILES[name]:g} quantile of the raw ratio at the level of the mode"
        yield Metric(f"{PREFIX}raw/{name}", meaning, "headline", quantile_of(None, name))
    ess = "effective sample size, (sum w)^2 / (n sum w^2), at the level of the mode"
    yield Metric(f"{PREFIX}ess/raw", f"{ess}, before the rule", "headline", at_level(None, formulas.ess_raw))
    yield Metric(f"{PREFIX}ess/corrected", f"{ess}, after the rule", "headline", formulas.ess_corrected)
    kl = "estimates KL(rollout || trainer), tokens being drawn from the rollout"
    yield Metric(f"{PREFIX}kl/k1", f"mean of -d; {kl}", "headline", mean_of("token/d", scale=-1.0))
    yield Metric(f"{PREFIX}kl/k3", f"mean of expm1(d) - d; {kl}", "headline", mean_of("token/k3"))
    meaning = "mean absolute log-ratio over tokens, in nats"
    yield Metric(f"{PREFIX}log_ratio/abs_mean", meaning, "headline", mean_of("token/abs_d"))
    meaning = "fraction of masked-in tokens without a usable log-probability"
    yield Metric(f"{PREFIX}tokens/invalid", meaning, "headline", formulas.invalid)
    yield Metric(f"{PREFIX}rows/empty", "fraction of rows without a valid token", "headline", formulas.empty_rows)


def _rule() -> Iterator[Metric]:
    at = "weight after the rule, zeros of masking included"
    smallest, mean, largest = map(
        corrected_of, (formulas.corrected_min, formulas.corrected_mean, formulas.corrected_max)
    )
    yield Metric(f"{PREFIX}corrected/min", f"smallest {at}", "full", smallest)
    yield Metric(f"{PREFIX}corrected/mean", f"mean {at}", "standard", mean)
    yield Metric(f"{PREFIX}corrected/max", f"largest {at}", "full", largest)
    meaning = "fraction of raw ratios outside [lower, upper]; under stages, of tokens that are not as they were"
    yield Metric(f"{PREFIX}modified/fraction", meaning, "standard", formulas.modified)
    for done, formula in (("truncated", formulas.truncated), ("masked", formulas.masked)):
        yield Metric(f"{PREFIX}modified/{done}", f"fraction of ratios that were {done}", "full", formula)
    for side in ("positive_advantage", "negative_advantage"):
        meaning = f"modified fraction among ratios of rows with {side.replace('_', ' ')}"
        yield Metric(f"{PREFIX}modified/{side}", meaning, "standard", fraction_of(f"{side}/modified", f"{side}/n"))
    meaning = "sum(|advantage| (raw - corrected)+) / sum(|advantage| raw)"
    yield Metric(f"{PREFIX}modified/gradient_removed", meaning, "full", formulas.gradient_removed)


def _tokens() -> Iterator[Metric]:
    yield Metric(f"{PREFIX}kl/k2", "mean of d^2 / 2", "full", mean_of("token/d2", scale=0.5))
    meaning = "mean of expm1(-d) + d; not an estimator of KL(trainer || rollout) on the rollout's samples"
    yield Metric(f"{PREFIX}kl/reverse_k3", meaning, "full", mean_of("token/reverse_k3"))
    of = "fraction of r_t outside"
    yield Metric(f"{PREFIX}outside/0.9_1.1", f"{of} [0.9, 1.1]", "standard", fraction_of("outside/0.9_1.1"))
    yield Metric(f"{PREFIX}outside/0.5_2", f"{of} [0.5, 2]", "full", fraction_of("outside/0.5_2"))
    yield Metric(f"{PREFIX}mult_prob_error", "mean exp(|d|)", "full", mean_of("token/mult_prob_error"))
    meaning = "slope of the least-squares line of train logp on rollout logp"
    yield Metric(f"{PREFIX}calibration/slope", meaning, "standard", correlation.slope)
    yield Metric(f"{PREFIX}calibration/intercept", "its intercept, in nats", "full", correlation.intercept)
    for name, what in (("calibration", "logp"), ("probability", "probability")):
        meaning = f"correlation of train and rollout {what}"
        yield Metric(f"{PREFIX}{name}/pearson", meaning, "full", at_level(what, correlation.pearson))
    meaning = "mean absolute difference of train and rollout probability"
    yield Metric(f"{PREFIX}probability/abs_mean", meaning, "full", mean_of("probability/abs_difference"))
    yield Metric(f"{PREFIX}probability/abs_max", "largest such difference", "full", maximum_of("probability/abs_max"))
    meaning = "correlation of train logp and the rollout logp of the token before"
    yield Metric(f"{PREFIX}alignment/lag_-1", meaning, "full", lag_of(-1))
    yield Metric(
        f"{PREFIX}alignment/lag_0", "the same of the same token", "full", at_level("logp", correlation.pearson)
    )
    yield Metric(f"{PREFIX}alignment/lag_1", "the same with the rollout logp of the next token", "full", lag_of(1))
    meaning = "1 if train and rollout logp are bit-equal on every valid token of more than 100, else 0"
    yield Metric(f"{PREFIX}identical", meaning, "full", formulas.identical)


def _places() -> Iterator[Metric]:
    def turn_mean(turn: str, total: str) -> Formula:
        return lambda view: formulas.of_turn(view, turn, total)

    def by_length(quartile: int) -> Formula:
        return lambda view: formulas.modified_by_length(view, quartile)

    for name, total, of in (("mean", "d", "mean d_t"), ("abs_mean", "abs_d", "mean absolute d_t")):
        for place in DECILES:
            meaning = f"{of} in tenth {place[-2:]} of the row's valid tokens, in nats"
            yield Metric(f"{PREFIX}{place}/{name}", meaning, "full", mean_of(f"{place}/{total}", f"{place}/n"))
        detail: Detail = "standard" if name == "abs_mean" else "full"
        place = "position/last"
        meaning = f"{of} of each row's last valid token, in nats"
        yield Metric(f"{PREFIX}{place}/{name}", meaning, detail, mean_of(f"{place}/{total}", f"{place}/n"))
    for name, total, of in (("mean", "d", "mean d_t"), ("abs_mean", "abs_d", "mean absolute d_t")):
        for turn in TURNS:
            which = f"turn {turn[-1]}" + (" and later ones" if turn == TURNS[-1] else "")
            meaning = f"{of} in {which} of rows, in nats; where any row has more than one"
            yield Metric(f"{PREFIX}{turn}/{name}", meaning, "full", turn_mean(turn, total))
    for quartile, rows in enumerate(("shortest", "second", "third", "longest")):
        meaning = f"modified fraction in the {rows} quarter of the window's rows"
        yield Metric(f"{PREFIX}length/q{quartile + 1}/modified", meaning, "full", by_length(quartile))


def _noise() -> Iterator[Metric]:
    at = f"{PREFIX}noise_floor/"
    of = "distance of the trainer from itself in another order of arithmetic, in nats; where it was measured"
    yield Metric(f"{at}abs_mean", f"mean absolute {of}", "full", mean_of("noise/abs_d", "noise/n"))
    yield Metric(f"{at}std", f"population standard deviation of the signed {of}", "full", formulas.noise_std)
    yield Metric(f"{at}max", f"largest absolute {of}", "full", maximum_of("noise/abs_max"))
    meaning = "mean absolute d_t in multiples of that mean; where it is not 0"
    yield Metric(f"{at}multiple", meaning, "standard", formulas.noise_multiple)


def _drift() -> Iterator[Metric]:
    at = f"{PREFIX}drift/"
    of = "e_t, how far the policy has moved since it scored the batch, in nats; where that was observed"
    yield Metric(f"{at}abs_mean", f"mean absolute {of}", "standard", mean_of("drift/abs_d", "drift/n"))
    yield Metric(f"{at}mean", f"mean {of}", "full", mean_of("drift/d", "drift/n"))
    meaning = "mean of expm1(e) - e; estimates KL(old || current) as far as the old policy is what sampled"
    yield Metric(f"{at}k3", meaning, "full", mean_of("drift/k3", "drift/n"))
    yield Metric(f"{at}ratio_min", "smallest exp(e_t), the loss's own ratio", "full", at_level("drift", View.ratio_min))
    yield Metric(f"{at}ratio_max", "largest exp(e_t)", "full", at_level("drift", View.ratio_max))
    meaning = "fraction of exp(e_t) outside the loss's clip range, whatever the advantage's sign; where it was given"
    yield Metric(f"{at}outside", meaning, "standard", fraction_of("drift/outside", "drift/clippable"))


def _counts() -> Iterator[Metric]:
    at = f"{PREFIX}counts/"
    of = "masked-in tokens with"
    yield Metric(f"{at}tokens", "valid tokens", "standard", at_level("token/n", View.count))
    yield Metric(f"{at}rows", "rows with at least one valid token", "standard", at_level("sequence/n", View.count))
    yield Metric(f"{at}rows_empty", "rows without a valid token", "standard", at_level("rows_empty", View.count))
    yield Metric(f"{at}nan", f"{of} a NaN log-probability", "standard", at_level("nan", View.count))
    yield Metric(f"{at}inf", f"{of} an infinite log-probability or difference", "standard", at_level("inf", View.count))
    meaning = f"{of} a rollout log-probability above 0"
    yield Metric(f"{at}positive_logp", meaning, "standard", at_level("positive_logp", View.count))
    yield Metric(f"{at}missing", f"{of}out any log-probability", "standard", at_level("missing", View.count))
    for side in ("train", "rollout"):
        meaning = f"valid tokens whose {side} log-probability is exactly 0"
        yield Metric(f"{at}zero_{side}_logp", meaning, "full", at_level(f"zero_{side}_logp", View.count))
    meaning = "ratios at the level of the mode that float32 cannot hold (log-ratio above 88.72)"
    yield Metric(f"{at}overflow", meaning, "standard", lambda view: view.count(f"{view.level}/overflow"))
    yield Metric(f"{at}generations", "generation batches in the window", "full", maximum_of("generations"))


CATALOGUE: tuple[Metric, ...] = (
    *_headline(),
    *level_metrics("token", "r_t", "d_t"),
    *level_metrics("sequence", "R_i", "D_i"),
    *row_metrics(),
    *_rule(),
    *stage_metrics(),
    *_tokens(),
    *_places(),
    *_noise(),
    *_drift(),
    *_counts(),
)
"""Every statistic, in the order of the reference page."""


def compute(view: View, *, detail: str = "full") -> dict[str, float]:
    """Every statistic of the catalogue that has data, as finite Python floats.

    Raises:
        ValueError: if the detail is unknown.
    """
    wanted = keys(detail)
    values = {metric.key: metric.formula(view) for metric in CATALOGUE if metric.key in wanted}
    return {key: float(value) for key, value in values.items() if value is not None and math.isfinite(value)}


@cache
def keys(detail: str) -> frozenset[str]:
    """Keys that a detail includes.

    Raises:
        ValueError: if the detail is unknown.
    """
    order = get_args(Detail)
    if detail not in order:
        msg = f"got detail={detail!r}; expected one of {', '.join(map(repr, order))}"
        raise ValueError(msg)
    return frozenset(metric.key for metric in CATALOGUE if order.index(metric.detail) <= order.index(detail))
