"""Correlation and least-squares line of the two log-probabilities, from a summary's sums; None means no data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ratioscope.metrics.view import View


class _Moments(NamedTuple):
    """Means of x and y, their variances and covariance."""

    x: float
    y: float
    variance_x: float
    variance_y: float
    covariance: float


def _moments(view: View, name: str) -> _Moments | None:
    """None if either side does not vary beyond rounding."""
    n = view.counts["token/n"]
    if n < 2:
        return None
    x, y, xx, yy, xy = (view.sums[f"{name}/{part}"] / n for part in ("x", "y", "xx", "yy", "xy"))
    moments = _Moments(x, y, xx - x * x, yy - y * y, xy - x * y)
    floor = 1e-12
    varies = moments.variance_x > floor * xx and moments.variance_y > floor * yy
    return moments if varies else None


def slope(view: View) -> float | None:
    """Slope of the least-squares line of train logp on rollout logp."""
    moments = _moments(view, "logp")
    return None if moments is None else moments.covariance / moments.variance_x


def intercept(view: View) -> float | None:
    """Intercept of that line, in nats."""
    moments = _moments(view, "logp")
    return None if moments is None else moments.y - moments.covariance / moments.variance_x * moments.x


def lag_pearson(view: View, lag: int) -> float | None:
    """Correlation of the train logp of a token with the rollout logp of the next (1) or the one before (-1)."""
    n = view.counts["lag/n"]
    if n < 3:
        return None
    one, other = ("first", "second") if lag > 0 else ("second", "first")
    names = f"lag/train/{one}", f"lag/rollout/{other}"
    y, x = (view.sums[name] / n for name in names)
    yy, xx = (view.sums[f"{name}^2"] / n for name in names)
    variance_x, variance_y = xx - x * x, yy - y * y
    if variance_x <= 1e-12 * xx or variance_y <= 1e-12 * yy:
        return None  # neither varies beyond rounding
    return max(-1.0, min(1.0, (view.sums[f"lag/{lag}"] / n - x * y) / math.sqrt(variance_x * variance_y)))


def pearson(view: View, name: str) -> float | None:
    """Correlation of x and y."""
    moments = _moments(view, name)
    if moments is None:
        return None
    return max(-1.0, min(1.0, moments.covariance / math.sqrt(moments.variance_x * moments.variance_y)))
