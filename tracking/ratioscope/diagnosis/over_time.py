"""Causes that show over time: other weights, weights that do not follow, and weights that are old between syncs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Sign, Unchecked
from ratioscope.diagnosis.since import other_cause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.diagnosis.run import Run
    from ratioscope.diagnosis.trend import Change
    from ratioscope.event import Confidence, Level
    from ratioscope.runs.course import Point

_TEST = "a checksum of one tensor on both sides tells them apart, and so do 20 steps at a learning rate of 0"
"""Test between weights that do not arrive and healthy causes."""


def wrong_weights(run: Run) -> Sign | None:
    """Mean |d| jumps several times up between two windows, after the pipeline is full, and does not fall back.

    If the windows since show another cause, which weights do not lead to, it is named and nothing is certain.
    """
    change = _change(run, thresholds.JUMP_PARTS, "a jump")
    if change is None or change.kind != "jump":
        return None
    points = run.course.points
    text = (
        f"{_measure(run)} jumps from {change.before:.3g} to {change.after:.3g} nats ({change.factor:.3g} times) "
        f"between steps {points[change.index - 1].last} and {points[change.index].last}, and has not fallen back"
    )
    hints = ["engine.sleep_mode is on"] if run.setting("engine.sleep_mode") is True else []
    others = "other weights in the engine do this, and so do other data, entropy or sampling settings"
    sign = _sign(run, change, [text, *hints], others)
    other = other_cause(run)
    return sign if other is None else Sign("warning", "medium", f"{text}; {other}", sign.steps)


def stale_weights(run: Run) -> Sign | None:
    """Mean |d| grows to at least twice, since the start or since a window, and does not level off as a full pipeline.

    Growth below 0.2 nats that may be a rising learning rate under asynchronous training is information.
    """
    change = _change(run, thresholds.GROWTH_PARTS, "growth")
    if change is None or change.kind != "growth":
        return None
    points = run.course.points
    since, last = points[change.index].first, points[-1].last
    rate = (change.after - change.before) / max(last - since, 1)
    text = (
        f"{_measure(run)} grew {change.factor:.3g} times, from {change.before:.3g} to {change.after:.3g} nats, "
        f"since {'about step' if change.index else 'the start, step'} {since} (about {rate:.2g} per step)"
    )
    sync = run.setting("engine.weight_sync")
    hints = (
        [] if sync == "unknown" else [f"the trainer sends its weights {sync}, which does not prove that they arrive"]
    )
    others = "weights that do not arrive do this, and so do a learning rate that rises or fewer syncs by design"
    return _sign(run, change, [text, *hints], others)


def grows_between_syncs(run: Run) -> Sign | None:
    """Mean |d| grows to at least twice over several windows, falls back at once, and repeats it at equal intervals."""
    points = run.course.single(thresholds.RESET_WINDOWS)
    if len(points) < thresholds.GROWTH_PARTS:
        msg = f"needs {thresholds.GROWTH_PARTS} windows; got {len(points)}"
        raise Unchecked(msg)
    values, resets = [point.mismatch for point in points], _resets(points)
    periods = {later - earlier for earlier, later in pairwise(resets)}
    if len(resets) < thresholds.RESETS or len(periods) != 1 or periods == {1}:
        return None
    (period,) = periods
    cycles = [values[index : index + period] for index in resets[:-1]]
    if any(cycle[-1] < thresholds.RESET_FACTOR * cycle[0] for cycle in cycles):
        return None
    low, high = (float(np.mean([cycle[end] for cycle in cycles])) for end in (0, -1))
    text = (
        f"{_measure(run)} grows from {low:.3g} to {high:.3g} and falls back every {period} windows, {len(resets)} "
        f"times in the last {len(points)} windows: the engine's weights are that old in between"
    )
    return Sign(
        "warning" if high >= thresholds.DRIFTED else "info", _certainty(run), "; ".join([text, *_means_only(run)])
    )


def _change(run: Run, fewest: int, what: str) -> Change | None:
    """The lasting rise of the mismatch.

    Raises:
        Unchecked: if the windows are too few to see one.
    """
    count = len(run.course.points)
    if count < fewest:
        msg = f"needs {fewest} windows to see {what}; got {count}"
        raise Unchecked(msg)
    return run.change


def _sign(run: Run, change: Change, texts: list[str], others: str) -> Sign:
    """Sign of a rise, with the causes that could make it and the test between them."""
    level: Level = "error" if change.excluded else "info" if change.healthy else "warning"
    confidence: Confidence = _certainty(run) if change.excluded else "low" if change.healthy else "medium"
    if change.excluded and run.is_synchronous:
        ends = "the trainer waits for its generations, so no design leaves the engine behind"
    elif change.excluded:
        ends = "engines that are a few steps behind by design stay far below that"
    else:
        ends = f"{'healthy trainings reach this level; ' if change.healthy else ''}{others}; {_TEST}"
    points = run.course.points
    steps = points[change.index].first, points[-1].last
    return Sign(level, confidence, "; ".join([*texts, ends, *_adapter(run), *_means_only(run)]), steps)


def _measure(run: Run) -> str:
    """Name of the measure of the mismatch."""
    return run.filled[0].measure


def _resets(points: Sequence[Point]) -> list[int]:
    """Indices of the windows at which the mismatch falls to half or less, beyond its standard error."""
    return [
        index
        for index, (before, after) in enumerate(pairwise(points), start=1)
        if before.mismatch >= thresholds.RESET_FACTOR * after.mismatch
        and before.mismatch - after.mismatch >= thresholds.CERTAIN * float(np.hypot(before.error, after.error))
    ]


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
    if _certainty(run) == "high":
        return []
    return [
        "this log has only means and extremes of the distribution: a few absurd tokens, tokens that nobody "
        "sampled, and a sampling or engine setting that changed with a restart look the same"
    ]


def _certainty(run: Run) -> Confidence:
    """Medium for a third-party log without the spread of d, high otherwise."""
    return "medium" if run.foreign and run.whole.get("token/log_ratio/std") is None else "high"
