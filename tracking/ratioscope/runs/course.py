"""Course of the mismatch over a run: one point per window, so that a change is dated to its window."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ratioscope.metrics.metric import PREFIX
from ratioscope.state.histogram import representatives
from ratioscope.state.slots import MAXIMA, SUMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.summary.host import HostSummary

MOST_POINTS = 1024
"""Points that are kept; when there are more, the older half is pooled in pairs, so that the newest 512 windows never
are. A point takes 0.2 KB."""

UNKNOWN_ERROR = 0.1
"""Standard error over mismatch where the log has no spread: 10 %, as of a window with a few hundred tokens."""

ABSURD_NATS, SINGLE_SHARE, SINGLE_SHARE_OF_A_WINDOW = 5.0, 0.01, 0.03
"""|d| from which a token is absurd, and the largest shares of such tokens of a run and of a window that count as single
ones. They are left out: one placeholder of -9999 among ten thousand tokens would be a jump of 1 nat."""

_REPRESENTATIVES = representatives()
_NARROW = np.abs(_REPRESENTATIVES) < ABSURD_NATS  # the cut is an edge of a bucket
_EXTREMES = [MAXIMA.index("token/max"), MAXIMA.index("token/-min")]
_SLOTS = tuple(SUMS.index(f"token/{name}") for name in ("abs_d", "d", "d2"))


class Point(NamedTuple):
    """Mismatch of one window, or of several older ones.

    Attributes:
        first: step of the first window.
        last: step of the last window.
        windows: number of windows.
        tokens: valid tokens; 1 for each window if they were not counted.
        mismatch: mean |d| in nats without single absurd tokens, or sqrt(2 k3) where only that is known.
        mean: mean d; None if unknown.
        square: mean of d squared; None if unknown.
    """

    first: int
    last: int
    windows: int
    tokens: float
    mismatch: float
    mean: float | None
    square: float | None

    @property
    def error(self) -> float:
        """Standard error of the mismatch, of tokens that are independent."""
        if self.square is None:
            return UNKNOWN_ERROR * self.mismatch
        return math.sqrt(max(self.square - self.mismatch**2, 0.0) / self.tokens)

    def pooled(self, later: Point) -> Point:
        """Pools the point with a later one."""
        tokens = self.tokens + later.tokens

        def mixed(one: float | None, other: float | None) -> float | None:
            return None if one is None or other is None else (one * self.tokens + other * later.tokens) / tokens

        mismatch = (self.mismatch * self.tokens + later.mismatch * later.tokens) / tokens
        means = mixed(self.mean, later.mean), mixed(self.square, later.square)
        return Point(self.first, later.last, self.windows + later.windows, tokens, mismatch, *means)


class Course:
    """Points of a run in the order of their steps; windows without a token or a mismatch have none."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def add(self, step: int, summary: HostSummary | None, scalars: Mapping[str, float]) -> None:
        """Appends a window of which the state or, without one, scalars are known."""
        point = _of_scalars(step, scalars) if summary is None else _of_state(step, summary)
        if point is None:
            return
        self.points.append(point)
        if len(self.points) > MOST_POINTS:
            older, newer = self.points[: MOST_POINTS // 2], self.points[MOST_POINTS // 2 :]
            pairs = zip(older[::2], older[1::2], strict=True)
            self.points = [*(first.pooled(second) for first, second in pairs), *newer]

    def single(self, most: int) -> list[Point]:
        """The newest points of one window each, at most ``most``."""
        newest = takewhile(lambda point: point.windows == 1, reversed(self.points[-most:]))
        return [*newest][::-1]


def _of_state(step: int, summary: HostSummary) -> Point | None:
    tokens = summary.count("token/n")
    if not tokens:
        return None
    if summary.maxima[_EXTREMES].max() >= ABSURD_NATS:
        point = _without_singles(step, summary, tokens)
        if point is not None:
            return point
    mismatch, mean, square = (float(summary.sums[slot]) / tokens for slot in _SLOTS)
    return Point(step, step, 1, float(tokens), mismatch, mean, square)


def _without_singles(step: int, summary: HostSummary, tokens: int) -> Point | None:
    """Point of the tokens that are not absurd, to the accuracy of a bucket; None if the absurd ones are not single."""
    counts = summary.histogram("token_log_ratio")[_NARROW]
    narrow = int(counts.sum())
    if not 0 < tokens - narrow <= SINGLE_SHARE_OF_A_WINDOW * tokens:
        return None
    values, weights = _REPRESENTATIVES[_NARROW], counts / narrow
    mismatch, mean, square = (float((weights * term).sum()) for term in (np.abs(values), values, values**2))
    return Point(step, step, 1, float(narrow), mismatch, mean, square)


def _of_scalars(step: int, scalars: Mapping[str, float]) -> Point | None:
    tokens = scalars.get(f"{PREFIX}counts/tokens", 1.0)
    names = (f"{PREFIX}log_ratio/abs_mean", f"{PREFIX}token/log_ratio/abs_mean")
    mismatch = next((scalars[name] for name in names if name in scalars), None)
    k3 = scalars.get(f"{PREFIX}kl/k3")
    if not tokens or (mismatch is None and k3 is None):
        return None
    if mismatch is None:
        return Point(step, step, 1, tokens, math.sqrt(2.0 * max(k3 or 0.0, 0.0)), None, None)
    mean, std = (scalars.get(f"{PREFIX}token/log_ratio/{name}") for name in ("mean", "std"))
    square = None if mean is None or std is None or tokens == 1.0 else std**2 + mean**2
    return Point(step, step, 1, tokens, mismatch, mean, square)
