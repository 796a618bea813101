"""Causes by which one side's numbers are scaled or shifted: temperature, other logarithms, missing normalisation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ratioscope.config.lookup import UNKNOWN
from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.core import core
from ratioscope.diagnosis.findings import Sign, Unchecked
from ratioscope.diagnosis.named import is_raw, temperatures, truncating
from ratioscope.diagnosis.positions import unevenness
from ratioscope.diagnosis.truncation import deficit_of, is_constant, near_greedy

if TYPE_CHECKING:
    from ratioscope.diagnosis.core import Core
    from ratioscope.diagnosis.run import Run


def temperature(run: Run) -> Sign | None:
    """Trainer and rollout do not vary alike: slope and ratio of spreads are both off 1, to the same side.

    A cut of the support raises the slope too, so a slope above 1 under a cut says nothing of a temperature. Noise
    lowers the slope and not the ratio of spreads.
    """
    if greedy := near_greedy(run):
        return _with_temperatures(run, greedy)
    run.steady.enough(thresholds.FEWEST_TOKENS)
    moments = core(run.steady)
    slope, scale = moments.slope, moments.scale
    if slope is None or scale is None or moments.residual is None or not moments.spread:
        msg = "one side does not vary, or absurd tokens hide how"
        raise Unchecked(msg)
    if moments.is_multiple:
        return None
    _can_tell(run, moments)
    if not _is_scaled(moments):
        return None
    if slope > 1.0 and _is_cut(run):
        msg = f"the slope is {slope:.3f}, and a cut of the support raises it too"
        raise Unchecked(msg)
    if not _is_known(run):
        _need_from_the_start(run, slope)
    return _scaled(run, moments)


def _scaled(run: Run, moments: Core) -> Sign:
    """Sign of sides that do not vary alike; its level follows the size, unless the config has the temperatures."""
    slope, noise = moments.slope or 1.0, moments.residual or 0.0
    text = (
        f"calibration slope {slope:.3f} ({_errors(moments):.0f} standard errors from 1; the trainer's "
        f"log-probabilities spread {moments.scale or 1.0:.2f} times as much as the engine's): as if one side's logits "
        f"were divided by {max(slope, 1 / slope):.2f} or more"
    )
    sign = _with_temperatures(run, text)
    if sign.confidence == "high":
        return sign
    if _attenuation(moments) > thresholds.SLOPE_BAD:
        return Sign("warning", "low", f"{text}; noise of {noise:.2g} nats makes the amount uncertain")
    return replace(sign, level="error" if abs(slope - 1.0) >= thresholds.SLOPE_BAD else "warning")


def _is_known(run: Run) -> bool:
    """Checks whether the config has temperatures that the slope can show."""
    return bool(temperatures(run) or is_raw(run))


def _need_from_the_start(run: Run, slope: float) -> None:
    """Raises ``Unchecked`` if the first window has a slope of 1: old weights while entropy changes do this too."""
    first = run.filled[0]
    if first.windows > 1 or first.tokens < thresholds.FEWEST_TOKENS or len(run.filled) < 2:
        return
    early = core(first).slope
    if early is not None and abs(early - 1.0) < thresholds.FIRST_ON_POLICY * abs(slope - 1.0):
        msg = f"the slope is {early:.3f} in the first window and {slope:.3f} later, as under old weights while entropy "
        msg += "changes, or a setting that changed"
        raise Unchecked(msg)


def _is_scaled(moments: Core) -> bool:
    """Checks whether the slope is off 1 by more than noise makes it, and the ratio of spreads to the same side."""
    slope, scale = moments.slope or 0.0, moments.scale or 0.0
    off = abs(slope - 1.0) - (_attenuation(moments) if slope < 1.0 else 0.0)
    same_side = (slope - 1.0) * (scale - 1.0) > 0.0 and abs(scale - 1.0) >= thresholds.SLOPE_OFF
    return off >= thresholds.SLOPE_OFF and _errors(moments) >= thresholds.CLEAR and same_side


def _errors(moments: Core) -> float:
    """Distance of the slope from 1 in its standard errors, for independent tokens."""
    slope, scale, pearson = moments.slope or 0.0, moments.scale or 0.0, moments.pearson or 0.0
    return abs(slope - 1.0) / max(abs(scale) * math.sqrt(max(1.0 - pearson**2, 0.0) / moments.n), 1e-12)


def slope_of(run: Run) -> float | None:
    """Calibration slope without single absurd tokens; None where there is none, or where it says nothing."""
    try:
        moments = core(run.steady)
    except Unchecked:
        return None
    return moments.slope if (moments.pearson or 0.0) >= thresholds.SLOPE_PEARSON else None


def constant_shift(run: Run) -> Sign | None:
    """A nearly equal d for every token, and not 0; or values of one side that are a multiple of the other's."""
    pool = run.steady
    pool.enough(50)
    moments = core(pool)
    if moments.is_multiple:
        text = (
            f"the trainer's log-probabilities are {moments.slope:.4g} times the engine's, without an offset: a "
            "logarithm to another base or a division, which no temperature does"
        )
        return Sign("error", "high", text)
    if not is_constant(run) or (truncating(run) and _is_cut(run)):
        return None
    text = f"d is {moments.mean:+.4g} on average with a spread of {moments.spread:.2g}: a shift, not noise"
    if moments.mean > 0.0:
        text += "; the mean ratio is above 1, which tokens drawn from the rollout's values cannot have, unless the two "
        text += "arguments are swapped"
        return Sign("error", "medium", text)
    if run.setting("sampling") == UNKNOWN and _is_cut(run):
        text += "; top_p does the same where every context is flat, and no config excludes it"
        return Sign("error", "medium", text)
    return Sign("error", "high", text)


