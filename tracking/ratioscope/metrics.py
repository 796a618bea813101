"""The catalogue: every statistic's key, meaning, and how it is computed from a summary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from ratioscope import formulas
from ratioscope.formulas import QUANTILES, View
from ratioscope.slots import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratioscope.summary import RatioSummary

Detail = Literal["headline", "standard", "full"]
"""How much is sent: what enters the trainer's own log; about 35 more for trackers; everything. Each holds the last."""

PREFIX = "ratioscope/"


@dataclass(frozen=True)
class Metric:
    """One statistic.

    Attributes:
        key: full name, as trackers see it.
        meaning: one line for the reference page.
        detail: the smallest detail that includes it.
        compute: its value from a host view of a summary; None where there is no data.
    """

    key: str
    meaning: str
    detail: Detail
    compute: Callable[[View], float | None]


def compute(summary: RatioSummary, *, detail: str = "full") -> dict[str, float]:
    """Every statistic of the catalogue that has data, as finite Python floats.

    Raises:
        ValueError: if the detail is unknown.
    """
    wanted = keys(detail)
    view = View.of(summary)
    values: dict[str, float] = {}
    for metric in CATALOGUE:
        if metric.key in wanted:
            value = metric.compute(view)
            if value is not None and math.isfinite(value):
                values[metric.key] = float(value)
    return values


def keys(detail: str) -> frozenset[str]:
    """Keys that a detail includes.

    Raises:
        ValueError: if the detail is unknown.
    """
    order = get_args(Detail)
    if detail not in order:
        msg = f"got detail={detail!r}; expected one of {', '.join(map(repr, order))}"
        raise ValueError(msg)
    return frozenset(m.key for m in CATALOGUE if order.index(m.detail) <= order.index(detail))


def _headline() -> Iterator[Metric]:
    raw = "sampling/raw_importance_sampling_ratio"
    at = "ratio before truncation or masking, at the level of the mode"
    yield Metric(f"{raw}/min", f"smallest {at}", "headline", lambda v: v.ratio_min(v.level))
    yield Metric(f"{raw}/mean", f"mean {at}", "headline", lambda v: v.ratio_mean(v.level))
    yield Metric(f"{raw}/max", f"largest {at}", "headline", lambda v: v.ratio_max(v.level))
    fraction = "sampling/frac_modified_importance_sampling_ratio"
    yield Metric(fraction, "fraction of those ratios outside [lower, upper]", "headline", formulas.modified)
    sides = "of that fraction, what was below lower", "of that fraction, what was above upper"
    for side, meaning in zip(("low", "high"), sides, strict=True):
        yield Metric(
            f"{PREFIX}modified/{side}", meaning, "headline", lambda v, s=side: v.fraction(f"modified/{s}", "corrected/n")
        )
    for name in ("p01", "p50", "p99"):
        meaning = f"quantile {QUANTILES[name]:g} of the raw ratio at the level of the mode"
        yield Metric(f"{PREFIX}raw/{name}", meaning, "headline", lambda v, n=name: v.ratio_quantile(v.level, n))
    ess = "effective sample size, (sum w)^2 / (n sum w^2), at the level of the mode"
    yield Metric(f"{PREFIX}ess/raw", f"{ess}, before the rule", "headline", lambda v: formulas.ess_raw(v, v.level))
    yield Metric(f"{PREFIX}ess/corrected", f"{ess}, after the rule", "headline", formulas.ess_corrected)
    kl = "estimates KL(rollout || trainer), tokens being drawn from the rollout"
    yield Metric(f"{PREFIX}kl/k1", f"mean of -d; {kl}", "headline", lambda v: v.mean("token/d", "token/n", scale=-1.0))
    yield Metric(f"{PREFIX}kl/k3", f"mean of expm1(d) - d; {kl}", "headline", lambda v: v.mean("token/k3", "token/n"))
    meaning = "mean absolute log-ratio over tokens, in nats"
    yield Metric(f"{PREFIX}log_ratio/abs_mean", meaning, "headline", lambda v: v.mean("token/abs_d", "token/n"))
    meaning = "fraction of masked-in tokens without a usable log-probability"
    yield Metric(f"{PREFIX}tokens/invalid", meaning, "headline", formulas.invalid)
    yield Metric(f"{PREFIX}rows/empty", "fraction of rows without a valid token", "headline", formulas.empty_rows)


