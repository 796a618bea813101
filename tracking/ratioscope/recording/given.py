"""Values that a training loop hands over: steps, and the numbers of its log."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from ratioscope.secrets import outgoing_key

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_STEP = 2**63 - 1
"""Largest integer that the journal and trackers can hold."""


def whole_step(step: object) -> int:
    """Returns a step as an int; integers of numpy and one-element integer tensors are taken.

    Raises:
        TypeError: if the step is no integer.
        ValueError: if the step is too large to be stored.
    """
    try:
        whole = operator.index(step)  # type: ignore[arg-type]
    except Exception as error:
        msg = f"got a step of type {type(step).__name__}; expected an integer. Convert it with int(step)."
        raise TypeError(msg) from error
    if isinstance(step, bool):
        msg = f"got step={step}; expected an integer"
        raise TypeError(msg)
    if abs(whole) > LARGEST_STEP:
        msg = "got a step beyond 64 bits; expected the trainer's global step"
        raise ValueError(msg)
    return whole


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Returns the finite numbers of a log, also those of numpy and 0-d tensors; a bad value costs only itself."""
    finite: dict[str, float] = {}
    for key, value in logs.items():
        if isinstance(key, str) and (number := _number(value)) is not None:
            finite[outgoing_key(key)] = number
    return finite


def _number(value: Any) -> float | None:
    """Returns a value as a finite float; None if it is none."""
    try:
        if not isinstance(value, int | float) and getattr(value, "shape", None) != ():
            return None
        number = float(value)
    except Exception:  # too large, on a device that has no values, or a class that refuses
        return None
    return number if math.isfinite(number) else None
