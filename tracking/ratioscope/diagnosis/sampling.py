"""Causes by which the distribution that was sampled is not the one that is scored."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ratioscope.config.lookup import UNKNOWN
from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Sign, Unchecked
from ratioscope.diagnosis.settings import truncating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.diagnosis.run import Run


class _Deficit(NamedTuple):
    """Deficit of the mean ratio below 1, in standard errors too, and the 1st and 99th percentile of the ratio."""

    size: float
    errors: float
    p01: float
    p99: float


def support_truncation(run: Run) -> Sign | None:
    """The mean token ratio is below 1 by many standard errors while d is narrow and has no upper side.

    Each ratio is the probability mass that was kept, times noise. A setting in the config confirms it.
    """
    if run.steady.summary is None and not run.steady.tokens:
        return _from_two_means(run)
    deficit, named = _deficit(run), truncating(run)
    if deficit is None or (_is_constant(run) and not named):
        return None
    text = (
        f"mean token ratio {1.0 - deficit.size:.4f}, {deficit.errors:.0f} standard errors below 1, where full support "
        f"gives 1: about {deficit.size:.1%} of the probability is cut; 98 % of the ratios are in {deficit.p01:.3g} to "
        f"{deficit.p99:.3g}"
    )
    if named:
        text += f"; the config has {', '.join(named)}"
    completions, tokens = run.steady.get("counts/rows"), run.steady.tokens
    if run.level == "sequence" and completions:
        length = tokens / completions
        text += f"; over {length:.0f} tokens a sequence weight shrinks to {math.exp(length * _mean(run)):.2g}"
    return Sign("error" if deficit.size >= thresholds.MASS_CUT_BAD else "warning", "high" if named else "medium", text)


def temperature(run: Run) -> Sign | None:
    """The calibration slope is not 1, by many standard errors, and d follows the log-probability itself.

    The mean ratio is not below 1.
    """
    pool = run.steady
    n, slope = pool.enough(thresholds.FEWEST_TOKENS), pool.need("calibration/slope")
    pearson, spread = pool.need("calibration/pearson"), pool.need("token/log_ratio/std")
    if pearson < thresholds.SLOPE_PEARSON or abs(slope - 1.0) < thresholds.SLOPE_OFF or not spread:
        return None
    # slope = pearson * scale, and the variance of d = train - rollout is that of rollout times 1 + scale^2 - 2 * slope.
    scale = slope / pearson  # the trainer's spread over the rollout's
    rollout_spread = spread / math.sqrt(max(1.0 + scale**2 - 2.0 * pearson * scale, 1e-12))
    follows = abs(slope - 1.0) * rollout_spread / spread  # correlation of d with the rollout's log-probability
    errors = abs(slope - 1.0) / max(scale * math.sqrt(max(1.0 - pearson**2, 0.0) / n), 1e-12)
    if follows < thresholds.SLOPE_FOLLOWS or errors < thresholds.CLEAR or _deficit(run) is not None:
        return None
    text = (
        f"calibration slope {slope:.3f} ({errors:.0f} standard errors from 1, correlation of d with the rollout's "
        f"log-probability {follows:.2f}): as if one side's logits were divided by about {max(slope, 1 / slope):.2f}"
    )
    return _with_temperatures(run, text)


def _with_temperatures(run: Run, text: str) -> Sign:
    """Sign of a temperature, certain if the config has temperatures that explain it."""
    sampled, scored = run.number("sampling.temperature"), run.number("sampling.scoring_temperature")
    if sampled is None:
        return Sign("error", "medium", text)
    mode = run.setting("engine.logprobs_mode")
    named = sampled != scored or (sampled != 1.0 and mode != "processed_logprobs")
    text += f"; the config samples at {sampled:g}, scores at {scored or 'unknown'}, logprobs_mode {mode}"
    return Sign("error", "high" if named else "medium", text)


def constant_shift(run: Run) -> Sign | None:
    """A nearly equal d for every token, and not 0: its mean is several times its spread."""
    pool = run.steady
    pool.enough(50)
    if not _is_constant(run) or (truncating(run) and _deficit(run) is not None):
        return None
    mean, spread = _mean(run), pool.need("token/log_ratio/std")
    text = f"d is {mean:+.4g} on average with a spread of {spread:.2g}: a shift, not noise"
    if run.setting("sampling") == UNKNOWN and _deficit(run) is not None:
        text += "; top_p does the same where every context is flat, and no config excludes it"
        return Sign("error", "medium", text)
    return Sign("error", "high", text)


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


def _mean(run: Run) -> float:
    """Mean d over the steady parts, in nats."""
    return run.steady.need("token/log_ratio/mean")


def _is_constant(run: Run) -> bool:
    """Checks whether the mean of d is several times its spread.

    Truncation lowers d by up to 3 times its spread, so a downward shift needs more, unless no ratio is near 1.
    """
    mean, spread = _mean(run), run.steady.need("token/log_ratio/std")
    not_truncation = mean > 0.0 or run.steady.need("token/raw/p99") < thresholds.ALL_BELOW
    factor = thresholds.SHIFT_OVER_SPREAD if not_truncation else thresholds.DOWN_OVER_SPREAD
    return abs(mean) >= max(thresholds.SHIFT, factor * spread)


def _deficit(run: Run) -> _Deficit | None:
    """Deficit of the mean ratio below 1 that only a truncated support explains; None if there is none.

    Tokens are drawn from the engine's q, so E[p / q] is the mass that p has where q is positive: 1 unless the support
    is cut or one side is not normalised.

    Raises:
        Unchecked: if there are too few tokens.
    """
    pool = run.steady
    pool.enough(thresholds.FEWEST_TOKENS)
    p01, p99 = pool.need("token/raw/p01"), pool.need("token/raw/p99")
    if pool.need("token/log_ratio/std") > thresholds.WIDEST_SHIFT:
        return None
    size = 1.0 - run.ratio_mean(pool)
    spread = pool.get("token/raw/std")
    # Where d is narrow, ratio = exp(d) is about 1 + d, so the spreads of both are nearly equal.
    spread = pool.need("token/log_ratio/std") if spread is None else spread
    errors = size / max(run.ratio_error(spread), 1e-12)
    if p01 < thresholds.LEAST_KEPT or p99 > math.exp(thresholds.ONE_SIDED):
        return None
    return _Deficit(size, errors, p01, p99) if size >= thresholds.MASS_CUT and errors >= thresholds.CLEAR else None
