"""Trend of the mismatch over a run: where it rose for good, by how much, and in which shape.

Healthy trainings raise the mismatch too. Asynchronous engines are a few optimizer steps behind: their mismatch rises
while the pipeline fills, in the first windows, and then follows the learning rate. Data and entropy change the noise of
both engines. Engines that no longer receive weights differ from them: their mismatch goes on to rise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.warmup import follows_a_warmup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ratioscope.runs.course import Point

    Array = NDArray[np.float64]

_SMALLEST = 1e-12
"""Stands for a mismatch of 0, which has no logarithm."""


@dataclass(frozen=True)
class Change:
    """Rise of the mismatch that lasts until the newest window.

    Attributes:
        kind: ``jump`` if the first window after it has most of the rise, ``growth`` if the mismatch goes on to rise.
        index: index of the first raised point; 0 for growth since the start.
        before: mean mismatch of the points before, in nats.
        after: mismatch at the end, in nats.
        healthy: True if a healthy training may do this.
        excluded: True if no healthy training does this.
    """

    kind: Literal["jump", "growth"]
    index: int
    before: float
    after: float
    healthy: bool
    excluded: bool

    @property
    def factor(self) -> float:
        """Mismatch at the end over that before."""
        return self.after / max(self.before, _SMALLEST)


def find_change(points: Sequence[Point], *, synchronous: bool = False) -> Change | None:
    """Finds the rise of the mismatch that is farthest from a healthy one; of several alike, the earliest.

    Args:
        points: mismatch of the windows, in order.
        synchronous: True if the config shows that the engine has the newest weights at every window.
    """
    values = np.maximum([point.mismatch for point in points], _SMALLEST)
    if len(values) < thresholds.JUMP_PARTS:
        return None
    errors = np.array([point.error for point in points]) / values
    changes = [_rated(values, index, synchronous=synchronous) for index in _late_changes(values, errors)]
    changes += [replace(_rated(values, index), kind="jump") for index in _early_jump(values)]
    if (growth := _early_growth(points, values, errors, synchronous=synchronous)) is not None:
        changes.append(growth)
    return max(changes, key=_severity, default=None)


def _severity(change: Change) -> tuple[bool, bool, bool, int]:
    """Sort key: how far from healthy; a dated rise before growth since the start; the earliest last."""
    return change.excluded, not change.healthy, change.index > 0, -change.index


def _late_changes(values: Array, errors: Array) -> Iterator[int]:
    """Yields indices at which the mismatch leaves a steady level for good, after the pipeline is full."""
    logs = np.log(values)
    pairs = 0.5 * (logs[1:] + logs[:-1])
    lowest_after = np.minimum.accumulate(np.append(pairs, logs[-1])[::-1])[::-1]
    indices = np.arange(thresholds.FILL, len(pairs))
    totals = np.concatenate([[0.0], logs.cumsum()])
    starts = _baseline(indices)
    levels = (totals[indices] - totals[starts]) / (indices - starts)
    seen = -1
    for index, start, level in zip(indices.tolist(), starts.tolist(), levels.tolist(), strict=True):
        rise = lowest_after[index] - level
        if index <= seen or rise < thresholds.RAISED or not _is_steady(logs[start:index]):
            continue
        scatter = _scatter(logs[start:index], errors[start:index])
        soon = slice(index, index + max(2, index // 2))
        error = scatter * math.sqrt(1.0 / (index - start) + 1.0 / len(logs[soon]))
        if (
            rise >= 2.0 * scatter
            and logs[soon].mean() - level >= thresholds.CERTAIN * error
            and pairs[soon].max() - level >= math.log(_factor(len(values) - index))
        ):
            limit = level + max(2.5 * scatter, thresholds.RAISED)
            seen = _first_raised(logs, index, limit)
            if seen < len(pairs):
                yield seen


def _baseline(index: Any) -> Any:
    """Index at which the steady level before an index begins: half as many windows, and not the first one."""
    return np.maximum(1, index - np.clip(index // 2, thresholds.FILL - 1, thresholds.BASELINE))


def _factor(windows: int) -> float:
    """Smallest growth over a steady level that is looked at, by the number of windows that show it."""
    return thresholds.GROWTH_SOON if windows <= 2 else thresholds.GROWTH_FACTOR


def _first_raised(logs: Array, index: int, limit: float) -> int:
    """Index of the first value beyond a limit, at or around an index."""
    while index > thresholds.FILL and logs[index - 1] > limit:
        index -= 1
    while index < len(logs) and logs[index] <= limit:
        index += 1
    return index


def _is_steady(logs: Array) -> bool:
    """Checks that a stretch does not rise from its first half to its second, beyond its scatter."""
    half = len(logs) // 2
    allowed = max(thresholds.STEADY, 2.0 * float(logs.std()) / math.sqrt(half))
    return float(logs[half:].mean() - logs[:half].mean()) <= allowed


def _scatter(logs: Array, errors: Array) -> float:
    """Standard deviation of one window's logarithm: as measured, and at least that of independent tokens."""
    return max(float(logs.std(ddof=1)), float(errors.mean()), thresholds.LEAST_SCATTER)


