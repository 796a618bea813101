"""Causes that show over time or in the shape of the distribution: other weights, other experts, other arithmetic."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Sign, Unchecked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.diagnosis.pool import Pool
    from ratioscope.diagnosis.run import Run
    from ratioscope.event import Confidence


def find_jump(parts: Sequence[Pool]) -> int | None:
    """Index of the part from which on the distance is several times what it was, at once; None if there is none."""
    values = _distances(parts)
    if len(values) < thresholds.JUMP_PARTS:
        return None
    gaps = [later - earlier for earlier, later in pairwise(values)]
    at = 1 + max(range(len(gaps)), key=gaps.__getitem__)
    before, after = values[:at], values[at:]
    error = _error(parts[at - 1], parts[at])
    jumps = (
        sum(after) / len(after) >= thresholds.JUMP_FACTOR * sum(before) / len(before)
        and min(after) > thresholds.JUMP_APART * max(before)
        and gaps[at - 1] >= thresholds.JUMP_SHARE * (max(values) - min(values))
        and gaps[at - 1] >= thresholds.CERTAIN * error
    )
    return at if jumps else None


def is_growing(parts: Sequence[Pool]) -> bool:
    """Whether the distance grows with time, by size, order and certainty: all along, or until it levels off."""
    values = _distances(parts)
    if len(values) < thresholds.GROWTH_PARTS:
        return False
    first, last = _thirds(values)
    if _order(values) >= thresholds.GROWTH_TAU and _grew(parts, len(first), thresholds.GROWTH_FACTOR):
        return True
    start = max(len(values) // 10, 1)
    high = thresholds.LEVELLED * sum(last) / len(last)
    climb = values[: 1 + next(at for at, value in enumerate(values) if value >= high)]
    return (
        len(climb) >= thresholds.JUMP_PARTS
        and _order(climb) >= thresholds.GROWTH_TAU
        and min(values[len(first) :]) >= thresholds.GROWTH_FACTOR * sum(values[:start]) / start
        and _grew(parts, start, thresholds.LEVELLED_FACTOR)
    )


def _grew(parts: Sequence[Pool], start: int, factor: float) -> bool:
    """Whether the distance in the last third is surely this many times that of the first parts."""
    sides = parts[:start], parts[-len(_thirds(_distances(parts))[1]) :]
    before, after = (sum(_distances(side)) / len(side) for side in sides)
    errors = [math.hypot(*(part.distance_error for part in side)) / len(side) for side in sides]
    return after >= factor * before and after - before >= thresholds.CERTAIN * math.hypot(*errors)


def _order(values: Sequence[float]) -> float:
    """Kendall's correlation with time."""
    pairs = list(combinations(values, 2))
    return sum((later > earlier) - (later < earlier) for earlier, later in pairs) / len(pairs)


def wrong_weights(run: Run) -> Sign | None:
    """Mean |d| jumps several times up between two windows and stays there."""
    parts, at = run.filled, run.jump
    if len(parts) < thresholds.JUMP_PARTS:
        msg = f"needs {thresholds.JUMP_PARTS} windows to see a jump; got {len(parts)}"
        raise Unchecked(msg)
    if at is None:
        return None
    values = _distances(parts)
    before, after = sum(values[:at]) / at, sum(values[at:]) / (len(values) - at)
    text = (
        f"{parts[0].measure} jumps from {before:.3g} to {after:.3g} ({after / max(before, 1e-12):.0f} times) between "
    )
    text += f"steps {parts[at - 1].last} and {parts[at].last}, and stays: as when other weights are loaded"
    hints = ["engine.sleep_mode is on"] if run.setting("engine.sleep_mode") is True else []
    hints += [*_adapter(run), *_mean_only(run)]
    return Sign("error", _sure(run), "; ".join([text, *hints]), (parts[at].first, parts[-1].last))


