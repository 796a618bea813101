"""Moments without single absurd tokens, against the same moments of batches that never had them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ratioscope as rs
from ratioscope.diagnosis.core import Core, core, narrow_ratio, stand_in
from ratioscope.diagnosis.pool import Pool
from ratioscope.record import Record
from ratioscope.runs.pooled import PooledRun

N = 4096


def pool(train: np.ndarray, rollout: np.ndarray) -> Pool:
    """Pool of one window of float32 log-probabilities, ``(N,)`` in rows of 64."""
    sides = [torch.from_numpy(side.reshape(-1, 64)) for side in (train, rollout)]
    summary = rs.summarize(*sides, torch.ones_like(sides[0], dtype=torch.bool))
    pooled = PooledRun.from_records([Record(1, "train", 0.0, summary.metrics(), summary.to_host())])
    return Pool(pooled.parts[0])


def sides(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities ``(N,)`` of both sides, float32."""
    rng = np.random.default_rng(seed)
    rollout = -rng.exponential(1.0, N).astype(np.float32)
    return (rollout + 0.1 * rng.standard_normal(N)).astype(np.float32), rollout


def independent(train: np.ndarray, rollout: np.ndarray) -> Core:
    """Moments in float64, from the values themselves."""
    x, y = rollout.astype(np.float64), train.astype(np.float64)
    d = (train - rollout).astype(np.float64)
    slope = float(np.cov(x, y, bias=True)[0, 1] / x.var())
    return Core(
        n=len(x),
        mean=float(d.mean()),
        spread=float(d.std()),
        abs_mean=float(np.abs(d).mean()),
        slope=slope,
        pearson=float(np.corrcoef(x, y)[0, 1]),
        intercept=float(y.mean() - slope * x.mean()),
        rollout_mean=float(x.mean()),
        rollout_spread=float(x.std()),
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(0, 32), value=st.sampled_from([-9999.0, -100.0, -30.0, -12.5]))
def test_absurd_tokens_leave_no_trace(seed: int, count: int, value: float) -> None:
    """Moments of a batch with up to 32 absurd tokens are those of the batch without them."""
    train, rollout = sides(seed)
    rest = np.ones(N, dtype=bool)
    rest[np.random.default_rng(seed).choice(np.flatnonzero(train > -6.0), count, replace=False)] = False
    found = core(pool(train, np.where(rest, rollout, np.float32(value))))
    expected = independent(train[rest], rollout[rest])
    exact = count == 0
    for name, right in vars(expected).items():
        value_found = getattr(found, name)
        if value_found is None:
            assert value == -9999.0  # its square leaves no digits of so few tokens
        else:
            assert value_found == pytest.approx(right, rel=1e-5 if exact else 0.02, abs=1e-6 if exact else 2e-3), name


def test_more_absurd_tokens_than_are_known_leave_no_slope() -> None:
    """With 33 placeholders the slope is unknown, and mean and spread are those of the histogram."""
    train, rollout = sides(0)
    rest = np.arange(N) >= 33
    found = core(pool(train, np.where(rest, rollout, np.float32(-9999.0))))
    expected = independent(train[rest], rollout[rest])
    assert (found.slope, found.pearson, found.scale, found.residual) == (None, None, None, None)
    assert found.spread == pytest.approx(expected.spread, rel=0.02)
    assert found.abs_mean == pytest.approx(expected.abs_mean, rel=0.02)


def test_the_narrow_ratio_is_the_mean_ratio_without_absurd_tokens() -> None:
    """A ratio of exp(9999) does not enter the mean of r - 1, which is right to a bucket's width."""
    train, rollout = sides(1)
    rest = np.arange(N) >= 5
    mean, spread = narrow_ratio(pool(train, np.where(rest, rollout, np.float32(-9999.0))))
    excess = np.expm1((train - rollout)[rest].astype(np.float64))
    assert mean == pytest.approx(excess.mean(), abs=0.016 * np.abs(excess).mean())
    assert spread == pytest.approx(excess.std(), rel=0.03)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([-9999.0], -9999.0),
        ([-30.0, -30.0, -30.0], -30.0),
        ([-30.0, -31.5, -29.25], None),
        ([-12.25], None),
        ([], None),
    ],
)
def test_a_stand_in_is_one_value_or_a_whole_number_far_off(values: list[float], expected: float | None) -> None:
    """Equal values on most absurd tokens stand for none; a single one does if it is a whole number below -20."""
    train, rollout = sides(2)
    train[: len(values)] = -1.0
    rollout[: len(values)] = values
    summary = pool(train, rollout).summary
    assert summary is not None
    assert stand_in(summary) == expected


def test_one_side_twice_the_other_is_a_multiple() -> None:
    """Y = 2 x is a multiple; y = 2 x + 1 and y = x are not."""
    _, rollout = sides(3)
    for slope, offset, expected in ((2.0, 0.0, True), (2.0, 1.0, False), (1.0, 0.0, False)):
        found = core(pool((slope * rollout + offset).astype(np.float32), rollout))
        assert found.is_multiple is expected
        assert found.slope is None or math.isclose(found.slope, slope, rel_tol=1e-5)
