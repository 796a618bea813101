"""How commands read ranges: of steps, and of bounds to try."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from itertools import pairwise

OPEN = "none"
"""Stands for no bound."""


@dataclass(frozen=True)
class Steps:
    """A range of steps, both ends included.

    Attributes:
        first: None for no lower end.
        last: None for no upper end.
    """

    first: int | None = None
    last: int | None = None

    def __contains__(self, step: int) -> bool:
        return (self.first is None or step >= self.first) and (self.last is None or step <= self.last)

    def __str__(self) -> str:
        if self.first is None:
            return "all steps" if self.last is None else f"steps up to {self.last}"
        return f"steps from {self.first}" if self.last is None else f"steps {self.first} to {self.last}"

    def to_json(self) -> list[int | None]:
        """Both ends."""
        return [self.first, self.last]


def parse_steps(text: str) -> Steps:
    """Reads ``100:200``, ``100:``, ``:200`` or ``100``.

    Raises:
        argparse.ArgumentTypeError: if it is none of these.
    """
    first, colon, last = text.partition(":")
    try:
        ends = [int(end) if end.strip() else None for end in (first, last if colon else first)]
    except ValueError:
        ends = [None, None]
    if ends == [None, None] or (ends[0] is not None and ends[1] is not None and ends[0] > ends[1]):
        msg = f"got {text!r}; expected steps as 100:200, 100:, :200 or 100"
        raise argparse.ArgumentTypeError(msg)
    return Steps(*ends)


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
                bounds += _between(_number(first), _number(last), points)
            else:
                bounds.append(None if part.strip() == OPEN else _number(part))
        except ValueError:
            msg = f"got {part!r}; expected a range of ratios as 1.1:5, one ratio, {OPEN}, or several with commas"
            raise ValueError(msg) from None
    return list(dict.fromkeys(bounds))


def _between(low: float, high: float, points: int) -> list[float]:
    """Evenly spaced on a log scale, with no more digits than tell them apart."""
    if not 0.0 < low < high:
        raise ValueError
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
