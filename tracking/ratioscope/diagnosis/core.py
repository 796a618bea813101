"""Core: moments of the tokens without single absurd ones, which alone decide sums of squares and of ratios.

One token of ten thousand with a placeholder of -9999 for its log-probability makes a mean |d| of 1 nat and a
correlation of 0. Up to a share of ``thresholds.OUTLIER_SHARE``, tokens beyond ``thresholds.TAIL_NATS`` are reported as
single ones (``shape.outliers``), and every other check reads the rest: the worst tokens are in the state one by one, so
their terms are subtracted from its sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Unchecked
from ratioscope.state.histogram import representatives
from ratioscope.state.slots import SUMS
from ratioscope.state.worst import WorstToken, tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.diagnosis.pool import Pool
    from ratioscope.summary.host import HostSummary

_MEANS = ("token/d", "token/abs_d", "token/d2", "logp/x", "logp/y", "logp/xx", "logp/yy", "logp/xy")
_REPRESENTATIVES = representatives()
_NARROW = np.abs(_REPRESENTATIVES) < thresholds.TAIL_NATS  # the cut is an edge of a bucket
_EXCESS = np.where(_NARROW, np.expm1(np.where(_NARROW, _REPRESENTATIVES, 0.0)), 0.0)
_DIGITS = 1e-7
"""Relative error of a square in the state's sums, which batches compute in float32."""
_LARGEST_ERROR = 1e-3
"""Largest error of the remaining variance, relative to it, at which a slope is still computed."""


@dataclass(frozen=True)
class Core:
    """Moments of tokens, in nats; x is the rollout's log-probability, y the trainer's, d = y - x.

    Attributes:
        n: number of tokens.
        mean: mean d.
        spread: standard deviation of d.
        abs_mean: mean |d|.
        slope: least-squares slope of y on x; None where x does not vary, or where absurd tokens hide it.
        pearson: correlation of x and y; None likewise.
        intercept: of that line; None without a slope.
        rollout_mean: mean x; None in a log without it.
        rollout_spread: standard deviation of x; None in a log without it.
    """

    n: float
    mean: float
    spread: float
    abs_mean: float
    slope: float | None
    pearson: float | None
    intercept: float | None
    rollout_mean: float | None
    rollout_spread: float | None

    @property
    def scale(self) -> float | None:
        """Spread of y over that of x; None where it is not known."""
        return self.slope / self.pearson if self.slope is not None and self.pearson else None

    @property
    def residual(self) -> float | None:
        """Standard deviation of y about the line, in nats; None where it is not known."""
        if self.scale is None or self.pearson is None or self.rollout_spread is None:
            return None
        return abs(self.scale) * self.rollout_spread * math.sqrt(max(1.0 - self.pearson**2, 0.0))

    @property
    def is_multiple(self) -> bool:
        """True if y is a multiple of x on every token; a temperature adds a constant that differs by context."""
        if self.slope is None or self.intercept is None or self.rollout_mean is None or self.residual is None:
            return False
        change, spread = abs(self.slope - 1.0), self.rollout_spread or 0.0
        alike = (self.pearson or 0.0) >= thresholds.ALIKE and change >= thresholds.SLOPE_OFF
        exact = self.residual < thresholds.MULTIPLE * change * spread
        return alike and exact and abs(self.intercept) < thresholds.NO_OFFSET * change * abs(self.rollout_mean)


def core(pool: Pool) -> Core:
    """Moments of a pool's tokens without single absurd ones.

    With absurd tokens, mean, spread and mean |d| are those of the histogram, to the accuracy of a bucket (1.6 %). The
    rest is None where there are more absurd tokens than the state names, or where their squares leave no digits.

    Raises:
        Unchecked: if there is no token, or if the log lacks a moment.
    """
    n = pool.enough(1)
    if pool.summary is None:
        return _from_scalars(pool, n)
    absurd = count_singles(pool)
    if not absurd:
        return _moments(pool.summary, n, np.zeros((0, 2)))
    removed, narrow = _worst(pool.summary), _narrow(pool)
    if absurd > len(removed):
        return narrow
    moments = _moments(pool.summary, n, removed)
    rest = n * (moments.rollout_spread or 0.0) ** 2
    if not _DIGITS * float((removed**2).sum()) < _LARGEST_ERROR * rest:
        return narrow
    return replace(moments, mean=narrow.mean, spread=narrow.spread, abs_mean=narrow.abs_mean)


def count_singles(pool: Pool) -> int:
    """Number of absurd tokens; 0 where they are too many to be single ones and no placeholder stands on them."""
    absurd = pool.beyond(thresholds.TAIL_NATS)
    few = absurd <= thresholds.OUTLIER_SHARE * pool.tokens
    return absurd if few or placeholder(pool.state) is not None else 0


def placeholder(state: HostSummary) -> float | None:
    """Value far below 0 that most absurd tokens have as the rollout's log-probability; None if there is none."""
    value = stand_in(state)
    return value if value is not None and value < thresholds.STAND_IN else None


