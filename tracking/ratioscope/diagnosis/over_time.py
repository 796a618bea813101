"""Causes that show over time: other weights, weights that do not follow, and weights that are old between syncs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Sign, Unchecked
from ratioscope.diagnosis.trend import difference_error, mean, mismatches, tenth_of, third_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.diagnosis.pool import Pool
    from ratioscope.diagnosis.run import Run
    from ratioscope.event import Confidence


def wrong_weights(run: Run) -> Sign | None:
    """Mean |d| jumps several times up between two windows and stays there."""
    parts, index = run.filled, run.jump
    if len(parts) < thresholds.JUMP_PARTS:
        msg = f"needs {thresholds.JUMP_PARTS} windows to see a jump; got {len(parts)}"
        raise Unchecked(msg)
    if index is None:
        return None
    values = mismatches(parts)
    before, after = mean(values[:index]), mean(values[index:])
    text = (
        f"{parts[0].measure} jumps from {before:.3g} to {after:.3g} ({after / max(before, 1e-12):.0f} times) between "
        f"steps {parts[index - 1].last} and {parts[index].last}, and stays there, as after loading other weights"
    )
    hints = ["engine.sleep_mode is on"] if run.setting("engine.sleep_mode") is True else []
    return _error(run, [text, *hints], (parts[index].first, parts[-1].last))


def stale_weights(run: Run) -> Sign | None:
    """Mean |d| grows steadily to at least twice, over the whole run or until it levels off, and nothing resets it."""
    parts = run.filled
    if len(parts) < thresholds.GROWTH_PARTS:
        msg = f"needs {thresholds.GROWTH_PARTS} windows to see growth; got {len(parts)}"
        raise Unchecked(msg)
    if not run.grows:
        return None
    values = mismatches(parts)
    start, third = tenth_of(values), third_of(values)
    first, last = mean(values[:start]), mean(values[-third:])
    rate = (last - first) / max(parts[-1 - third // 2].last - parts[start // 2].last, 1)
    text = (
        f"{parts[0].measure} grows from {first:.3g} at the start to {last:.3g} in the last third "
        f"({last / max(first, 1e-12):.3g} times, about {rate:.2g} per step) and no sync resets it"
    )
    sync = run.setting("engine.weight_sync")
    hints = (
        [] if sync == "unknown" else [f"the trainer sends its weights {sync}, which does not prove that they arrive"]
    )
    return _error(run, [text, *hints], (parts[0].first, parts[-1].last))


def grows_between_syncs(run: Run) -> Sign | None:
    """Mean |d| grows to at least twice over several windows, falls back at once, and repeats it at equal intervals."""
    parts = run.filled
    if len(parts) < thresholds.GROWTH_PARTS or any(part.windows > 1 for part in parts):
        msg = f"needs {thresholds.GROWTH_PARTS} windows that are not pooled; "
        msg += f"got {len(parts)} parts of {run.windows} windows"
        raise Unchecked(msg)
    values, resets = mismatches(parts), _resets(parts)
    periods = {later - earlier for earlier, later in pairwise(resets)}
    if len(resets) < thresholds.RESETS or len(periods) != 1 or periods == {1}:
        return None
    (period,) = periods
    cycles = [values[index : index + period] for index in resets[:-1]]
    if any(cycle[-1] < thresholds.RESET_FACTOR * cycle[0] for cycle in cycles):
        return None
    low, high = (mean([cycle[end] for cycle in cycles]) for end in (0, -1))
    text = (
        f"{parts[0].measure} grows from {low:.3g} to {high:.3g} and falls back every {period} windows, "
        f"{len(resets)} times: the engine's weights are that old in between"
    )
    return Sign("warning", _confidence(run), "; ".join([text, *_means_only(run)]))


def _resets(parts: Sequence[Pool]) -> list[int]:
    """Indices of the parts at which the mismatch falls to half or less, beyond its standard error."""
    return [
        index
        for index, (before, after) in enumerate(pairwise(parts), start=1)
        if before.mismatch >= thresholds.RESET_FACTOR * after.mismatch
        and before.mismatch - after.mismatch >= thresholds.CERTAIN * difference_error(before, after)
    ]


def _error(run: Run, texts: list[str], steps: tuple[int, int]) -> Sign:
    """Sign of weights that differ, with the hints that the config and the kind of log give."""
    return Sign("error", _confidence(run), "; ".join([*texts, *_adapter(run), *_means_only(run)]), steps)


def _adapter(run: Run) -> list[str]:
    """Hint for a run that trains an adapter."""
    kind, mode = run.setting("trainer.peft_type"), run.setting("engine.vllm_mode")
    if kind in ("unknown", "none", None):
        return []
    return [
        f"the adapter ({kind}, engine in {mode} mode) may not reach the engine; a version counter is no proof of it"
    ]


def _means_only(run: Run) -> list[str]:
    """Names the causes that look the same in a log that has means over time only."""
    if _confidence(run) == "high":
        return []
    return [
        "this log has only means and extremes of the distribution: a few absurd tokens, tokens that nobody "
        "sampled, and a sampling or engine setting that changed with a restart look the same"
    ]


def _confidence(run: Run) -> Confidence:
    """Medium for a third-party log without the spread of d, high otherwise."""
    return "medium" if run.foreign and run.whole.get("token/log_ratio/std") is None else "high"
