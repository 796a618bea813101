"""Causes that show in the shape of the distribution: other experts, outliers, noise, and collapsed weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Sign, Unchecked

if TYPE_CHECKING:
    from ratioscope.diagnosis.pool import Pool
    from ratioscope.diagnosis.run import Run


def other_experts(run: Run) -> Sign | None:
    """A narrow core and a second mode far off, with few tokens between them; not in a model without experts."""
    evidence, experts = _second_mode(run.steady), run.number("trainer.num_experts")
    if evidence is None or experts == 0:
        return None
    replay = run.setting("trainer.router_replay")
    text = evidence + ("" if experts is None else f"; the model has {experts:.0f} experts, router replay {replay}")
    return Sign("warning", "medium" if experts is None else "high", text)


def outliers(run: Run) -> Sign | None:
    """Single tokens beyond 5 nats, at any position."""
    pool = run.steady
    absurd, n = pool.beyond(thresholds.TAIL_NATS), pool.enough(1)
    mode = _second_mode(pool)
    if mode is not None and run.number("trainer.num_experts") == 0:
        return Sign("warning", "low", f"{mode}; the model has no experts that would explain it")
    if not absurd or absurd > thresholds.OUTLIER_SHARE * n:
        return None
    worst = pool.need("token/log_ratio/abs_max")
    text = f"{absurd:,} of {n:,.0f} tokens have |d| > {thresholds.TAIL_NATS:g} (largest {worst:.3g})"
    if overflow := pool.get("counts/overflow"):
        text += f", {overflow:,.0f} of which overflow float32"
    return Sign("warning", "medium", text)


def _second_mode(pool: Pool) -> str | None:
    """Evidence of a mixture of two widths; None if the tail thins out gradually."""
    n, core = pool.enough(20), pool.abs_quantile(0.7)
    for cut in thresholds.TAIL_CUTS:
        far = pool.beyond(cut)
        between = pool.beyond(cut / 2.0) - far
        least, most = (share * n for share in thresholds.MODE_SHARE)
        if max(least, thresholds.MODE_TOKENS) <= far <= most and far >= between and core * thresholds.MODE_CORE <= cut:
            return (
                f"{far / n:.1%} of tokens have |d| >= {cut:g} and only {between / n:.1%} lie between that and half of "
                f"it, while 70 % are within {core:.2g}: two modes"
            )
    return None


def precision_noise(run: Run) -> Sign | None:
    """Spread and nothing else: d is symmetric around 0 and the slope is 1. Information while mean |d| is small.

    With a measured noise floor, mean |d| is also given as a multiple of that floor.
    """
    pool = run.steady
    if not _is_symmetric(pool):
        return None
    slope, mean_abs = pool.get("calibration/slope"), pool.abs_mean
    if slope is not None and abs(slope - 1.0) > 2.0 * thresholds.SLOPE_OFF:
        return None
    mean, spread = pool.need("token/log_ratio/mean"), pool.need("token/log_ratio/std")
    text = (
        f"d is symmetric: mean {mean:+.2g}, spread {spread:.2g}, mean |d| {mean_abs:.2g}; "
        f"{pool.need('outside/0.9_1.1'):.1%} of ratios are outside 0.9 to 1.1"
    )
    dtypes = [str(run.setting(name)) for name in ("engine.dtype", "trainer.weights_dtype")]
    if "unknown" not in dtypes:
        text += f"; engine {dtypes[0]}, trainer {dtypes[1]}"
    sign = Sign("warning" if mean_abs >= thresholds.FAR else "info", "medium", text)
    floor = run.whole.get("noise_floor/abs_mean")
    return sign if floor is None else _against_floor(sign, mean_abs, floor)


def _is_symmetric(pool: Pool) -> bool:
    """Checks whether both sides differ and the mean of d is what symmetric noise leads to.

    Noise with mean ratio 1 has a mean d of about minus half its variance, and the mean of n tokens scatters by
    spread / sqrt(n); both are allowed beside the share of the spread in ``SYMMETRIC``.
    """
    differ, mean, spread = pool.abs_mean, pool.need("token/log_ratio/mean"), pool.need("token/log_ratio/std")
    pool.need("outside/0.9_1.1")
    if not differ:
        return False
    allowed = thresholds.SYMMETRIC * spread + 0.5 * spread**2 + 4.0 * spread / math.sqrt(pool.enough(1))
    return abs(mean) <= allowed


def _against_floor(sign: Sign, mean_abs: float, floor: float) -> Sign:
    """Adds mean |d| in multiples of the noise floor to a sign of noise."""
    if not floor:
        text = "the trainer is equal to itself to the bit in other chunks, so its own arithmetic adds no noise"
        return replace(sign, evidence=f"{sign.evidence}; {text}")
    multiple = mean_abs / floor
    times = f"{multiple:.1f}" if multiple < 10.0 else f"{multiple:.0f}"
    text = f"that is {times} times the noise floor, {floor:.2g}, by which the trainer differs from itself"
    if multiple <= thresholds.AT_FLOOR:
        return replace(sign, confidence="high", evidence=f"{sign.evidence}; {text}: no engine could be nearer")
    return replace(
        sign, evidence=f"{sign.evidence}; {text}: the rest comes from the engine, its precision or its kernels"
    )


def unexplained(run: Run) -> Sign | None:
    """Mean |d| is large and none of the other signatures fits."""
    pool = run.steady
    if pool.abs_mean < thresholds.FAR:
        return None
    text, pearson = f"mean |d| is {pool.abs_mean:.3g} nats, and no signature fits", pool.get("calibration/pearson")
    if pearson is None or pearson >= thresholds.UNRELATED:
        return Sign("warning", "low", text)
    text += f"; both sides correlate by {pearson:.2f} only, as where other tokens or contexts are compared"
    return Sign("error", "low", text)


def length_collapse(run: Run) -> Sign | None:
    """In a sequence mode: mean d times length, or the spread of D, leaves weights of 0 or a single one that counts."""
    if run.level != "sequence":
        msg = "applies to sequence modes only" if run.level else "the rule is unknown"
        raise Unchecked(msg)
    pool = run.steady
    completions = pool.need("counts/rows")
    mean, total = pool.need("token/log_ratio/mean"), pool.need("sequence/log_ratio/mean")
    if completions < thresholds.COLLAPSE_COMPLETIONS:
        msg = f"{completions:.0f} completions are too few; needs {thresholds.COLLAPSE_COMPLETIONS}"
        raise Unchecked(msg)
    ess, length = pool.need("sequence/ess/raw"), pool.tokens / completions
    spread = pool.need("sequence/log_ratio/std")
    # A sample of n has an ESS of at least 1 / n, so a small ESS means something only with enough completions.
    few_count = ess <= thresholds.COLLAPSE_ESS and completions >= 1.5 / thresholds.COLLAPSE_ESS
    if not (spread >= thresholds.COLLAPSE_SPREAD or abs(total) >= thresholds.COLLAPSE_NATS or few_count):
        return None
    text = (
        f"mean d {mean:+.3g} over {length:.0f} tokens makes {mean * length:+.3g} nats per completion "
        f"(measured {total:+.3g}, spread {spread:.2g}); the raw sequence weights are worth {ess * completions:.1f} of "
        f"{completions:.0f} completions, whatever the modified fraction is"
    )
    return Sign("warning", "high", text)
