"""Scales of the pictures: positions of values, ticks, and their labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MIN_LOG_SHARE = -5
"""log10 of the smallest share of a window on the scales; a smaller share is drawn as this one."""

Bounds = tuple[float | None, float | None]
"""Smallest and largest ratio that the correction keeps; None where a side is open."""

EMPTY = (243, 244, 246)
"""Colour of a bin without any value."""

_ANCHORS = [(68, 1, 84), (72, 40, 120), (59, 82, 139), (33, 145, 140), (94, 201, 98), (170, 220, 50), (253, 231, 37)]


def _palette() -> NDArray[np.uint8]:
    positions = np.linspace(0, len(_ANCHORS) - 1, 256)
    channels = [np.interp(positions, np.arange(len(_ANCHORS)), channel) for channel in zip(*_ANCHORS, strict=True)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


PALETTE = _palette()
"""uint8 ``(256, 3)``: dark blue to yellow, lighter at every step."""


def position(value: float, start: float, end: float, first: int, last: int) -> int:
    """Returns the pixel of a value on a scale with ``start`` at pixel ``first`` and ``end`` at pixel ``last``."""
    return first + round((value - start) / (end - start) * (last - first))


def tick_step(span: float) -> float:
    """Returns a distance between ticks, 1, 2 or 5 times a power of ten, with at most seven ticks on this span."""
    unit = 10.0 ** math.floor(math.log10(span / 7))
    return next(factor * unit for factor in (1.0, 2.0, 5.0, 10.0) if span / (factor * unit) < 7)


def ticks(low: float, high: float, step: float) -> list[float]:
    """Returns the multiples of ``step`` between ``low`` and ``high``."""
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def log_ratio_label(value: float, step: float) -> str:
    """Labels a tick as a log-ratio, with enough digits to distinguish it from the next tick."""
    decimals = max(0, -math.floor(math.log10(step)))
    if decimals > 3:
        return _compact(f"{value:.0e}") if value else "0"
    return f"{value:.{decimals}f}"


def ratio_label(value: float, step: float) -> str:
    """Labels a tick at a log-ratio as the ratio ``exp(value)``."""
    if step >= 0.5:
        exponent = math.floor(value / math.log(10))
        if abs(exponent) < 3:
            return _compact(f"{math.exp(value):.2g}")
        # exp(value) overflows on the widest axes (512 nats), but mantissa and exponent do not.
        return f"{10 ** (value / math.log(10) - exponent):.2g}e{exponent}"
    decimals = -math.floor(math.log10(step)) + (1 if step >= 0.1 else 0)
    return f"{math.exp(value):.{decimals}f}"


def step_label(value: float) -> str:
    """Labels a training step in few characters."""
    return f"{value:.0f}" if value < 1e6 else f"{value / 1e6:g}M"


def percent_label(exponent: int) -> str:
    """Labels the share ``10**exponent`` as a percentage."""
    return f"{100.0 * 10.0**exponent:.{max(0, -exponent - 2)}f} %"


def _compact(number: str) -> str:
    """Shortens ``2e+05`` to ``2e5``."""
    mantissa, _, exponent = number.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else number


def named_bounds(bounds: Bounds) -> list[tuple[str, float]]:
    """Returns the bounds that exist by name; a lower bound of 0 excludes no ratio and counts as none."""
    return [(name, value) for name, value in zip(("lower", "upper"), bounds, strict=True) if value]


def visible_bounds(bounds: Bounds, low: float, high: float) -> list[tuple[str, float, float]]:
    """Returns name, ratio and log-ratio of the bounds that lie on an axis from ``low`` to ``high``."""
    named = [(name, value, math.log(value)) for name, value in named_bounds(bounds)]
    return [entry for entry in named if low <= entry[2] <= high]


def window_starts(steps: Sequence[int]) -> NDArray[np.float64]:
    """Returns the start of each window and the end of the last, float64 ``(len(steps) + 1,)``.

    The first window's start is unknown; it gets the median length of the others.
    """
    ends = np.asarray(steps, dtype=np.float64)
    first = float(np.median(np.diff(ends))) if len(ends) > 1 else max(1.0, float(ends[0]))
    return np.concatenate([[max(0.0, ends[0] - first) if ends[0] > 0 else ends[0] - first], ends])


def heat_cells(counts: NDArray[np.int64], starts: NDArray[np.float64], width: int) -> NDArray[np.uint8]:
    """Returns the colours of a heat map: a row for each bin, the highest on top, and a column for each pixel.

    A pixel pools all windows that it touches, so that no window is lost if there are more windows than pixels.

    Args:
        counts: int64 ``(windows, bins)``.
        starts: float64 ``(windows + 1,)``, ascending, as :func:`window_starts` returns them.
        width: number of pixels.

    Returns:
        uint8 ``(bins, width, 3)``.
    """
    pixels = np.linspace(starts[0], starts[-1], width + 1)
    last = len(counts) - 1
    first_window = np.clip(np.searchsorted(starts, pixels[:-1], side="right") - 1, 0, last)
    last_window = np.clip(np.searchsorted(starts, pixels[1:], side="left") - 1, first_window, last)
    cumulative = np.concatenate([np.zeros((1, counts.shape[1]), dtype=np.int64), np.cumsum(counts, axis=0)])
    pooled = cumulative[last_window + 1] - cumulative[first_window]
    totals = np.maximum(pooled.sum(axis=1, keepdims=True), 1)
    share = np.log10(np.maximum(pooled / totals, 10.0**MIN_LOG_SHARE))
    colors = PALETTE[np.rint((1 - share / MIN_LOG_SHARE) * 255).astype(np.intp)]
    colors[pooled == 0] = EMPTY
    return np.ascontiguousarray(colors.transpose(1, 0, 2)[::-1])
