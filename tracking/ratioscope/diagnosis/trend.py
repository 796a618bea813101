"""Trend of the mismatch over a run: jumps and growth across pools of windows."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from ratioscope.diagnosis import thresholds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.diagnosis.pool import Pool


def find_jump(parts: Sequence[Pool]) -> int | None:
    """Finds the step up after which the mismatch stays several times as large as before.

    Args:
        parts: pools in the order of their steps.

    Returns:
        Index of the first pool after the jump; None if there is no jump.
    """
    values = mismatches(parts)
    if len(values) < thresholds.JUMP_PARTS:
        return None
    increases = [later - earlier for earlier, later in pairwise(values)]
    # Only the largest increase can hold half of the whole range, so no other position has to be tried.
    index = 1 + max(range(len(increases)), key=increases.__getitem__)
    increase, before, after = increases[index - 1], values[:index], values[index:]
    jumps = (
        mean(after) >= thresholds.JUMP_FACTOR * mean(before)
        and min(after) > thresholds.JUMP_SEPARATION * max(before)
        and increase >= thresholds.JUMP_SHARE * (max(values) - min(values))
        and increase >= thresholds.CERTAIN * difference_error(parts[index - 1], parts[index])
    )
    return index if jumps else None


def is_growing(parts: Sequence[Pool]) -> bool:
    """Checks whether the mismatch grows in size, order and certainty: over the whole run, or until it levels off.

    Args:
        parts: pools in the order of their steps.
    """
    values = mismatches(parts)
    if len(values) < thresholds.GROWTH_PARTS:
        return False
    if kendall_tau(values) >= thresholds.GROWTH_TAU and _grew(parts, third_of(values), thresholds.GROWTH_FACTOR):
        return True
    return _levels_off(parts)


def _levels_off(parts: Sequence[Pool]) -> bool:
    """Checks whether the mismatch climbs in order and then stays high.

    Weights that never reach the engine look like this: the mismatch to the first weights saturates.
    """
    values = mismatches(parts)
    third, tenth = third_of(values), tenth_of(values)
    high = thresholds.LEVELLED * mean(values[-third:])
    climb = values[: 1 + next(index for index, value in enumerate(values) if value >= high)]
    return (
        len(climb) >= thresholds.JUMP_PARTS
        and kendall_tau(climb) >= thresholds.GROWTH_TAU
        and min(values[third:]) >= thresholds.GROWTH_FACTOR * mean(values[:tenth])
        and _grew(parts, tenth, thresholds.LEVELLED_FACTOR)
    )


def _grew(parts: Sequence[Pool], start: int, factor: float) -> bool:
    """Checks that the last third's mismatch is ``factor`` times that of the first ``start`` parts, with certainty."""
    first, last = parts[:start], parts[-third_of(parts) :]
    before, after = mean(mismatches(first)), mean(mismatches(last))
    errors = [math.hypot(*(part.mismatch_error for part in side)) / len(side) for side in (first, last)]
    return after >= factor * before and after - before >= thresholds.CERTAIN * math.hypot(*errors)


def kendall_tau(values: Sequence[float]) -> float:
    """Kendall's rank correlation of the values with their order in time, -1 to 1; ties count as 0."""
    pairs = list(combinations(values, 2))
    return sum((later > earlier) - (later < earlier) for earlier, later in pairs) / len(pairs)


def difference_error(before: Pool, after: Pool) -> float:
    """Standard error of the difference between the mismatches of two pools."""
    return math.hypot(before.mismatch_error, after.mismatch_error)


def mismatches(parts: Sequence[Pool]) -> list[float]:
    """Mismatch of each pool, in nats."""
    return [part.mismatch for part in parts]


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    return sum(values) / len(values)


def third_of(parts: Sequence[object]) -> int:
    """Number of parts in the first or last third of a run; at least 2, so that one odd window does not decide."""
    return max(len(parts) // 3, 2)


def tenth_of(parts: Sequence[object]) -> int:
    """Number of parts in the first tenth of a run; at least 1."""
    return max(len(parts) // 10, 1)