def _levels() -> Iterator[Metric]:
    symbols = {"token": ("r_t", "d_t"), "sequence": ("R_i", "D_i")}
    for level in LEVELS:
        ratio, log_ratio = symbols[level]
        at = f"{PREFIX}{level}/"
        yield Metric(f"{at}raw/min", f"smallest {ratio}", "full", lambda v, x=level: v.ratio_min(x))
        yield Metric(f"{at}raw/mean", f"mean {ratio}", "full", lambda v, x=level: v.ratio_mean(x))
        yield Metric(f"{at}raw/max", f"largest {ratio}", "full", lambda v, x=level: v.ratio_max(x))
        meaning = f"population standard deviation of {ratio}"
        yield Metric(f"{at}raw/std", meaning, "full", lambda v, x=level: formulas.ratio_std(v, x))
        for name, q in QUANTILES.items():
            detail: Detail = "standard" if name in {"p01", "p05", "p50", "p95", "p99"} else "full"
            meaning = f"exp of the {q:g} quantile of {log_ratio}"
            yield Metric(f"{at}raw/{name}", meaning, detail, lambda v, x=level, n=name: v.ratio_quantile(x, n))
        yield Metric(
            f"{at}log_ratio/mean", f"mean {log_ratio}, in nats", "standard", lambda v, x=level: v.mean(f"{x}/d", f"{x}/n")
        )
        meaning = f"population standard deviation of {log_ratio}, in nats"
        yield Metric(f"{at}log_ratio/std", meaning, "standard", lambda v, x=level: formulas.log_ratio_std(v, x))
        yield Metric(f"{at}log_ratio/min", f"smallest {log_ratio}", "full", lambda v, x=level: v.minimum(x))
        yield Metric(f"{at}log_ratio/max", f"largest {log_ratio}", "full", lambda v, x=level: v.maximum(x))
        meaning = f"mean absolute {log_ratio}, in nats"
        yield Metric(
            f"{at}log_ratio/abs_mean", meaning, "standard", lambda v, x=level: v.mean(f"{x}/abs_d", f"{x}/n")
        )
        meaning = f"largest absolute {log_ratio}"
        yield Metric(f"{at}log_ratio/abs_max", meaning, "full", lambda v, x=level: formulas.abs_max(v, x))
        meaning = f"(sum {ratio})^2 / (n sum {ratio}^2)"
        yield Metric(f"{at}ess/raw", meaning, "standard", lambda v, x=level: formulas.ess_raw(v, x))
        meaning = "the same after the rule; only at the rule's level"
        yield Metric(
            f"{at}ess/corrected", meaning, "standard", lambda v, x=level: formulas.ess_corrected(v) if v.level == x else None
        )
        detail = "standard" if level == "sequence" else "full"
        meaning = f"largest {ratio} / sum of {ratio}"
        yield Metric(f"{at}max_weight_share", meaning, detail, lambda v, x=level: formulas.max_weight_share(v, x))
        meaning = f"exp(entropy of {ratio} / sum of {ratio}) / n"
        yield Metric(f"{at}perplexity", meaning, "full", lambda v, x=level: formulas.weight_perplexity(v, x))
        meaning = f"chi-squared divergence, mean {ratio}^2 - 1"
        yield Metric(f"{PREFIX}chi2/{level}", meaning, "full", lambda v, x=level: formulas.chi2(v, x))


def _rows() -> Iterator[Metric]:
    at = f"{PREFIX}sequence/geometric/"
    of = "exp(D_i / n_i), the row's geometric mean ratio per token"
    mean = lambda v: v.mean("geometric/ratio", "sequence/n")  # noqa: E731
    yield Metric(f"{at}mean", f"mean {of}", "standard", mean)
    yield Metric(f"{at}min", f"smallest {of}", "full", lambda v: v.exp(v.minimum("geometric")))
    yield Metric(f"{at}max", f"largest {of}", "full", lambda v: v.exp(v.maximum("geometric")))
    for name in ("p05", "p50", "p95"):
        meaning = f"{QUANTILES[name]:g} quantile of {of}"
        yield Metric(f"{at}{name}", meaning, "full", lambda v, n=name: v.ratio_quantile("geometric", n))
    meaning = "the worst row's mean absolute d, in nats"
    yield Metric(f"{PREFIX}row/abs_mean_max", meaning, "standard", lambda v: v.slot_max("row/abs_mean_max"))
    meaning = "fraction of rows whose mean absolute d exceeds 1 nat"
    yield Metric(f"{PREFIX}row/over_1nat", meaning, "full", lambda v: v.fraction("row/over_1nat", "sequence/n"))
    for side in ("train", "rollout"):
        meaning = f"exp(-mean {side} logp) of each row, averaged over rows"
        yield Metric(
            f"{PREFIX}perplexity/{side}", meaning, "full", lambda v, s=side: v.mean(f"perplexity/{s}", "sequence/n")
        )
    meaning = "train perplexity / rollout perplexity of each row, averaged over rows"
    yield Metric(f"{PREFIX}perplexity/ratio", meaning, "full", lambda v: v.mean("perplexity/ratio", "sequence/n"))


