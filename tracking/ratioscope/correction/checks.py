"""Checks of a rule's settings, with errors that name what was got and what is expected."""

from __future__ import annotations

import difflib
import math
from typing import Any


def listed(names: list[str] | tuple[str, ...]) -> str:
    """Returns names as an error lists them, quoted and separated by commas."""
    return ", ".join(map(repr, names))


def near(name: str, known: list[str] | tuple[str, ...]) -> str:
    """Returns a hint at the nearest known name; empty if none is near."""
    close = difflib.get_close_matches(name, known, n=1)
    return f". Did you mean {close[0]!r}?" if close else ""


def check_choice(name: str, value: object, names: tuple[str, ...]) -> None:
    """Raises if a value is none of the names, with a hint at the nearest one.

    Raises:
        ValueError: if the value is unknown.
    """
    if value not in names:
        msg = f"got {name}={value!r}; expected one of {listed(names)}{near(str(value), names)}"
        raise ValueError(msg)


def checked_bound(
    name: str, value: Any, *, least: float = -math.inf, expected: str = "a finite number, or None for an open side"
) -> float | None:
    """Returns a bound as a float; None for an open side.

    Args:
        name: name of the bound, for the error.
        value: anything that float() takes, but no bool.
        least: smallest bound that is allowed.
        expected: description of an allowed bound, for the error.

    Raises:
        ValueError: if the value is no finite number, or below ``least``.
    """
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < least:
        msg = f"got {name}={value!r}; expected {expected}"
        raise ValueError(msg)
    return number
