"""Causes that are really settings: the distribution that was sampled is not the one that is scored."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ratioscope.config.lookup import UNKNOWN
from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Sign, Unchecked
from ratioscope.diagnosis.settings import truncating

if TYPE_CHECKING:
    from ratioscope.diagnosis.run import Run


class _Deficit(NamedTuple):
    """How far the mean ratio is below 1, its standard error, and the two ends of d."""

    size: float
    errors: float
    low: float
    high: float


def support_truncation(run: Run) -> Sign | None:
    """The mean token ratio is below 1 by many standard errors while d is narrow and has no upper side.

    Each ratio is the mass that was kept, times noise. The config confirms.
    """
    if run.steady.summary is None and not run.steady.tokens:
        return _from_a_trainers_log(run)
    found, named = _deficit(run), truncating(run)
    if found is None or (_is_constant(run) and not named):
        return None
    kept = 1.0 - found.size
    text = (
        f"mean token ratio {kept:.4f}, {found.errors:.0f} standard errors below 1, where full support gives 1: about "
    )
    text += f"{found.size:.1%} of the probability is cut; 98 % of the ratios are in {found.low:.3g} to {found.high:.3g}"
    if named:
        text += f"; the config has {', '.join(named)}"
    level = run.level
    rows, tokens = run.steady.get("counts/rows"), run.steady.tokens
    if level == "sequence" and rows:
        length = tokens / rows
        text += f"; over {length:.0f} tokens a sequence weight shrinks to {math.exp(length * _mean(run)):.2g}"
    return Sign("error" if found.size >= thresholds.MASS_CUT_BAD else "warning", "high" if named else "medium", text)


def temperature(run: Run) -> Sign | None:
    """The calibration slope is not 1, by many standard errors, and d follows the log-probability itself.

    The mean ratio is not below 1.
    """
    pool = run.steady
    n, slope = pool.enough(thresholds.FEWEST_TOKENS), pool.need("calibration/slope")
    pearson, spread = pool.need("calibration/pearson"), pool.need("token/log_ratio/std")
    if pearson < thresholds.SLOPE_PEARSON or abs(slope - 1.0) < thresholds.SLOPE_OFF or not spread:
        return None
    scale = slope / pearson  # of the trainer's spread over the rollout's
    wide = spread / math.sqrt(max(1.0 + scale**2 - 2.0 * pearson * scale, 1e-12))
    follows = abs(slope - 1.0) * wide / spread
    error = scale * math.sqrt(max(1.0 - pearson**2, 0.0) / n)
    errors = abs(slope - 1.0) / max(error, 1e-12)
    if follows < thresholds.SLOPE_FOLLOWS or errors < thresholds.CLEAR or _deficit(run) is not None:
        return None
    sampled, scored = run.number("sampling.temperature"), run.number("sampling.scoring_temperature")
    mode = run.setting("engine.logprobs_mode")
    text = f"calibration slope {slope:.3f} ({errors:.0f} standard errors from 1, correlation of d with the rollout's "
    text += f"log-probability {follows:.2f}): as if one side's logits were divided by about {max(slope, 1 / slope):.2f}"
    named = sampled is not None and (sampled != scored or (sampled != 1.0 and mode != "processed_logprobs"))
    if sampled is not None:
        text += f"; the config samples at {sampled:g}, scores at {scored or 'unknown'}, logprobs_mode {mode}"
    return Sign("error", "high" if named else "medium", text)


def constant_shift(run: Run) -> Sign | None:
    """The same d for nearly every token, and not 0: its mean is several times its spread."""
    pool = run.steady
    pool.enough(50)
    if not _is_constant(run) or (truncating(run) and _deficit(run) is not None):
        return None
    mean, spread = _mean(run), pool.need("token/log_ratio/std")
    text = f"d is {mean:+.4g} on the average with a spread of {spread:.2g}: a shift, not noise"
    if run.setting("sampling") == UNKNOWN and _deficit(run) is not None:
        return Sign(
            "error", "medium", f"{text}; top_p does the same where every context is flat, and no config denies it"
        )
    return Sign("error", "high", text)


def _from_a_trainers_log(run: Run) -> Sign:
    """What TRL's own two means say: a mean ratio below 1 by as much as the mean |d| asks for, if all d are negative.

    Raises:
        Unchecked: if they do not say so, which excludes nothing.
    """
    if run.level == "sequence":
        msg = "the trainer's ratios are those of sequences, and it logs no mean ratio of tokens"
        raise Unchecked(msg)
    names = ("sampling/raw_importance_sampling_ratio/mean", "sampling/importance_sampling_ratio/mean")
    rows = [(next((part.scalars[name] for name in names if name in part.scalars), None), part) for part in run.filled]
    pairs = [(mean, part.abs_mean) for mean, part in rows if mean is not None and mean > 0.0]
    if len(pairs) < thresholds.FEWEST_FOR_SCATTER:
        msg = "needs the mean ratio of tokens, or a trainer's own log of several windows"
        raise Unchecked(msg)
    ratios = [mean for mean, _ in pairs]
    kept, apart = sum(ratios) / len(ratios), sum(apart for _, apart in pairs) / len(pairs)
    spread = math.sqrt(sum((ratio - kept) ** 2 for ratio in ratios) / (len(ratios) - 1))
    errors = (1.0 - kept) / max(spread / math.sqrt(len(ratios)), 1e-12)
    low, high = thresholds.LOG_FITS
    fits = max(ratios) < 1.0 - thresholds.MASS_CUT and low <= apart / -math.log(min(kept, 0.9999)) <= high
    if not fits or errors < thresholds.CLEAR:
        msg = "a trainer's own log has no count of tokens; its means do not show it and cannot exclude it"
        raise Unchecked(msg)
    text = (
        f"mean ratio {kept:.3f}, below 1 in each of {len(ratios)} windows ({errors:.0f} standard errors), and mean |d| "
    )
    text += (
        f"{apart:.3g} is about its -log, {-math.log(kept):.3g}: nearly all d are negative, if the mode is a token mode"
    )
    text += "; that mean is taken after the trainer's cut, which lowers it too"
    named = truncating(run)
    if named and run.level == "token":
        return Sign("warning", "medium", f"{text}; the config has {', '.join(named)}")
    return Sign("warning", "low", text)


def _mean(run: Run) -> float:
    return run.steady.need("token/log_ratio/mean")


def _is_constant(run: Run) -> bool:
    mean, spread = _mean(run), run.steady.need("token/log_ratio/std")
    symmetric = mean > 0.0 or run.steady.need("token/raw/p99") < thresholds.ALL_BELOW
    factor = thresholds.SHIFT_OVER_SPREAD if symmetric else thresholds.DOWN_OVER_SPREAD
    return abs(mean) >= max(thresholds.SHIFT, factor * spread)


def _deficit(run: Run) -> _Deficit | None:
    """The mean ratio's distance below 1 if only a cut support explains it: E[p/q] = 1 for tokens drawn from all of q.

    Raises:
        Unchecked: if there are too few tokens.
    """
    pool = run.steady
    pool.enough(thresholds.FEWEST_TOKENS)
    low, high = pool.need("token/raw/p01"), pool.need("token/raw/p99")
    if pool.need("token/log_ratio/std") > thresholds.WIDEST_SHIFT:
        return None
    size = 1.0 - run.ratio_mean(pool)
    spread = pool.get("token/raw/std")
    spread = pool.need("token/log_ratio/std") if spread is None else spread  # nearly the same where it is narrow
    errors = size / max(run.ratio_error(spread), 1e-12)
    if low < thresholds.LEAST_KEPT or high > math.exp(thresholds.ONE_SIDED):
        return None
    return _Deficit(size, errors, low, high) if size >= thresholds.MASS_CUT and errors >= thresholds.CLEAR else None