def stale_weights(run: Run) -> Sign | None:
    """Mean |d| grows in order to at least twice, all along the run or until it levels off, and nothing resets it."""
    parts = run.filled
    if len(parts) < thresholds.GROWTH_PARTS:
        msg = f"needs {thresholds.GROWTH_PARTS} windows to see growth; got {len(parts)}"
        raise Unchecked(msg)
    if not run.grows:
        return None
    values = _distances(parts)
    start = max(len(values) // 10, 1)
    third = len(_thirds(values)[1])
    first, last = sum(values[:start]) / start, sum(values[-third:]) / third
    rate = (last - first) / max(parts[-1 - third // 2].last - parts[start // 2].last, 1)
    text = f"{parts[0].measure} grows from {first:.3g} at the start to {last:.3g} in the last third "
    text += f"({last / max(first, 1e-12):.3g} times, about {rate:.2g} a step) and no sync resets it"
    sync = run.setting("engine.weight_sync")
    hints = [] if sync == "unknown" else [f"the trainer sends its weights {sync}, which does not mean that they arrive"]
    hints += [*_adapter(run), *_mean_only(run)]
    return Sign("error", _sure(run), "; ".join([text, *hints]), (parts[0].first, parts[-1].last))


def grows_between_syncs(run: Run) -> Sign | None:
    """Mean |d| grows to at least twice over several windows, falls back at once, and does so at even distances."""
    parts = run.filled
    if len(parts) < thresholds.GROWTH_PARTS or any(part.windows > 1 for part in parts):
        msg = f"needs {thresholds.GROWTH_PARTS} windows that are not pooled; "
        msg += f"got {len(parts)} parts of {run.windows} windows"
        raise Unchecked(msg)
    values = _distances(parts)
    resets = [
        at
        for at in range(1, len(values))
        if values[at - 1] >= thresholds.RESET_FACTOR * values[at]
        and values[at - 1] - values[at] >= thresholds.CERTAIN * _error(parts[at - 1], parts[at])
    ]
    periods = {later - earlier for earlier, later in pairwise(resets)}
    if len(resets) < thresholds.RESETS or len(periods) != 1 or periods == {1}:
        return None
    cycles = [values[at : at + min(periods)] for at in resets[:-1]]
    if any(cycle[-1] < thresholds.RESET_FACTOR * cycle[0] for cycle in cycles):
        return None
    low, high = (sum(cycle[end] for cycle in cycles) / len(cycles) for end in (0, -1))
    text = f"{parts[0].measure} grows from {low:.3g} to {high:.3g} and falls back every {min(periods)} windows, "
    text += f"{len(resets)} times: the engine's weights are that old in between"
    return Sign("warning", _sure(run), "; ".join([text, *_mean_only(run)]))


def other_experts(run: Run) -> Sign | None:
    """A narrow core and a second mode far off, with few tokens between them; not in a model without experts."""
    pool = run.steady
    found, experts = _second_mode(pool), run.number("trainer.num_experts")
    if found is None or experts == 0:
        return None
    replay = run.setting("trainer.router_replay")
    text = found + ("" if experts is None else f"; the model has {experts:.0f} experts, router replay {replay}")
    return Sign("warning", "medium" if experts is None else "high", text)


def outliers(run: Run) -> Sign | None:
    """Single tokens beyond 5 nats, anywhere."""
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
    """Evidence of a mixture of two widths; None if the tail thins out as a tail does."""
    n, core = pool.enough(20), pool.abs_quantile(0.7)
    for cut in thresholds.TAIL_CUTS:
        far = pool.beyond(cut)
        between = pool.beyond(cut / 2.0) - far
        least, most = (share * n for share in thresholds.MODE_SHARE)
        if max(least, thresholds.MODE_TOKENS) <= far <= most and far >= between and core * thresholds.MODE_CORE <= cut:
            text = (
                f"{far / n:.1%} of tokens have |d| >= {cut:g} and only {between / n:.1%} lie between that and half of "
            )
            return f"{text}it, while 70 % are within {core:.2g}: two modes"
    return None


def noise(run: Run) -> Sign | None:
    """Spread and nothing else: d is symmetric around 0 and the slope is 1. Information while mean |d| is small."""
    pool = run.steady
    apart, mean, spread = pool.abs_mean, pool.need("token/log_ratio/mean"), pool.need("token/log_ratio/std")
    slope, outside = pool.get("calibration/slope"), pool.need("outside/0.9_1.1")
    if not apart or abs(mean) > thresholds.SYMMETRIC * spread + 0.5 * spread**2 + 4.0 * spread / math.sqrt(
        pool.enough(1)
    ):
        return None
    if slope is not None and abs(slope - 1.0) > 2.0 * thresholds.SLOPE_OFF:
        return None
    text = f"d is symmetric: mean {mean:+.2g}, spread {spread:.2g}, mean |d| {apart:.2g}; {outside:.1%} of ratios are "
    text += "outside 0.9 to 1.1"
    dtypes = [str(run.setting(name)) for name in ("engine.dtype", "trainer.weights_dtype")]
    if "unknown" not in dtypes:
        text += f"; engine {dtypes[0]}, trainer {dtypes[1]}"
    return Sign("warning" if apart >= thresholds.FAR else "info", "medium", text)


def unexplained(run: Run) -> Sign | None:
    """Mean |d| is large and none of the other signatures fits."""
    pool = run.steady
    if pool.abs_mean < thresholds.FAR:
        return None
    text, pearson = f"mean |d| is {pool.abs_mean:.3g} nats, and no signature fits", pool.get("calibration/pearson")
    if pearson is None or pearson >= thresholds.STRANGERS:
        return Sign("warning", "low", text)
    text += f"; both sides correlate by {pearson:.2f} only, as where other tokens or contexts are compared"
    return Sign("error", "low", text)


def length_collapse(run: Run) -> Sign | None:
    """In a sequence mode: mean d times length, or the spread of D, leaves weights of nothing or of one row."""
    if run.level != "sequence":
        msg = "applies to sequence modes only" if run.level else "the rule is unknown"
        raise Unchecked(msg)
    pool = run.steady
    rows, mean, total = (
        pool.need("counts/rows"),
        pool.need("token/log_ratio/mean"),
        pool.need("sequence/log_ratio/mean"),
    )
    if rows < thresholds.COLLAPSE_ROWS:
        msg = f"{rows:.0f} rows are too few; needs {thresholds.COLLAPSE_ROWS}"
        raise Unchecked(msg)
    effective, length = pool.need("sequence/ess/raw"), pool.tokens / rows
    wide = pool.need("sequence/log_ratio/std") >= thresholds.COLLAPSE_SPREAD
    shrunk = abs(total) >= thresholds.COLLAPSE_NATS
    if not (wide or shrunk or (effective <= thresholds.COLLAPSE_ESS and rows >= 1.5 / thresholds.COLLAPSE_ESS)):
        return None
    text = f"mean d {mean:+.3g} over {length:.0f} tokens makes {mean * length:+.3g} nats a row (measured {total:+.3g}, "
    text += (
        f"spread {pool.need('sequence/log_ratio/std'):.2g}); the raw sequence weights are worth {effective * rows:.1f} "
    )
    return Sign("warning", "high", f"{text}of {rows:.0f} rows, whatever a modified fraction says")


def _adapter(run: Run) -> list[str]:
    """What a config with an adapter suggests."""
    kind, mode = run.setting("trainer.peft_type"), run.setting("engine.vllm_mode")
    if kind in ("unknown", "none", None):
        return []
    return [
        f"the adapter ({kind}, engine in {mode} mode) may not reach the engine; a version counter is no proof of it"
    ]


def _mean_only(run: Run) -> list[str]:
    """What a mean over time cannot tell apart, where nothing else is known of the distribution."""
    if _sure(run) == "high":
        return []
    return [
        "of the distribution this log has no more than means and extremes: a few absurd tokens, tokens that nobody "
        "sampled, and a sampling or engine setting that changed with a restart look the same"
    ]


def _sure(run: Run) -> Confidence:
    return "medium" if run.foreign and run.whole.get("token/log_ratio/std") is None else "high"


def _error(before: Pool, after: Pool) -> float:
    """Standard error of the difference of two parts' distances."""
    return math.hypot(before.distance_error, after.distance_error)


def _distances(parts: Sequence[Pool]) -> list[float]:
    return [part.distance for part in parts]


def _thirds(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    third = max(len(values) // 3, 2)
    return values[:third], values[-third:]
