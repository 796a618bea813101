"""Causes that are really settings: the distribution that was sampled is not the one that is scored."""

from __future__ import annotations

import math
from typing import NamedTuple

from ratioscope.diagnosis import limits
from ratioscope.diagnosis.findings import Sign
from ratioscope.diagnosis.run import Run
from ratioscope.diagnosis.settings import truncating


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
    found = _deficit(run)
    named = truncating(run)
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
    return Sign("error" if found.size >= limits.MASS_CUT_BAD else "warning", "high" if named else "medium", text)


def temperature(run: Run) -> Sign | None:
    """The calibration slope is not 1, by many standard errors, and d follows the log-probability itself.

    The mean ratio is not below 1.
    """
    pool = run.steady
    n, slope = pool.enough(limits.FEWEST_TOKENS), pool.need("calibration/slope")
    pearson, spread = pool.need("calibration/pearson"), pool.need("token/log_ratio/std")
    if pearson < limits.SLOPE_PEARSON or abs(slope - 1.0) < limits.SLOPE_OFF or not spread:
        return None
    scale = slope / pearson  # of the trainer's spread over the rollout's
    wide = spread / math.sqrt(max(1.0 + scale**2 - 2.0 * pearson * scale, 1e-12))
    follows = abs(slope - 1.0) * wide / spread
    error = scale * math.sqrt(max(1.0 - pearson**2, 0.0) / n)
    errors = abs(slope - 1.0) / max(error, 1e-12)
    if follows < limits.SLOPE_FOLLOWS or errors < limits.CLEAR or _deficit(run) is not None:
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
    return Sign("error", "high", text)


def _mean(run: Run) -> float:
    return run.steady.need("token/log_ratio/mean")


def _is_constant(run: Run) -> bool:
    mean, spread = _mean(run), run.steady.need("token/log_ratio/std")
    factor = limits.UP_OVER_SPREAD if mean > 0.0 else limits.DOWN_OVER_SPREAD
    return abs(mean) >= max(limits.SHIFT, factor * spread)


def _deficit(run: Run) -> _Deficit | None:
    """The mean ratio's distance below 1 if only a cut support explains it: E[p/q] = 1 for tokens drawn from all of q.

    Raises:
        Unchecked: if there are too few tokens.
    """
    pool = run.steady
    pool.enough(limits.FEWEST_TOKENS)
    low, high = pool.need("token/raw/p01"), pool.need("token/raw/p99")
    if pool.need("token/log_ratio/std") > limits.WIDEST_SHIFT:
        return None
    size = 1.0 - pool.need("token/raw/mean")
    errors = size / max(run.error_of("token/raw/mean", pool.need("token/raw/std")), 1e-12)
    if low < limits.LEAST_KEPT or high > math.exp(limits.ONE_SIDED):
        return None
    return _Deficit(size, errors, low, high) if size >= limits.MASS_CUT and errors >= limits.CLEAR else None
