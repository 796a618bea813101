"""Bounds to try, and the rules of one mode that they make."""

from __future__ import annotations

import math
from itertools import pairwise

OPEN = "none"
"""Stands for no bound."""


def parse_bounds(text: str, points: int) -> list[float | None]:
    """Reads bounds: ``1.1:5`` for so many from 1.1 to 5 in even ratios, one ratio, ``none``, or several with commas.

    Args:
        text: what was asked for.
        points: how many a range has.

    Raises:
        ValueError: if it is none of these.
    """
    bounds: list[float | None] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        try:
            if colon:
                bounds += geomspace(_number(first), _number(last), points)
            else:
                bounds.append(None if part.strip() == OPEN else _number(part))
        except ValueError:
            msg = f"got {part!r}; expected a range of ratios as 1.1:5, one ratio, {OPEN}, or several with commas"
            raise ValueError(msg) from None
    return list(dict.fromkeys(bounds))


def geomspace(low: float, high: float, points: int) -> list[float]:
    """Returns bounds evenly spaced on a log scale, rounded to as many digits as keep them distinct.

    Raises:
        ValueError: if the ends are not positive and ascending.
    """
    if not 0.0 < low < high:
        msg = f"got {low:g} to {high:g}; expected two positive bounds, the smaller first"
        raise ValueError(msg)
    exact = [low * (high / low) ** (at / (points - 1)) for at in range(points)]
    rounded = exact
    for digits in range(3, 18):
        rounded = [low, *(float(f"{value:.{digits}g}") for value in exact[1:-1]), high]
        if all(one < other for one, other in pairwise(rounded)):
            break
    return rounded


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0.0:
        raise ValueError
    return value