def singles(pool: Pool) -> list[WorstToken]:
    """Absurd tokens, where they are single ones.

    Raises:
        Unchecked: if there are more than the state names.
    """
    absurd = count_singles(pool)
    if not absurd:
        return []
    worst = [token for token in tokens_of(pool.state.top.tokens) if abs(token.log_ratio) >= thresholds.TAIL_NATS]
    if len(worst) < absurd:
        msg = f"{absurd:,} tokens beyond {thresholds.TAIL_NATS:g} nats hide the rest; only the worst are known singly"
        raise Unchecked(msg)
    return worst


def narrow_ratio(pool: Pool) -> tuple[float, float]:
    """Mean of r - 1 and standard deviation of r, over tokens that are not absurd, to the accuracy of a bucket."""
    counts = pool.state.histogram("token_log_ratio")
    n = max(int(counts[_NARROW].sum()), 1)
    mean = float((counts * _EXCESS).sum()) / n
    return mean, math.sqrt(max(float((counts * _EXCESS**2).sum()) / n - mean**2, 0.0))


def _worst(state: HostSummary) -> np.ndarray:
    """Log-probabilities ``(K, 2)`` of the absurd tokens that the state names, the rollout's first."""
    worst = [token for token in tokens_of(state.top.tokens) if abs(token.log_ratio) >= thresholds.TAIL_NATS]
    pairs = [(token.rollout_logp, token.train_logp) for token in worst]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def _narrow(pool: Pool) -> Core:
    """Moments of d of the tokens that are not absurd, from the histogram."""
    counts = pool.state.histogram("token_log_ratio")[_NARROW]
    values, n = _REPRESENTATIVES[_NARROW], max(int(counts.sum()), 1)
    mean = float((counts * values).sum()) / n
    return Core(
        n=n,
        mean=mean,
        spread=math.sqrt(max(float((counts * values**2).sum()) / n - mean**2, 0.0)),
        abs_mean=float((counts * np.abs(values)).sum()) / n,
        slope=None,
        pearson=None,
        intercept=None,
        rollout_mean=None,
        rollout_spread=None,
    )


def _moments(state: HostSummary, n: float, removed: np.ndarray) -> Core:
    """Moments of a state's tokens without the removed ones, of which the log-probabilities are given."""
    known = dict(zip(SUMS, state.sums.tolist(), strict=True))
    x, y = removed[:, 0], removed[:, 1]
    terms = (y - x, np.abs(y - x), (y - x) ** 2, x, y, x * x, y * y, x * y)
    left = max(n - len(removed), 1.0)
    values = [(known[name] - float(term.sum())) / left for name, term in zip(_MEANS, terms, strict=True)]
    d, abs_d, d2, x_mean, y_mean, xx, yy, xy = values
    x_variance, y_variance, both = xx - x_mean**2, yy - y_mean**2, xy - x_mean * y_mean
    slope = both / x_variance if x_variance > 1e-12 * xx else None
    varies = slope is not None and y_variance > 1e-12 * yy  # not rounding errors of a constant
    return Core(
        n=left,
        mean=d,
        spread=math.sqrt(max(d2 - d**2, 0.0)),
        abs_mean=abs_d,
        slope=slope,
        pearson=both / math.sqrt(x_variance * y_variance) if varies else None,
        intercept=None if slope is None else y_mean - slope * x_mean,
        rollout_mean=x_mean,
        rollout_spread=math.sqrt(max(x_variance, 0.0)),
    )


def _from_scalars(pool: Pool, n: float) -> Core:
    """Moments that a log of another trainer has."""
    slope, pearson = pool.get("calibration/slope"), pool.get("calibration/pearson")
    spread = pool.need("token/log_ratio/std")
    return Core(
        n=n,
        mean=pool.need("token/log_ratio/mean"),
        spread=spread,
        abs_mean=pool.abs_mean,
        slope=slope,
        pearson=pearson,
        intercept=pool.get("calibration/intercept"),
        rollout_mean=None,
        rollout_spread=_rollout_spread(slope, pearson, spread),
    )


def _rollout_spread(slope: float | None, pearson: float | None, spread: float) -> float | None:
    """Standard deviation of x, from var(d) = var(x) * (1 + scale^2 - 2 * slope) with scale = slope / pearson."""
    if slope is None or not pearson or not spread:
        return None
    return spread / math.sqrt(max(1.0 + (slope / pearson) ** 2 - 2.0 * slope, 1e-12))


def stand_in(state: HostSummary) -> float | None:
    """Value that most of the absurd tokens have as the rollout's log-probability; None if there is none.

    Numbers such as -9999, -100 or -30 stand for a log-probability that is missing, and others for tokens that were not
    sampled; sampled tokens repeat none exactly. A single token shows it by a whole number far below 0.
    """
    values: Sequence[float] = [
        token.rollout_logp for token in tokens_of(state.top.tokens) if abs(token.log_ratio) >= thresholds.TAIL_NATS
    ]
    if not values:
        return None
    common = max(set(values), key=values.count)
    alone = len(values) == 1 and common < thresholds.STAND_IN and common == round(common)
    repeated = len(values) > 1 and 2 * values.count(common) > len(values)
    return common if alone or repeated else None
