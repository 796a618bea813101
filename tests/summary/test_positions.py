"""Mismatch by position, by turn, by length, and in the tail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.metrics.pareto import fit_shape, pareto_k, tail_size
from ratioscope.state import length_histogram
from ratioscope.state.slots import N_LOG_RATIOS

OWN = "ratioscope/"
CAP = rs.Correction("token", "truncate", upper=1.2)


def metrics_of(d: torch.Tensor, mask: torch.Tensor | None = None, rule: rs.Correction | None = CAP) -> dict[str, float]:
    """Computes the metrics of tokens with the given log-ratios."""
    return rs.summarize(d, torch.zeros_like(d), torch.ones_like(d) if mask is None else mask, correction=rule).metrics()


def test_c39_a_mismatch_that_starts_at_a_position() -> None:
    """A key-value cache that is off from token 96 of 128 on gives 0 in the first tenths and 0.1 in the last."""
    d = torch.zeros(1, 128)
    d[0, 96:] = 0.1
    metrics = metrics_of(d)
    tenths = [metrics[f"{OWN}position/0{tenth}/abs_mean"] for tenth in range(10)]
    assert tenths[:7] == [0.0] * 7
    assert tenths[7] == pytest.approx(0.1 * 7 / 13)  # of tokens 90 to 102
    assert tenths[8:] == pytest.approx([0.1, 0.1])


def test_c40_absurd_last_tokens_are_visible() -> None:
    """Log-ratios of -15 on the last 3 of 512 tokens show in the last token, and much less in the last tenth."""
    d = torch.zeros(1, 512)
    d[0, -3:] = -15.0
    metrics = metrics_of(d)
    assert metrics[f"{OWN}position/last/mean"] == -15.0
    assert metrics[f"{OWN}position/last/abs_mean"] == 15.0
    assert metrics[f"{OWN}position/09/mean"] == pytest.approx(-45.0 / 51)
    assert metrics[f"{OWN}position/08/abs_mean"] == 0.0


def test_short_completions_fill_some_tenths() -> None:
    """Token k of n is in tenth floor(10 k / n); an empty tenth has no metric; the last token always has one."""
    metrics = metrics_of(torch.tensor([[1.0, 2.0, 4.0, 9.0]]), torch.tensor([[1, 1, 1, 0]]))
    tenths = {
        key[-2:]: metrics[f"{key}/mean"]
        for key in (f"{OWN}position/0{k}" for k in range(10))
        if f"{key}/mean" in metrics
    }
    assert tenths == {"00": 1.0, "03": 2.0, "06": 4.0}
    assert metrics[f"{OWN}position/last/mean"] == 4.0


def test_c32_turns_are_the_runs_of_the_mask() -> None:
    """Each run of masked-in tokens is a turn; bad tokens do not split one; turns from the fifth on are pooled."""
    mask = torch.tensor([[1, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1], [0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]])
    d = torch.tensor([[1.0, 3.0, 9, -2, 9, 3, 9, 4, 9, 5, 9, -7], [9, 1, math.nan, 1, 2, 9, 9, 9, 9, 9, 9, 9]])
    metrics = metrics_of(d, mask)
    got = [[metrics[f"{OWN}turn/{turn}/{name}"] for turn in range(1, 6)] for name in ("mean", "abs_mean")]
    assert got == [[1.6, -2.0, 3.0, 4.0, -1.0], [1.6, 2.0, 3.0, 4.0, 6.0]]


def test_single_turns_give_no_turn_metrics() -> None:
    """Completions of one turn, wherever it begins, give no metric of turns."""
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
    assert not [key for key in metrics_of(torch.rand(2, 4), mask) if "/turn/" in key]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_quartiles_of_distinct_lengths_are_exact(level: str) -> None:
    """Completions of 1 to 12 tokens form quarters of three, each with its own modified fraction."""
    rule = rs.Correction(level, "truncate", upper=1.2)  # type: ignore[arg-type]
    mask = torch.arange(12) < torch.arange(1, 13).unsqueeze(-1)
    d = torch.zeros(12, 12)
    d[[1, 4, 5, 8], 0] = 0.5
    metrics = metrics_of(d, mask, rule)
    quarters = [metrics[f"{OWN}length/q{quarter}/modified"] for quarter in range(1, 5)]
    n = (6, 15, 24, 33) if level == "token" else (3,) * 4
    assert quarters == [pytest.approx(k / of) for k, of in zip((1, 2, 1, 0), n, strict=True)]


def test_completions_of_one_length_share_a_quarter() -> None:
    """Completions of one length are all in one quarter; metrics of the other quarters are absent."""
    keys = [key for key in metrics_of(torch.rand(8, 5)) if "/length/" in key]
    assert keys == [f"{OWN}length/q2/modified"]


def test_length_buckets_are_an_eighth_wide() -> None:
    """Lengths in one bucket differ by less than an eighth of the shorter, up to 2**20; buckets are in order."""
    n = torch.arange(1, 2**20)
    index = length_histogram.bucket_index(n).numpy()
    assert (np.diff(index) >= 0).all()
    shortest, longest = (np.zeros(length_histogram.N_LENGTHS) for _ in range(2))
    shortest[index[::-1]], longest[index] = n.numpy()[::-1], n.numpy()
    used = shortest > 0
    assert ((longest - shortest)[used] < shortest[used] / 8).all()
    assert len(np.unique(index[:15])) == 15
    assert length_histogram.bucket_index(torch.tensor([0, 2**20, 2**40])).tolist() == [
        0,
        *[length_histogram.N_LENGTHS - 1] * 2,
    ]


# --- Pareto k-hat ---------------------------------------------------------------------------------------------------


def logistic(n: int, scale: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns quantiles of a logistic distribution: weights whose tail has the shape ``scale``."""
    u = (np.arange(n) + 0.5) / n
    return (scale * np.log(u / (1 - u))).astype(np.float32).astype(np.float64)