def _rule() -> Iterator[Metric]:
    at = "weight after the rule, zeros of masking included"
    yield Metric(f"{PREFIX}corrected/min", f"smallest {at}", "full", lambda v: v.corrected(v.minimum("corrected")))
    mean = lambda v: v.corrected(v.mean("corrected/w", "corrected/n"))  # noqa: E731
    yield Metric(f"{PREFIX}corrected/mean", f"mean {at}", "standard", mean)
    yield Metric(f"{PREFIX}corrected/max", f"largest {at}", "full", lambda v: v.corrected(v.maximum("corrected")))
    yield Metric(f"{PREFIX}modified/fraction", "fraction of raw ratios outside [lower, upper]", "standard", formulas.modified)
    for done, action in (("truncated", "truncate"), ("masked", "mask")):
        meaning = f"fraction of ratios that were {done}"
        yield Metric(f"{PREFIX}modified/{done}", meaning, "full", lambda v, a=action: formulas.modified_by(v, a))
    for sign in ("positive", "negative"):
        meaning = f"modified fraction among ratios of rows with {sign} advantage"
        yield Metric(
            f"{PREFIX}modified/{sign}_advantage",
            meaning,
            "standard",
            lambda v, s=sign: v.fraction(f"{s}_advantage/modified", f"{s}_advantage/n"),
        )
    meaning = "sum(|advantage| (raw - corrected)+) / sum(|advantage| raw)"
    yield Metric(f"{PREFIX}modified/gradient_removed", meaning, "full", formulas.gradient_removed)


def _tokens() -> Iterator[Metric]:
    yield Metric(f"{PREFIX}kl/k2", "mean of d^2 / 2", "full", lambda v: v.mean("token/d2", "token/n", scale=0.5))
    meaning = "mean of expm1(-d) + d; not an estimator of KL(trainer || rollout) on the rollout's samples"
    yield Metric(f"{PREFIX}kl/reverse_k3", meaning, "full", lambda v: v.mean("token/reverse_k3", "token/n"))
    for band, detail in (("0.9_1.1", "standard"), ("0.5_2", "full")):
        meaning = f"fraction of r_t outside [{band.replace('_', ', ')}]"
        yield Metric(f"{PREFIX}outside/{band}", meaning, detail, lambda v, b=band: v.fraction(f"outside/{b}", "token/n"))  # type: ignore[arg-type]
    meaning = "mean exp(|d|)"
    yield Metric(f"{PREFIX}mult_prob_error", meaning, "full", lambda v: v.mean("token/mult_prob_error", "token/n"))
    meaning = "slope of the least-squares line of train logp on rollout logp"
    yield Metric(f"{PREFIX}calibration/slope", meaning, "standard", lambda v: formulas.line(v, "logp")[0])
    yield Metric(f"{PREFIX}calibration/intercept", "its intercept, in nats", "full", lambda v: formulas.line(v, "logp")[1])
    meaning = "correlation of train logp and rollout logp"
    yield Metric(f"{PREFIX}calibration/pearson", meaning, "full", lambda v: formulas.pearson(v, "logp"))
    meaning = "correlation of train and rollout probability"
    yield Metric(f"{PREFIX}probability/pearson", meaning, "full", lambda v: formulas.pearson(v, "probability"))
    meaning = "mean absolute difference of train and rollout probability"
    mean = lambda v: v.mean("probability/abs_difference", "token/n")  # noqa: E731
    yield Metric(f"{PREFIX}probability/abs_mean", meaning, "full", mean)
    yield Metric(
        f"{PREFIX}probability/abs_max", "largest such difference", "full", lambda v: v.slot_max("probability/abs_max")
    )
    meaning = "1 if train and rollout logp are bit-equal on every valid token of more than 100, else 0"
    yield Metric(f"{PREFIX}identical", meaning, "full", formulas.identical)


def _counts() -> Iterator[Metric]:
    at = f"{PREFIX}counts/"
    slots: tuple[tuple[str, str, Detail, str], ...] = (
        ("tokens", "token/n", "standard", "valid tokens"),
        ("rows", "sequence/n", "standard", "rows with at least one valid token"),
        ("rows_empty", "rows_empty", "full", "rows without a valid token"),
        ("nan", "nan", "full", "masked-in tokens with a NaN log-probability"),
        ("inf", "inf", "full", "masked-in tokens with an infinite log-probability"),
        ("positive_logp", "positive_logp", "full", "masked-in tokens with a rollout log-probability above 0"),
        ("missing", "missing", "full", "masked-in tokens without any log-probability"),
    )
    for name, slot, detail, meaning in slots:
        yield Metric(f"{at}{name}", meaning, detail, lambda v, s=slot: float(v.counts[s]))
    meaning = "ratios at the level of the mode that float32 cannot hold (log-ratio above 88.72)"
    yield Metric(f"{at}overflow", meaning, "standard", lambda v: float(v.counts[f"{v.level}/overflow"]))
    yield Metric(f"{at}generations", "generation batches in the window", "full", lambda v: v.slot_max("generations"))


CATALOGUE: tuple[Metric, ...] = (*_headline(), *_levels(), *_rows(), *_rule(), *_tokens(), *_counts())
"""Every statistic, in the order of the reference page."""
