"""Truncation: tokens that were sampled from a part of the support."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.core import core, narrow_ratio
from ratioscope.diagnosis.findings import Sign, Unchecked
from ratioscope.diagnosis.named import truncating
from ratioscope.state.histogram import representatives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.diagnosis.pool import Pool
    from ratioscope.diagnosis.run import Run

_REPRESENTATIVES = representatives()
_NEAR = np.where(np.abs(_REPRESENTATIVES) <= thresholds.CUT_NATS, -np.expm1(np.minimum(_REPRESENTATIVES, 1.0)), 0.0)
"""1 - r of each bucket; 0 for those beyond ``thresholds.CUT_NATS``."""


class Deficit(NamedTuple):
    """Deficit of the mean ratio below 1, its standard error, and the 1st and 99th percentile of the ratio."""

    size: float
    error: float
    p01: float
    p99: float


def support_truncation(run: Run) -> Sign | None:
    """The mean token ratio is below 1 by many standard errors, and not because of a few tokens.

    Each ratio is the probability mass that was kept, times noise. A setting in the config confirms it.
    """
    if run.steady.summary is None and not run.steady.tokens:
        return _from_two_means(run)
    _need_sampled(run)
    named, deficit = truncating(run), deficit_of(run)
    if deficit is None:
        if named:
            msg = f"the config has {', '.join(named)}, and the mean ratio is {_mean_ratio(run)}: too near 1 to tell"
            raise Unchecked(msg)
        return None
    if is_constant(run) and not named:
        return None
    text = (
        f"mean token ratio {1.0 - deficit.size:.4f}, {deficit.size / deficit.error:.0f} standard errors below 1, where "
        f"full support gives 1: about {deficit.size:.1%} of the probability is cut; 98 % of the ratios are in "
        f"{deficit.p01:.3g} to {deficit.p99:.3g}"
    )
    if named:
        text += f"; the config has {', '.join(named)}"
    completions, tokens = run.steady.get("counts/rows"), run.steady.tokens
    if run.level == "sequence" and completions:
        length, mean = tokens / completions, run.steady.need("token/log_ratio/mean")
        text += f"; over {length:.0f} tokens a sequence weight shrinks to {math.exp(length * mean):.2g}"
    return Sign("error" if deficit.size >= thresholds.MASS_CUT_BAD else "warning", "high" if named else "medium", text)


def _need_sampled(run: Run) -> None:
    """Raises ``Unchecked`` where the mean ratio is low for another reason."""
    if near_greedy(run):
        msg = "sampling near temperature 0 takes one token of each context too"
        raise Unchecked(msg)
    if core(run.steady).is_multiple:
        msg = "one side's values are multiples of the other's, so that their ratio is no probability"
        raise Unchecked(msg)


def deficit_of(run: Run) -> Deficit | None:
    """Deficit of the mean ratio below 1 that only a truncated support explains; None if there is none.

    Tokens are drawn from the engine's q, so E[p / q] is the mass that p has where q is positive: 1 unless the support
    is cut or one side is not normalised. Noise, stale weights and temperatures leave it at 1.

    Raises:
        Unchecked: if a sample of this size and spread says nothing of the expectation.
    """
    pool = run.steady
    pool.enough(thresholds.FEWEST_TOKENS)
    p01, p99 = pool.need("token/raw/p01"), pool.need("token/raw/p99")
    spread, (size, error) = core(pool).spread, measured(run)
    one_sided = p99 <= math.exp(thresholds.ONE_SIDED) and p01 >= thresholds.LEAST_KEPT
    if spread > thresholds.WIDEST_SHIFT and not one_sided:
        msg = f"the spread of d is {spread:.2g} nats; from {thresholds.WIDEST_SHIFT:g} on, the mean ratio of a sample "
        msg += "is no estimate of the expected one"
        raise Unchecked(msg)
    if size < thresholds.MASS_CUT or p01 < thresholds.LEAST_KEPT or _near(pool) < thresholds.MASS_CUT:
        if thresholds.CLEAR * error > thresholds.MASS_CUT_BAD:
            msg = f"the mean ratio is known to {error:.2g} only, which hides a cut of {thresholds.MASS_CUT_BAD:.0%}"
            raise Unchecked(msg)
        return None
    if size < thresholds.CLEAR * error:
        if size > thresholds.UNCLEAR * error:
            msg = f"the mean ratio is {1.0 - size:.4f}, {size / error:.1f} standard errors below 1: too few tokens"
            raise Unchecked(msg)
        return None
    return Deficit(size, error, p01, p99)


def near_greedy(run: Run) -> str | None:
    """Evidence of sampling near temperature 0: the engine is certain of nearly every token, and none is unlikely.

    Filled-in zeros stand on tokens of all probabilities; near temperature 0 only a context's likeliest are sampled.
    """
    pool = run.steady
    if pool.summary is None:
        return None
    zeros, n = pool.summary.count("zero_rollout_logp"), pool.enough(thresholds.FEWEST_TOKENS)
    flat = pool.below(-thresholds.CUT_TO_ONE) >= thresholds.GREEDY_FLAT * n
    if zeros < thresholds.GREEDY_SHARE * n or not flat or not _are_likeliest(pool):
        return None
    return (
        f"{zeros / n:.0%} of the rollout's log-probabilities are exactly 0, and the trainer finds none of these tokens "
        f"unlikely (mean d {pool.need('token/log_ratio/mean'):.3g}): as when sampling near temperature 0"
    )


def _are_likeliest(pool: Pool) -> bool:
    """Checks that hardly any token is one that the trainer finds unlikely."""
    return pool.below(-thresholds.TAIL_NATS) < thresholds.UNLIKELY_SHARE * pool.tokens


def measured(run: Run) -> tuple[float, float]:
    """1 - mean ratio over the steady parts, and its standard error. Single absurd tokens are left out."""
    pool = run.steady
    if pool.summary is not None and pool.beyond(thresholds.TAIL_NATS):
        mean, spread = narrow_ratio(pool)
        return -mean, max(spread / math.sqrt(pool.tokens), 1e-12)
    spread_of = pool.get("token/raw/std")
    # Where d is narrow, ratio = exp(d) is about 1 + d, so the spreads of both are nearly equal.
    spread = pool.need("token/log_ratio/std") if spread_of is None else spread_of
    return 1.0 - run.ratio_mean(pool), max(run.ratio_error(spread), 1e-12)


def is_constant(run: Run) -> bool:
    """Checks whether the mean of d is several times its spread.

    Truncation lowers d by up to 3 times its spread, so a downward shift needs more, unless no ratio is near 1.
    """
    moments = core(run.steady)
    not_truncation = moments.mean > 0.0 or run.steady.need("token/raw/p99") < thresholds.ALL_BELOW
    factor = thresholds.SHIFT_OVER_SPREAD if not_truncation else thresholds.DOWN_OVER_SPREAD
    return abs(moments.mean) >= max(thresholds.SHIFT, factor * moments.spread)


def _near(pool: Pool) -> float:
    """Part of the deficit that tokens within ``thresholds.CUT_NATS`` make: a cut lowers all of a flat context."""
    if pool.summary is None:
        return math.inf
    counts = pool.state.histogram("token_log_ratio")
    return float((counts * _NEAR).sum()) / max(pool.tokens, 1.0)


def _mean_ratio(run: Run) -> str:
    size, error = measured(run)
    return f"{1.0 - size:.4f} (standard error {error:.1g})"


def _from_two_means(run: Run) -> Sign:
    """Sign of truncation from TRL's mean ratio and mean |d|: if all d are negative, -log(mean ratio) is about mean |d|.

    Raises:
        Unchecked: if the two means do not fit, which excludes nothing.
    """
    pairs = _pairs_of_means(run)
    ratios = [ratio for ratio, _ in pairs]
    kept, mean_abs = sum(ratios) / len(ratios), sum(mean_abs for _, mean_abs in pairs) / len(pairs)
    spread = math.sqrt(sum((ratio - kept) ** 2 for ratio in ratios) / (len(ratios) - 1))
    errors = (1.0 - kept) / max(spread / math.sqrt(len(ratios)), 1e-12)
    low, high = thresholds.LOG_FITS
    fits = max(ratios) < 1.0 - thresholds.MASS_CUT and low <= mean_abs / -math.log(min(kept, 0.9999)) <= high
    if not fits or errors < thresholds.CLEAR:
        msg = "a trainer's own log has no count of tokens; its means do not show it and cannot exclude it"
        raise Unchecked(msg)
    text = (
        f"mean ratio {kept:.3f}, below 1 in each of {len(ratios)} windows ({errors:.0f} standard errors), and mean |d| "
        f"{mean_abs:.3g} is about its -log, {-math.log(kept):.3g}: nearly all d are negative, if the mode is a token "
        "mode; that mean is taken after the trainer's cut, which lowers it too"
    )
    named = truncating(run)
    if named and run.level == "token":
        return Sign("warning", "medium", f"{text}; the config has {', '.join(named)}")
    return Sign("warning", "low", text)


def _pairs_of_means(run: Run) -> Sequence[tuple[float, float]]:
    """Mean ratio and mean |d| of each window of a trainer's own log.

    Raises:
        Unchecked: if the ratios are those of sequences, or if there are too few windows.
    """
    if run.level == "sequence":
        msg = "the trainer's ratios are those of sequences, and it logs no mean ratio of tokens"
        raise Unchecked(msg)
    names = ("sampling/raw_importance_sampling_ratio/mean", "sampling/importance_sampling_ratio/mean")
    ratios = [next((part.scalars[name] for name in names if name in part.scalars), None) for part in run.filled]
    pairs = [
        (ratio, part.abs_mean)
        for ratio, part in zip(ratios, run.filled, strict=True)
        if ratio is not None and ratio > 0.0
    ]
    if len(pairs) < thresholds.FEWEST_FOR_SCATTER:
        msg = "needs the mean ratio of tokens, or a trainer's own log of several windows"
        raise Unchecked(msg)
    return pairs