def _early_jump(values: Array) -> Iterator[int]:
    """Yields the index of a jump in the first windows that is too large for a pipeline that fills."""
    for index in range(2, min(thresholds.FILL, len(values) - 1)):
        before, after = values[:index].max(), values[index:].min()
        if after >= thresholds.JUMP_FACTOR * before and values[index:].mean() >= thresholds.EXCLUDED:
            yield index


def _rated(values: Array, index: int, *, synchronous: bool = False) -> Change:
    """Rates a rise after a steady level."""
    start = int(_baseline(index))
    before, after = float(values[start:index].mean()), float(values[index:][-_newest(len(values) - index) :].mean())
    kind: Literal["jump", "growth"] = "growth" if _goes_on(values[index:], before) else "jump"
    factor = after / before
    if kind == "growth":
        healthy = after < thresholds.DRIFTED
    else:
        healthy = after < thresholds.JUMPED or factor < thresholds.JUMP_FACTOR
    level = thresholds.EXCLUDED / 2.0 if synchronous else thresholds.EXCLUDED
    return Change(kind, index, before, after, healthy, after >= level and factor >= thresholds.JUMP_FACTOR)


def _goes_on(values: Array, before: float) -> bool:
    """Checks that a mismatch grows as it does from a window on at which weights stop.

    Over the excess of the first window's squared mismatch, that of later ones is then 2, 3, 4 ... after steps in random
    directions, and 4, 9, 16 ... after steps in one direction. If the engine goes back to older weights, the first
    window already has the excess of many steps.
    """
    first = values[0] / before
    if first < thresholds.SMALL_STEP:
        return True
    excess = np.maximum(values[: thresholds.FIRST_STEPS] ** 2 - before**2, _SMALLEST**2)
    level = -np.log(np.arange(2, len(excess) + 1))
    leaps = first >= thresholds.LEAP and before >= thresholds.NOISY
    share = thresholds.FRESH[2 if leaps else int(first >= thresholds.JUMP_FACTOR)]
    return bool(np.mean(np.log(excess[1:] / excess[0]) + level) >= share * level.mean())


def _early_growth(points: Sequence[Point], values: Array, errors: Array, *, synchronous: bool) -> Change | None:
    """Rates growth since the first window: that goes on after a pipeline is full, or that reaches what none does."""
    if len(values) < thresholds.GROWTH_PARTS:
        return None
    full, newest = values[thresholds.FILL - 2 : thresholds.FILL], values[-_newest(len(values)) :]
    before, after = float(values[0]), float(newest.mean())
    scatter = float(np.mean(errors)) * math.sqrt(0.5 + 1.0 / len(newest))
    goes_on = math.log(after / full.mean()) >= max(math.log(thresholds.GOES_ON), thresholds.CERTAIN * scatter)
    large = after >= thresholds.JUMP_FACTOR * before
    excluded = large and after >= (thresholds.EXCLUDED / 2.0 if synchronous else thresholds.EXCLUDED)
    if not (goes_on or excluded) or values[len(values) // 2 :].min() < thresholds.GROWTH_FACTOR * before:
        return None
    unlike = synchronous or after >= thresholds.BEYOND or not follows_a_warmup(values)
    suspicious = after >= thresholds.BY_DESIGN and unlike
    healthy = not excluded and not (large and suspicious) and not _is_one_sided(points[-len(newest) :], after)
    return Change("growth", 0, before, after, healthy, excluded)


def _is_one_sided(points: Sequence[Point], after: float) -> bool:
    """Checks that most tokens have d of one sign, which neither noise nor old weights lead to."""
    means = [point.mean for point in points if point.mean is not None]
    return after >= thresholds.DRIFTED and bool(means) and abs(float(np.mean(means))) >= thresholds.ONE_SIGN * after


def _newest(count: int) -> int:
    """Number of points that stand for the end of a stretch."""
    return min(max(count // 4, 2), thresholds.NEWEST)