def k_hat(log_weights: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    """Computes k-hat from what a summary keeps of the given log-weights."""
    return pareto_k(np.sort(log_weights)[::-1][:N_LOG_RATIOS], len(log_weights))


# From arviz-stats 0.8.0: array_stats.psislw(-logistic(n, scale))[1].
ARVIZ = [
    (25, 0.05, 0.3609562056018442),
    (25, 20.0, 6.3282579373928485),
    (64, 0.05, 0.2524584453254463),
    (64, 0.7, 0.5659055824768197),
    (500, 0.3, 0.3070584171269368),
    (500, 1.5, 1.33903514140045),
    (1000, 0.05, 0.08423539001570918),
    (1000, 0.7, 0.6616366762460806),
    (6000, 0.7, 0.6836740199676017),
    (6000, 20.0, 15.457222373062914),
]


@pytest.mark.parametrize(("n", "scale", "expected"), ARVIZ)
def test_k_hat_equals_arviz(n: int, scale: float, expected: float) -> None:
    """k-hat agrees with arviz-stats to 11 digits, for few and many weights, light and heavy tails."""
    log_weights = logistic(n, scale)
    assert k_hat(log_weights) == pytest.approx(expected, rel=1e-11)
    assert k_hat(log_weights + 5000.0) == pytest.approx(expected, rel=1e-9)


def test_k_hat_with_ties_equals_arviz() -> None:
    """k-hat agrees with arviz-stats if many log-weights equal the one below the tail (steps of 1/16)."""
    assert k_hat(np.round(logistic(400, 1.0) * 16) / 16) == pytest.approx(0.9320257939035738, rel=1e-11)


@pytest.mark.parametrize("shape", [-0.3, 0.1, 0.5, 1.0])
def test_the_fit_finds_the_shape(shape: float) -> None:
    """The fit of 2000 quantiles of a generalised Pareto distribution finds its shape, up to the prior's pull."""
    u = (np.arange(2000) + 0.5) / 2000
    fitted = fit_shape(np.expm1(-shape * np.log1p(-u)) / shape)
    assert fitted == pytest.approx((2000 * shape + 5) / 2010, abs=0.02)


@pytest.mark.parametrize(
    ("why", "log_weights"),
    [
        ("all equal", np.zeros(100)),
        ("too few", logistic(24, 0.5)),
        ("none", np.zeros(0)),
        ("a tail of equal weights", np.concatenate([np.zeros(80), np.ones(20)])),
        ("a tail that is mostly the bulk", np.concatenate([np.zeros(95), np.arange(5.0)])),
        ("infinite for float32", np.concatenate([logistic(99, 0.5), [float(np.finfo(np.float32).max)]])),
        ("a bulk that vanishes beside one weight", np.concatenate([logistic(99, 0.5), [2000.0]])),
        ("more rows than the table holds a tail of", logistic(7282, 0.5)),
    ],
)
def test_k_hat_is_absent_without_a_usable_tail(
    why: str, log_weights: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> None:
    """k-hat is absent rather than flattering where there is no tail to fit, and raises no warning."""
    assert k_hat(log_weights) is None, why


def test_k_hat_of_the_longest_tail() -> None:
    """A window of 7281 completions, whose tail has 255 values, still has a k-hat."""
    assert tail_size(7281) == N_LOG_RATIOS - 1
    assert k_hat(logistic(7281, 0.5)) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("upper", [None, 1.0001])
def test_k_hat_is_of_raw_ratios(upper: float | None) -> None:
    """k-hat describes the raw ratios; truncation does not make the tail look lighter."""
    rule = None if upper is None else rs.Correction("sequence", "truncate", upper=upper)
    metrics = metrics_of(torch.from_numpy(logistic(64, 1.5)).float().unsqueeze(-1), rule=rule)
    assert metrics[f"{OWN}sequence/pareto_k"] == pytest.approx(0.9485069807064406, rel=1e-9)