def _can_tell(run: Run, moments: Core) -> None:
    """Raises ``Unchecked`` where other noise hides a temperature, unless the slope is far enough off to show it."""
    pearson, slope = moments.pearson or 0.0, moments.slope or 0.0
    if pearson < thresholds.SLOPE_PEARSON:
        msg = f"both sides correlate by {pearson:.2f} only, so that a slope says nothing"
        raise Unchecked(msg)
    attenuation = _attenuation(moments)
    if attenuation > thresholds.SLOPE_OFF and abs(slope - 1.0) < thresholds.SLOPE_OFF + attenuation:
        msg = f"noise of {moments.residual:.2g} nats moves the slope by up to {attenuation:.2g}"
        raise Unchecked(msg)
    if run.steady.summary is not None and unevenness(run.steady) > thresholds.SCALE_UNEVEN:
        msg = "the mismatch is at some positions only, and a temperature is at all of them"
        raise Unchecked(msg)
    if _is_known(run) and abs(slope - 1.0) < thresholds.SLOPE_OFF:
        msg = f"the config names different temperatures, and the slope is {slope:.3f}: too near 1 to tell"
        raise Unchecked(msg)


def _attenuation(moments: Core) -> float:
    """Amount by which noise lowers the slope: the share in the rollout's variance of the half that is on its side."""
    if not moments.rollout_spread or moments.residual is None:
        return 0.0
    return 0.5 * (moments.residual / moments.rollout_spread) ** 2


def _is_cut(run: Run) -> bool:
    """Checks for a deficit of the mean ratio; where it cannot be told, the config decides."""
    try:
        return deficit_of(run) is not None
    except Unchecked:
        return bool(truncating(run))


def _with_temperatures(run: Run, text: str) -> Sign:
    """Sign of a temperature, certain if the config has temperatures that explain it."""
    sampled, scored = run.number("sampling.temperature"), run.number("sampling.scoring_temperature")
    if sampled is None:
        return Sign("error", "medium", text)
    mode = run.setting("engine.logprobs_mode")
    named = sampled != scored or (sampled != 1.0 and mode != "processed_logprobs")
    text += f"; the config samples at {sampled:g}, scores at {scored or 'unknown'}, logprobs_mode {mode}"
    # Settings that are equal contradict the numbers, so what is seen is a scale, and its cause is open.
    return Sign("error", "high", text) if named else Sign("warning", "low", text)
