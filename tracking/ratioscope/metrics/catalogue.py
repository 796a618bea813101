"""The catalogue: every statistic's key, meaning and formula, in the order of the reference page."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, get_args

from ratioscope.metrics import formulas
from ratioscope.metrics.metric import PREFIX, Detail, Formula, Metric
from ratioscope.metrics.stage_metrics import stage_metrics
from ratioscope.metrics.view import QUANTILES, View
from ratioscope.state.slots import DECILES, TURNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RAW = "sampling/raw_importance_sampling_ratio"
FRACTION = "sampling/frac_modified_importance_sampling_ratio"


def _mean(total: str, n: str = "token/n", *, scale: float = 1.0) -> Formula:
    return lambda view: view.mean(total, n, scale=scale)


def _fraction(part: str, n: str = "token/n") -> Formula:
    return lambda view: view.fraction(part, n)


def _at(level: str | None, formula: Callable[[View, str], float | None]) -> Formula:
    """A formula at a level; None for the level of the mode."""
    return lambda view: formula(view, level or view.level)


def _quantile(level: str | None, name: str) -> Formula:
    return lambda view: view.ratio_quantile(level or view.level, name)


def _side(side: str) -> Formula:
    return lambda view: formulas.modified_on(view, side)


def _maximum(slot: str) -> Formula:
    return lambda view: view.slot_max(slot)


def _lag(lag: int) -> Formula:
    return lambda view: formulas.lag_pearson(view, lag)


def _corrected(formula: Formula) -> Formula:
    """Wraps a formula: None unless the weights are known."""
    return lambda view: view.corrected(formula(view))


def _headline() -> Iterator[Metric]:
    at = "ratio before truncation or masking, at the level of the mode"
    yield Metric(f"{RAW}/min", f"smallest {at}", "headline", _at(None, View.ratio_min))
    yield Metric(f"{RAW}/mean", f"mean {at}", "headline", _at(None, View.ratio_mean))
    yield Metric(f"{RAW}/max", f"largest {at}", "headline", _at(None, View.ratio_max))
    yield Metric(FRACTION, "fraction of those ratios outside [lower, upper]", "headline", formulas.modified)
    for side, bound in (("low", "below lower"), ("high", "above upper")):
        yield Metric(f"{PREFIX}modified/{side}", f"fraction of those ratios {bound}", "headline", _side(side))
    for name in ("p01", "p50", "p99"):
        meaning = f"{QUANTILES[name]:g} quantile of the raw ratio at the level of the mode"
        yield Metric(f"{PREFIX}raw/{name}", meaning, "headline", _quantile(None, name))
    ess = "effective sample size, (sum w)^2 / (n sum w^2), at the level of the mode"
    yield Metric(f"{PREFIX}ess/raw", f"{ess}, before the rule", "headline", _at(None, formulas.ess_raw))
    yield Metric(f"{PREFIX}ess/corrected", f"{ess}, after the rule", "headline", formulas.ess_corrected)
    kl = "estimates KL(rollout || trainer), tokens being drawn from the rollout"
    yield Metric(f"{PREFIX}kl/k1", f"mean of -d; {kl}", "headline", _mean("token/d", scale=-1.0))
    yield Metric(f"{PREFIX}kl/k3", f"mean of expm1(d) - d; {kl}", "headline", _mean("token/k3"))
    meaning = "mean absolute log-ratio over tokens, in nats"
    yield Metric(f"{PREFIX}log_ratio/abs_mean", meaning, "headline", _mean("token/abs_d"))
    meaning = "fraction of masked-in tokens without a usable log-probability"
    yield Metric(f"{PREFIX}tokens/invalid", meaning, "headline", formulas.invalid)
    yield Metric(f"{PREFIX}rows/empty", "fraction of rows without a valid token", "headline", formulas.empty_rows)


def _level(level: str, r: str, d: str) -> Iterator[Metric]:
    """Yields the metrics of one level; ``r`` and ``d`` are the symbols of its ratio and log-ratio."""
    raw, log_ratio, n = f"{PREFIX}{level}/raw/", f"{PREFIX}{level}/log_ratio/", f"{level}/n"
    yield Metric(f"{raw}min", f"smallest {r}", "full", _at(level, View.ratio_min))
    yield Metric(f"{raw}mean", f"mean {r}", "full", _at(level, View.ratio_mean))
    yield Metric(f"{raw}max", f"largest {r}", "full", _at(level, View.ratio_max))
    yield Metric(f"{raw}std", f"population standard deviation of {r}", "full", _at(level, formulas.ratio_std))
    for name, q in QUANTILES.items():
        detail: Detail = "standard" if name in {"p01", "p05", "p50", "p95", "p99"} else "full"
        yield Metric(f"{raw}{name}", f"exp of the {q:g} quantile of {d}", detail, _quantile(level, name))
    yield Metric(f"{log_ratio}mean", f"mean {d}, in nats", "standard", _mean(f"{level}/d", n))
    meaning = f"population standard deviation of {d}, in nats"
    yield Metric(f"{log_ratio}std", meaning, "standard", _at(level, formulas.log_ratio_std))
    yield Metric(f"{log_ratio}min", f"smallest {d}, in nats", "full", _at(level, View.minimum))
    yield Metric(f"{log_ratio}max", f"largest {d}, in nats", "full", _at(level, View.maximum))
    yield Metric(f"{log_ratio}abs_mean", f"mean absolute {d}, in nats", "standard", _mean(f"{level}/abs_d", n))
    yield Metric(f"{log_ratio}abs_max", f"largest absolute {d}, in nats", "full", _at(level, formulas.abs_max))
    meaning = f"effective sample size, (sum {r})^2 / (n sum {r}^2)"
    yield Metric(f"{PREFIX}{level}/ess/raw", meaning, "standard", _at(level, formulas.ess_raw))
    meaning = "the same after the rule, only at the rule's level"
    yield Metric(
        f"{PREFIX}{level}/ess/corrected",
        meaning,
        "standard",
        lambda view: formulas.ess_corrected(view) if view.level == level else None,
    )
    detail = "standard" if level == "sequence" else "full"
    meaning = f"largest {r} / sum of {r}"
    yield Metric(f"{PREFIX}{level}/max_weight_share", meaning, detail, _at(level, formulas.max_weight_share))
    meaning = f"exp(entropy of {r} / sum of {r}) / n"
    yield Metric(f"{PREFIX}{level}/perplexity", meaning, "full", _at(level, formulas.weight_perplexity))
    meaning = f"chi-squared divergence, mean {r}^2 - 1"
    yield Metric(f"{PREFIX}chi2/{level}", meaning, "full", _at(level, formulas.chi2))


def _rows() -> Iterator[Metric]:
    at = f"{PREFIX}sequence/geometric/"
    of = "exp(D_i / n_i), the row's geometric mean ratio per token"
    yield Metric(f"{at}mean", f"mean {of}", "standard", _mean("geometric/ratio", "sequence/n"))
    yield Metric(f"{at}min", f"smallest {of}", "full", _at("geometric", View.ratio_min))
    yield Metric(f"{at}max", f"largest {of}", "full", _at("geometric", View.ratio_max))
    for name in ("p05", "p50", "p95"):
        yield Metric(f"{at}{name}", f"{QUANTILES[name]:g} quantile of {of}", "full", _quantile("geometric", name))
    meaning = "Pareto k-hat of R_i: how heavy their upper tail is"
    yield Metric(f"{PREFIX}sequence/pareto_k", meaning, "full", formulas.pareto_k)
    meaning = "the worst row's mean absolute d_t, in nats"
    yield Metric(f"{PREFIX}row/abs_mean_max", meaning, "standard", _maximum("row/abs_mean_max"))
    meaning = "fraction of rows whose mean absolute d_t exceeds 1 nat"
    yield Metric(f"{PREFIX}row/over_1nat", meaning, "full", _fraction("row/over_1nat", "sequence/n"))
    for side in ("train", "rollout"):
        meaning = f"exp(-mean {side} logp) of each row, averaged over rows"
        yield Metric(f"{PREFIX}perplexity/{side}", meaning, "full", _mean(f"perplexity/{side}", "sequence/n"))
    meaning = "train perplexity / rollout perplexity of each row, averaged over rows"
    yield Metric(f"{PREFIX}perplexity/ratio", meaning, "full", _mean("perplexity/ratio", "sequence/n"))


def _rule() -> Iterator[Metric]:
    at = "weight after the rule, zeros of masking included"
    smallest, mean, largest = map(_corrected, (formulas.corrected_min, formulas.corrected_mean, formulas.corrected_max))
    yield Metric(f"{PREFIX}corrected/min", f"smallest {at}", "full", smallest)
    yield Metric(f"{PREFIX}corrected/mean", f"mean {at}", "standard", mean)
    yield Metric(f"{PREFIX}corrected/max", f"largest {at}", "full", largest)
    meaning = "fraction of raw ratios outside [lower, upper]; under stages, of tokens that are not as they were"
    yield Metric(f"{PREFIX}modified/fraction", meaning, "standard", formulas.modified)
    for done, formula in (("truncated", formulas.truncated), ("masked", formulas.masked)):
        yield Metric(f"{PREFIX}modified/{done}", f"fraction of ratios that were {done}", "full", formula)
    for side in ("positive_advantage", "negative_advantage"):
        meaning = f"modified fraction among ratios of rows with {side.replace('_', ' ')}"
        yield Metric(f"{PREFIX}modified/{side}", meaning, "standard", _fraction(f"{side}/modified", f"{side}/n"))
    meaning = "sum(|advantage| (raw - corrected)+) / sum(|advantage| raw)"
    yield Metric(f"{PREFIX}modified/gradient_removed", meaning, "full", formulas.gradient_removed)


def _tokens() -> Iterator[Metric]:
    yield Metric(f"{PREFIX}kl/k2", "mean of d^2 / 2", "full", _mean("token/d2", scale=0.5))
    meaning = "mean of expm1(-d) + d; not an estimator of KL(trainer || rollout) on the rollout's samples"
    yield Metric(f"{PREFIX}kl/reverse_k3", meaning, "full", _mean("token/reverse_k3"))
    of = "fraction of r_t outside"
    yield Metric(f"{PREFIX}outside/0.9_1.1", f"{of} [0.9, 1.1]", "standard", _fraction("outside/0.9_1.1"))
    yield Metric(f"{PREFIX}outside/0.5_2", f"{of} [0.5, 2]", "full", _fraction("outside/0.5_2"))
    yield Metric(f"{PREFIX}mult_prob_error", "mean exp(|d|)", "full", _mean("token/mult_prob_error"))
    meaning = "slope of the least-squares line of train logp on rollout logp"
    yield Metric(f"{PREFIX}calibration/slope", meaning, "standard", formulas.slope)
    yield Metric(f"{PREFIX}calibration/intercept", "its intercept, in nats", "full", formulas.intercept)
    for name, what in (("calibration", "logp"), ("probability", "probability")):
        meaning = f"correlation of train and rollout {what}"
        yield Metric(f"{PREFIX}{name}/pearson", meaning, "full", _at(what, formulas.pearson))
    meaning = "mean absolute difference of train and rollout probability"
    yield Metric(f"{PREFIX}probability/abs_mean", meaning, "full", _mean("probability/abs_difference"))
    yield Metric(f"{PREFIX}probability/abs_max", "largest such difference", "full", _maximum("probability/abs_max"))
    logps = "correlation of train logp and"
    yield Metric(f"{PREFIX}alignment/lag_-1", f"{logps} the rollout logp of the token before", "full", _lag(-1))
    lag_0 = _at("logp", formulas.pearson)
    yield Metric(f"{PREFIX}alignment/lag_0", f"{logps} rollout logp of the same token", "full", lag_0)
    yield Metric(f"{PREFIX}alignment/lag_1", f"{logps} the rollout logp of the next token", "full", _lag(1))
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
            yield Metric(f"{PREFIX}{place}/{name}", meaning, "full", _mean(f"{place}/{total}", f"{place}/n"))
        detail: Detail = "standard" if name == "abs_mean" else "full"
        place = "position/last"
        meaning = f"{of} of each row's last valid token, in nats"
        yield Metric(f"{PREFIX}{place}/{name}", meaning, detail, _mean(f"{place}/{total}", f"{place}/n"))
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
    yield Metric(f"{at}abs_mean", f"mean absolute {of}", "full", _mean("noise/abs_d", "noise/n"))
    yield Metric(f"{at}std", f"population standard deviation of the signed {of}", "full", formulas.noise_std)
    yield Metric(f"{at}max", f"largest absolute {of}", "full", _maximum("noise/abs_max"))
    meaning = "mean absolute d_t in multiples of that mean; where it is not 0"
    yield Metric(f"{at}multiple", meaning, "standard", formulas.noise_multiple)


def _drift() -> Iterator[Metric]:
    at = f"{PREFIX}drift/"
    of = "e_t, how far the policy has moved since it scored the batch, in nats; where that was observed"
    yield Metric(f"{at}abs_mean", f"mean absolute {of}", "standard", _mean("drift/abs_d", "drift/n"))
    yield Metric(f"{at}mean", f"mean {of}", "full", _mean("drift/d", "drift/n"))
    meaning = "mean of expm1(e) - e; estimates KL(old || current) as far as the old policy is what sampled"
    yield Metric(f"{at}k3", meaning, "full", _mean("drift/k3", "drift/n"))
    yield Metric(f"{at}ratio_min", "smallest exp(e_t), the loss's own ratio", "full", _at("drift", View.ratio_min))
    yield Metric(f"{at}ratio_max", "largest exp(e_t)", "full", _at("drift", View.ratio_max))
    meaning = "fraction of exp(e_t) outside the loss's clip range, whatever the advantage's sign; where it was given"
    yield Metric(f"{at}outside", meaning, "standard", _fraction("drift/outside", "drift/clippable"))


def _counts() -> Iterator[Metric]:
    at = f"{PREFIX}counts/"
    of = "masked-in tokens with"
    yield Metric(f"{at}tokens", "valid tokens", "standard", _at("token/n", View.count))
    yield Metric(f"{at}rows", "rows with at least one valid token", "standard", _at("sequence/n", View.count))
    yield Metric(f"{at}rows_empty", "rows without a valid token", "standard", _at("rows_empty", View.count))
    yield Metric(f"{at}nan", f"{of} a NaN log-probability", "standard", _at("nan", View.count))
    yield Metric(f"{at}inf", f"{of} an infinite log-probability or difference", "standard", _at("inf", View.count))
    meaning = f"{of} a rollout log-probability above 0"
    yield Metric(f"{at}positive_logp", meaning, "standard", _at("positive_logp", View.count))
    yield Metric(f"{at}missing", f"{of}out any log-probability", "standard", _at("missing", View.count))
    for side in ("train", "rollout"):
        meaning = f"valid tokens whose {side} log-probability is exactly 0"
        yield Metric(f"{at}zero_{side}_logp", meaning, "full", _at(f"zero_{side}_logp", View.count))
    meaning = "ratios at the level of the mode that float32 cannot hold (log-ratio above 88.72)"
    yield Metric(f"{at}overflow", meaning, "standard", lambda view: view.count(f"{view.level}/overflow"))
    yield Metric(f"{at}generations", "generation batches in the window", "full", _maximum("generations"))


CATALOGUE: tuple[Metric, ...] = (
    *_headline(),
    *_level("token", "r_t", "d_t"),
    *_level("sequence", "R_i", "D_i"),
    *_rows(),
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
