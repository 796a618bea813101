"""Causes that show in the shape of the distribution: other experts, outliers, noise, and collapsed weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ratioscope.config.lookup import UNKNOWN
from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.core import core, count_singles, placeholder
from ratioscope.diagnosis.findings import Sign, Unchecked
from ratioscope.diagnosis.positions import unevenness, usual_tenths

if TYPE_CHECKING:
    from ratioscope.diagnosis.core import Core
    from ratioscope.diagnosis.pool import Pool
    from ratioscope.diagnosis.run import Run


def other_experts(run: Run) -> Sign | None:
    """A narrow core and a second mode far off, with few tokens between them; not in a model without experts.

    Where the number of experts is unknown, the second mode must be at all positions, and not of tokens that the trainer
    finds unlikely: other experts change log-probabilities both ways.
    """
    evidence, experts = second_mode(run.steady), run.number("trainer.num_experts")
    if evidence is None or experts == 0 or placeholder(run.steady.state) is not None:
        return None
    if experts is None:
        if _is_one_sided(run.steady) or unevenness(run.steady) > thresholds.MODE_UNEVEN:
            return None
        return Sign("warning", "low", f"{evidence}; it is not known whether the model has experts")
    replay = run.setting("trainer.router_replay")
    return Sign("warning", "high", f"{evidence}; the model has {experts:.0f} experts, router replay {replay}")


def _is_one_sided(pool: Pool) -> bool:
    """Checks whether nearly all tokens of the second mode are less likely to the trainer."""
    cut = thresholds.TAIL_CUTS[0]
    return pool.below(-cut) >= thresholds.MODE_ONE_SIDED * pool.beyond(cut)


def outliers(run: Run) -> Sign | None:
    """Single tokens beyond 5 nats, at any position. A warning if they are several or beyond what rounding makes."""
    pool = run.steady
    absurd, n = pool.beyond(thresholds.TAIL_NATS), pool.enough(1)
    if not absurd:
        return None
    worst, value = pool.need("token/log_ratio/abs_max"), placeholder(pool.state)
    if not count_singles(pool):
        return None
    text = f"{absurd:,} of {n:,.0f} tokens have |d| > {thresholds.TAIL_NATS:g} (largest {worst:.3g})"
    if overflow := pool.get("counts/overflow"):
        text += f", {overflow:,.0f} of which overflow float32"
    if value is not None:
        text += f"; the worst of them have exactly {value:g} as the engine's log-probability, which stands for none"
        return Sign("error" if absurd >= thresholds.MANY_MISSING * n else "warning", "high", text)
    several = absurd >= max(thresholds.OUTLIERS_MATTER * n, thresholds.OUTLIERS_SEVERAL)
    matters = several or worst >= thresholds.OUTLIER_ABSURD
    return Sign("warning" if matters else "info", "medium", text)


def second_mode(pool: Pool) -> str | None:
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
    """Spread and nothing else: d is symmetric around 0, the slope is 1, and no larger than precision makes it.

    With a measured noise floor, mean |d| is also given as a multiple of that floor.
    """
    pool, floor = run.steady, run.whole.get("noise_floor/abs_mean")
    moments = core(pool)
    pool.need("outside/0.9_1.1")
    if (
        not _is_symmetric(moments)
        or moments.abs_mean > _most_noise(run, floor)
        or (pool.summary is not None and _along(pool))
    ):
        return None
    if moments.slope is not None and abs(moments.slope - 1.0) > 2.0 * thresholds.SLOPE_OFF:
        return None
    text = (
        f"d is symmetric: mean {moments.mean:+.2g}, spread {moments.spread:.2g}, mean |d| {moments.abs_mean:.2g}; "
        f"{pool.need('outside/0.9_1.1'):.1%} of ratios are outside 0.9 to 1.1"
    )
    dtypes = [str(run.setting(name)) for name in ("engine.dtype", "trainer.weights_dtype")]
    if "unknown" not in dtypes:
        text += f"; weights are {dtypes[0]} in the engine and {dtypes[1]} in the trainer"
        mixed = run.setting("trainer.mixed_precision")
        text += "" if mixed in (UNKNOWN, None, "no") else f", which computes in mixed precision ({mixed})"
    sign = Sign("warning" if moments.abs_mean >= thresholds.FAR else "info", "medium", text)
    return sign if floor is None else _against_floor(sign, moments.abs_mean, floor)


def _most_noise(run: Run, floor: float | None) -> float:
    """Largest mean |d| in nats that precision explains: more with quantized weights or a measured floor that high."""
    quantized = run.setting("engine.quantization") not in (UNKNOWN, None, "none")
    return max(thresholds.FAR_QUANTIZED if quantized else thresholds.FAR, thresholds.AT_FLOOR * (floor or 0.0))


def _is_symmetric(moments: Core) -> bool:
    """Checks whether both sides differ and the mean of d is what symmetric noise leads to.

    Noise with mean ratio 1 has a mean d of about minus half its variance, and the mean of n tokens scatters by
    spread / sqrt(n); both are allowed beside the share of the spread in ``SYMMETRIC``.
    """
    if not moments.abs_mean:
        return False
    spread = moments.spread
    allowed = thresholds.SYMMETRIC * spread + 0.5 * spread**2 + 4.0 * spread / math.sqrt(moments.n)
    return abs(moments.mean) <= allowed


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
    """Mean |d| is large, or some tokens are far off, and none of the other signatures fits."""
    pool = run.steady
    abs_mean, hints = _abs_mean(pool), [] if pool.summary is None else _hints(pool)
    if abs_mean < thresholds.FAR and not hints:
        return None
    text = "; ".join([f"mean |d| is {abs_mean:.3g} nats, and no signature fits", *hints])
    pearson = pool.get("calibration/pearson")
    if abs_mean < thresholds.FAR or pearson is None or pearson >= thresholds.UNRELATED:
        return Sign("warning", "low", text)
    text += f"; both sides correlate by {pearson:.2f} only, as where other tokens or contexts are compared"
    return Sign("error", "low", text)


def _abs_mean(pool: Pool) -> float:
    """Mean |d| without single absurd tokens, or with them where they cannot be left out."""
    if pool.summary is None or not pool.beyond(thresholds.TAIL_NATS):
        return pool.abs_mean
    return core(pool).abs_mean


def _hints(pool: Pool) -> list[str]:
    """Observations that no cause owns: a second mode, and a mismatch that differs along completions."""
    mode = None if placeholder(pool.state) is not None else second_mode(pool)
    return [hint for hint in (mode, _along(pool)) if hint is not None]


def _along(pool: Pool) -> str | None:
    """Observation that the mismatch differs along completions, to a size that matters, with what does that."""
    try:
        tenths = [tenth for tenth in usual_tenths(pool) if tenth.tokens >= thresholds.MODE_PLACE]
    except Unchecked:
        return None
    means = [tenth.abs_mean for tenth in tenths]
    if len(means) < 4 or max(means) < max(thresholds.MODE_UNEVEN * min(means), thresholds.FAR):
        return None
    if means[-1] >= thresholds.MODE_UNEVEN * means[0]:
        text = f"mean |d| grows from {means[0]:.2g} in the first to {means[-1]:.2g} in the last tenth of completions"
        return f"{text}, as with a repetition or presence penalty and with a quantized key-value cache"
    worst = max(tenths, key=lambda tenth: tenth.abs_mean)
    return f"mean |d| is {worst.abs_mean:.2g} in tenth {worst.tenth + 1} of completions and {min(means):.2g} in another"


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
