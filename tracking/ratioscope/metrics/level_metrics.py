"""Metrics of the distribution of ratios: of each level, and of completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.metrics import formulas
from ratioscope.metrics.metric import PREFIX, Detail, Metric
from ratioscope.metrics.terms import at_level, fraction_of, maximum_of, mean_of, quantile_of
from ratioscope.metrics.view import QUANTILES, View

if TYPE_CHECKING:
    from collections.abc import Iterator


def level_metrics(level: str, r: str, d: str) -> Iterator[Metric]:
    """Yields the metrics of one level; ``r`` and ``d`` are the symbols of its ratio and log-ratio."""
    raw, log_ratio, n = f"{PREFIX}{level}/raw/", f"{PREFIX}{level}/log_ratio/", f"{level}/n"
    yield Metric(f"{raw}min", f"smallest {r}", "full", at_level(level, View.ratio_min))
    yield Metric(f"{raw}mean", f"mean {r}", "full", at_level(level, View.ratio_mean))
    yield Metric(f"{raw}max", f"largest {r}", "full", at_level(level, View.ratio_max))
    yield Metric(f"{raw}std", f"population standard deviation of {r}", "full", at_level(level, formulas.ratio_std))
    for name, q in QUANTILES.items():
        detail: Detail = "standard" if name in {"p01", "p05", "p50", "p95", "p99"} else "full"
        yield Metric(f"{raw}{name}", f"exp of the {q:g} quantile of {d}", detail, quantile_of(level, name))
    yield Metric(f"{log_ratio}mean", f"mean {d}, in nats", "standard", mean_of(f"{level}/d", n))
    meaning = f"population standard deviation of {d}, in nats"
    yield Metric(f"{log_ratio}std", meaning, "standard", at_level(level, formulas.log_ratio_std))
    yield Metric(f"{log_ratio}min", f"smallest {d}, in nats", "full", at_level(level, View.minimum))
    yield Metric(f"{log_ratio}max", f"largest {d}, in nats", "full", at_level(level, View.maximum))
    yield Metric(f"{log_ratio}abs_mean", f"mean absolute {d}, in nats", "standard", mean_of(f"{level}/abs_d", n))
    yield Metric(f"{log_ratio}abs_max", f"largest absolute {d}, in nats", "full", at_level(level, formulas.abs_max))
    yield from _weight_metrics(level, r)


def _weight_metrics(level: str, r: str) -> Iterator[Metric]:
    meaning = f"effective sample size, (sum {r})^2 / (n sum {r}^2)"
    yield Metric(f"{PREFIX}{level}/ess/raw", meaning, "standard", at_level(level, formulas.ess_raw))
    meaning = "the same after the rule, only at the rule's level"
    yield Metric(
        f"{PREFIX}{level}/ess/corrected",
        meaning,
        "standard",
        lambda view: formulas.ess_corrected(view) if view.level == level else None,
    )
    detail: Detail = "standard" if level == "sequence" else "full"
    meaning = f"largest {r} / sum of {r}"
    yield Metric(f"{PREFIX}{level}/max_weight_share", meaning, detail, at_level(level, formulas.max_weight_share))
    meaning = f"exp(entropy of {r} / sum of {r}) / n"
    yield Metric(f"{PREFIX}{level}/perplexity", meaning, "full", at_level(level, formulas.weight_perplexity))
    meaning = f"chi-squared divergence, mean {r}^2 - 1"
    yield Metric(f"{PREFIX}chi2/{level}", meaning, "full", at_level(level, formulas.chi2))


def row_metrics() -> Iterator[Metric]:
    """Yields the metrics of completions."""
    at = f"{PREFIX}sequence/geometric/"
    of = "exp(D_i / n_i), the row's geometric mean ratio per token"
    yield Metric(f"{at}mean", f"mean {of}", "standard", mean_of("geometric/ratio", "sequence/n"))
    yield Metric(f"{at}min", f"smallest {of}", "full", at_level("geometric", View.ratio_min))
    yield Metric(f"{at}max", f"largest {of}", "full", at_level("geometric", View.ratio_max))
    for name in ("p05", "p50", "p95"):
        yield Metric(f"{at}{name}", f"{QUANTILES[name]:g} quantile of {of}", "full", quantile_of("geometric", name))
    meaning = "Pareto k-hat of R_i: how heavy their upper tail is"
    yield Metric(f"{PREFIX}sequence/pareto_k", meaning, "full", formulas.pareto_k)
    meaning = "the worst row's mean absolute d_t, in nats"
    yield Metric(f"{PREFIX}row/abs_mean_max", meaning, "standard", maximum_of("row/abs_mean_max"))
    meaning = "fraction of rows whose mean absolute d_t exceeds 1 nat"
    yield Metric(f"{PREFIX}row/over_1nat", meaning, "full", fraction_of("row/over_1nat", "sequence/n"))
    for side in ("train", "rollout"):
        meaning = f"exp(-mean {side} logp) of each row, averaged over rows"
        yield Metric(f"{PREFIX}perplexity/{side}", meaning, "full", mean_of(f"perplexity/{side}", "sequence/n"))
    meaning = "train perplexity / rollout perplexity of each row, averaged over rows"
    yield Metric(f"{PREFIX}perplexity/ratio", meaning, "full", mean_of("perplexity/ratio", "sequence/n"))
