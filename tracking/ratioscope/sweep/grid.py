"""Bounds to try in a sweep: from numbers, or parsed from the command line."""

from __future__ import annotations

import math
from itertools import pairwise

CAPS, POINTS = (1.1, 5.0), 9
"""Smallest and largest upper bound to try by default, and the number of bounds in a range."""

OPEN = "none"
"""Text for a side without a bound."""


def parse_bounds(text: str, points: int) -> list[float | None]:
    """Parses bounds: a range such as ``1.1:5``, one ratio, ``none``, or several of these separated by commas.

    Args:
        text: the option's value.
        points: number of bounds in a range.

    Raises:
        ValueError: if the text has another form.
    """
    bounds: list[float | None] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        try:
            if colon:
                bounds += geomspace(_ratio(first), _ratio(last), points)
            else:
                bounds.append(None if part.strip() == OPEN else _ratio(part))
        except ValueError:
            msg = f"got {part!r}; expected a range of ratios as 1.1:5, one ratio, {OPEN}, or several with commas"
            raise ValueError(msg) from None
    return list(dict.fromkeys(bounds))


def geomspace(low: float, high: float, points: int) -> list[float]:
    """Bounds in even ratios from ``low`` to ``high``, with no more digits than distinguish them.

    Args:
        low: first bound, above 0.
        high: last bound, above ``low``.
        points: number of bounds, at least 2.

    Raises:
        ValueError: if the ends are not in order.
    """
    if not 0.0 < low < high:
        msg = f"got a range from {low:g} to {high:g}; expected 0 < low < high"
        raise ValueError(msg)
    exact = [low * (high / low) ** (index / (points - 1)) for index in range(points)]
    rounded = exact
    for digits in range(3, 18):  # 17 digits distinguish any two float64
        rounded = [low, *(float(f"{value:.{digits}g}") for value in exact[1:-1]), high]
        if all(earlier < later for earlier, later in pairwise(rounded)):
            break
    return rounded


def _ratio(text: str) -> float:
    """Parses a finite ratio from 0 on."""
    value = float(text)
    if not math.isfinite(value) or value < 0.0:
        raise ValueError
    return value
