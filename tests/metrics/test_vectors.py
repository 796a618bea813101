"""Numbers of other sources: test vectors of other frameworks under our definitions, and the numpy reference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import ratioscope as rs
from tests.support.reference import Answer, Array, Batch, Rule, answer, drift, noise_floor
from tests.support.reference_stages import PlainRule, PlainStage, account

RAW = "sampling/raw_importance_sampling_ratio/"
FRACTION = "sampling/frac_modified_importance_sampling_ratio"
OWN = "ratioscope/"

INF, NAN = math.inf, math.nan


def summary_of_log_ratios(
    rows: list[list[float]],
    *,
    mask: list[list[int]] | None = None,
    rule: rs.Correction | None = None,
    advantages: list[float] | None = None,
) -> rs.RatioSummary:
    """Makes the summary of tokens with the given log-ratios and rollout log-probabilities of 0."""
    train = torch.tensor(rows)
    mask_tensor = torch.ones_like(train) if mask is None else torch.tensor(mask)
    return rs.summarize(train, torch.zeros_like(train), mask_tensor, correction=rule, advantages=advantages)


def summary_of_ratios(ratios: list[float], *, rule: rs.Correction | None = None) -> rs.RatioSummary:
    """Makes the summary of one completion with the given token ratios."""
    return summary_of_log_ratios([[math.log(ratio) for ratio in ratios]], rule=rule)


def rule(mode: str, lower: float | None = None, upper: float | None = None) -> rs.Correction:
    """A rule by TRL's name of its mode."""
    level, _, action = mode.partition("_")
    return rs.Correction(level, action, lower=lower, upper=upper)  # type: ignore[arg-type]


# --- one batch that several frameworks were run on ---------------------------------------------------------------

PAD = -6.0
SHARED_LOG_RATIOS = [[0.0, 0.5, -0.7, PAD], [1.5, -2.0, 0.1, 0.3], [0.2, PAD, PAD, PAD]]
SHARED_ROLLOUT = [[-0.5, -1.0, -1.5, -3.0], [-2.5, -0.4, -1.0, -0.9], [-0.8, -3.0, -3.0, -3.0]]
SHARED_MASK = [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]


def shared(correction: rs.Correction | None = None) -> dict[str, float]:
    """Statistics of that batch."""
    rollout = torch.tensor(SHARED_ROLLOUT)
    train = rollout + torch.tensor(SHARED_LOG_RATIOS)
    advantages = torch.tensor([1.0, -1.0, 1.0])
    return rs.summarize(
        train, rollout, torch.tensor(SHARED_MASK), correction=correction, advantages=advantages
    ).metrics()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("token/raw/mean", 1.42985),
        ("token/raw/min", 0.135335),
        ("token/raw/max", 4.48169),
        ("token/raw/std", 1.23736),
        ("kl/k1", 0.0125),
        ("kl/k2", 0.445625),
        ("kl/k3", 0.442345),
        ("kl/reverse_k3", 0.699607),
        ("log_ratio/abs_mean", 0.6625),
        ("token/log_ratio/abs_max", 2.0),
        ("token/ess/raw", 0.571795),
        ("chi2/token", 2.57551),
        ("chi2/sequence", -0.006375),
        ("mult_prob_error", 2.52621),
        ("outside/0.5_2", 0.375),
        ("sequence/raw/min", 0.818731),
        ("sequence/raw/mean", (0.818731 + 0.904837 + 1.221403) / 3),
        ("sequence/raw/max", 1.221403),
        ("sequence/geometric/min", 0.935507),
        ("sequence/geometric/mean", (0.935507 + 0.97531 + 1.221403) / 3),
        ("sequence/geometric/max", 1.221403),
        ("perplexity/train", 2.71065),
        ("perplexity/rollout", 2.75465),
        ("perplexity/ratio", 0.970995),
        ("counts/tokens", 8.0),
        ("counts/rows", 3.0),
    ],
)
def test_shared_batch_before_any_rule(key: str, expected: float) -> None:
    """Raw statistics of the shared batch equal the known values, whatever its padding holds."""
    assert shared()[OWN + key] == pytest.approx(expected, rel=5e-6, abs=5e-7)


@pytest.mark.parametrize(
    ("correction", "smallest", "mean", "largest", "fraction", "ess"),
    [
        (rule("token_truncate", upper=2.0), 0.135335, 1.11963, 2.0, 0.125, 0.801104),
        (rule("token_mask", upper=2.0), 0.0, 0.869634, 1.64872, 0.125, 0.710229),
        (rule("token_mask", 0.5, 2.0), 0.0, 0.790644, 1.64872, 0.375, 0.605909),
        (rule("sequence_truncate", upper=2.0), 0.818731, 0.981657, 1.2214, 0.0, 0.969833),
        (rule("sequence_mask", upper=2.0), 0.818731, 0.981657, 1.2214, 0.0, 0.969833),
        (rule("token_truncate", 0.5, 2.0), 0.5, 1.16564, 2.0, 0.375, 0.852292),
        (rule("sequence_mask", 0.9, 1.1), 0.0, 0.904837 / 3, 0.904837, 2 / 3, 1 / 3),
    ],
)
def test_shared_batch_after_a_rule(
    correction: rs.Correction, smallest: float, mean: float, largest: float, fraction: float, ess: float
) -> None:
    """Corrected statistics of the shared batch equal the other frameworks', zeros of masking included."""
    metrics = shared(correction)
    assert metrics[f"{OWN}corrected/min"] == pytest.approx(smallest, rel=5e-6)
    assert metrics[f"{OWN}corrected/mean"] == pytest.approx(mean, rel=5e-6)
    assert metrics[f"{OWN}corrected/max"] == pytest.approx(largest, rel=5e-6)
    assert metrics[FRACTION] == metrics[f"{OWN}modified/fraction"] == pytest.approx(fraction)
    assert metrics[f"{OWN}ess/corrected"] == pytest.approx(ess, rel=5e-6)


def test_shared_batch_sides_and_advantages() -> None:
    """The modified fraction is split by side of the bounds and by sign of the advantage."""
    metrics = shared(rule("token_truncate", 0.5, 2.0))
    assert metrics[f"{OWN}modified/low"] == 0.25
    assert metrics[f"{OWN}modified/high"] == 0.125
    assert metrics[f"{OWN}modified/positive_advantage"] == 0.25
    assert metrics[f"{OWN}modified/negative_advantage"] == 0.5
    removed = (4.481689 - 2.0) / (8 * 1.42985)
    assert metrics[f"{OWN}modified/gradient_removed"] == pytest.approx(removed, rel=5e-6)


# --- vectors out of other frameworks' own unit tests --------------------------------------------------------------


@dataclass(frozen=True)
class Vector:
    """Log-ratios, a rule, and the expected weights."""

    log_ratios: list[list[float]]
    rule: rs.Correction
    weights: list[list[float]]
    fraction: float
    mask: list[list[int]] | None = None


def logs(*ratios: float) -> list[float]:
    """Logarithms."""
    return [math.log(ratio) for ratio in ratios]


E1, E2, E3 = math.e, math.exp(2), math.exp(3)
VECTORS = {
    "token cap": Vector([[0.5, -0.5, 1.0]], rule("token_truncate", upper=2.0), [[1.6487, 0.6065, 2.0]], 1 / 3),
    "row product": Vector([[0.5, -0.5, 1.0]], rule("sequence_mask", upper=3.0), [[2.7183]], 0.0),
    "row product, masked token": Vector(
        [[0.5, -0.5, 1.0]], rule("sequence_mask", upper=5.0), [[4.4817]], 0.0, mask=[[1, 0, 1]]
    ),
    "row cap": Vector([[1.0, 1.0, 1.0]], rule("sequence_truncate", upper=5.0), [[5.0]], 1.0),
    "row mask": Vector([[0.2, 0.1, 0.0], [1.0] * 3], rule("sequence_mask", 0.5, 2.0), [[1.34986], [0.0]], 0.5),
    "row far out": Vector([[5.0, 0.0]], rule("sequence_mask", upper=100.0), [[0.0]], 1.0),
    "row far out, masked": Vector([[5.0, 0.0]], rule("sequence_mask", upper=100.0), [[1.0]], 0.0, mask=[[0, 1]]),
    "row far below": Vector([[-10.0, 0.0]], rule("sequence_mask", lower=1e-4), [[0.0]], 1.0),
    "token mask above": Vector([[0.0, 0.0, 2.0]], rule("token_mask", 0.5, 2.0), [[1.0, 1.0, 0.0]], 1 / 3),
    "token mask below": Vector([[0.0, 0.0, -2.0]], rule("token_mask", 0.5, 2.0), [[1.0, 1.0, 0.0]], 1 / 3),
    "token mask, two rows": Vector(
        [[0.0, 2.0], [-2.0, 0.0]], rule("token_mask", 0.5, 2.0), [[1.0, 0.0], [0.0, 1.0]], 0.5
    ),
    "icepop": Vector([logs(0.4, 0.8, 6.0)], rule("token_mask", 0.5, 5.0), [[0.0, 0.8, 0.0]], 2 / 3),
    "icepop, integration": Vector(
        [[-0.5, 2.5, -0.2]], rule("token_mask", 0.5, 5.0), [[0.60653067, 0.0, 0.81873075]], 1 / 3
    ),
    "cap below one": Vector([[-0.5, 0.5, -0.2]], rule("token_truncate", upper=0.8), [[0.6065, 0.8, 0.8]], 2 / 3),
    "row cap below one": Vector([[-0.5, 0.5, -0.2]], rule("sequence_truncate", upper=0.8), [[0.8]], 1.0),
    "one-sided": Vector([logs(0.1, 1.0, 3.0)], rule("token_truncate", upper=2.0), [[0.1, 1.0, 2.0]], 1 / 3),
    "two-sided": Vector([logs(0.1, 1.0, 3.0)], rule("token_truncate", 0.5, 2.0), [[0.5, 1.0, 2.0]], 2 / 3),
    "wide mask": Vector([logs(0.25, 0.6, 1.0, 1.9, 4.0)], rule("token_mask", 0.5, 2.0), [[0, 0.6, 1, 1.9, 0]], 0.4),
}


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS.keys())
def test_other_frameworks_vectors(vector: Vector) -> None:
    """Weights, their mean and the modified fraction equal those of other frameworks' unit tests."""
    train = torch.tensor(vector.log_ratios)
    mask = torch.ones_like(train) if vector.mask is None else torch.tensor(vector.mask)
    weights = rs.correct(train, torch.zeros_like(train), mask, correction=vector.rule)
    torch.testing.assert_close(weights, torch.tensor(vector.weights), rtol=5e-5, atol=5e-6)
    metrics = summary_of_log_ratios(vector.log_ratios, mask=vector.mask, rule=vector.rule).metrics()
    assert metrics[FRACTION] == pytest.approx(vector.fraction)
    kept = mask.bool() if vector.rule.level == "token" else mask.any(dim=-1, keepdim=True)
    assert metrics[f"{OWN}corrected/mean"] == pytest.approx(weights[kept].mean().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("correction", "mean"),
    [
        (None, 4.535918),
        (rule("token_truncate", upper=5.0), 2.141754),
        (rule("token_mask", 0.5, 5.0), 0.475087),
    ],
)
def test_one_completion_raw_truncated_and_masked(correction: rs.Correction | None, mean: float) -> None:
    """The mean of one completion is 4.54 raw, 2.14 truncated and 0.48 masked."""
    metrics = summary_of_ratios([0.606531, 12.182494, 0.818731], rule=correction).metrics()
    key = f"{RAW}mean" if correction is None else f"{OWN}corrected/mean"
    assert metrics[key] == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize(("size", "expected"), [(0.5, 1.288), (1.0, 1.764), (0.1, 1.047)])
def test_mult_prob_error(size: float, expected: float) -> None:
    """Four of nine tokens off by the same amount, in either direction, give the mean of exp |d|."""
    metrics = summary_of_log_ratios([[size, -size, size, -size, *[0.0] * 5]]).metrics()
    assert metrics[f"{OWN}mult_prob_error"] == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("row", "expected"), [([0.1, -0.1, 0.0], 1.0), ([0.5] * 3, 1.6487), ([0.25], 1.2840)])
def test_geometric_mean_ratio(row: list[float], expected: float) -> None:
    """A row's geometric mean ratio is exp of its mean log-ratio."""
    metrics = summary_of_log_ratios([row]).metrics()
    assert metrics[f"{OWN}sequence/geometric/mean"] == pytest.approx(expected, rel=5e-5)
    assert metrics[f"{OWN}sequence/geometric/p50"] == pytest.approx(expected, rel=5e-5)


def test_icepop_effective_sample_size() -> None:
    """With one nonzero weight of three, the corrected effective sample size is a third."""
    metrics = summary_of_ratios([0.4, 0.8, 6.0], rule=rule("token_mask", 0.5, 5.0)).metrics()
    assert metrics[f"{OWN}ess/corrected"] == pytest.approx(1 / 3)


def test_merged_standard_deviation_is_of_the_union() -> None:
    """The standard deviation of four merged parts is that of all their values, not a mean of four."""
    parts = [[0.1, 0.3, 0.5, 0.2], [1.0, 0.8, 0.6, 0.4], [0.2, 0.2, 0.9, 0.7], [0.3, 0.5, 0.1, 0.6]]
    merged = rs.RatioSummary.empty()
    for part in parts:
        merged = merged.merge(summary_of_log_ratios([part]))
    everything = np.array(parts, dtype=np.float32).astype(np.float64)
    metrics = merged.metrics()
    assert metrics[f"{OWN}token/log_ratio/std"] == pytest.approx(everything.std(), rel=1e-9)
    assert metrics[f"{OWN}token/raw/std"] == pytest.approx(np.exp(everything).std(), rel=1e-9)


# --- edges ----------------------------------------------------------------------------------------------------------


def test_overflow_is_counted_and_capped() -> None:
    """A log-ratio of 100 is counted as an overflow; capped weights and the raw mean stay correct."""
    metrics = summary_of_log_ratios([[0.0, 100.0, 0.0]], rule=rule("token_truncate", upper=2.0)).metrics()
    assert metrics[f"{OWN}corrected/mean"] == pytest.approx(4 / 3)
    assert metrics[f"{OWN}corrected/max"] == 2.0
    assert metrics[f"{OWN}counts/overflow"] == 1.0
    assert metrics[f"{RAW}max"] == pytest.approx(math.exp(100.0))
    assert metrics[f"{RAW}mean"] == pytest.approx((2 + math.exp(100.0)) / 3)
    assert metrics[f"{OWN}kl/k3"] == pytest.approx((math.exp(100.0) - 101.0) / 3)
    assert metrics[f"{OWN}ess/raw"] == pytest.approx(1 / 3)
    assert metrics[f"{OWN}chi2/token"] == pytest.approx((math.exp(200.0) + 2) / 3 - 1)


@pytest.mark.parametrize(("log_ratio", "overflows"), [(88.7228, 0.0), (88.72284, 1.0)])
def test_overflow_begins_where_float32_ends(log_ratio: float, overflows: float) -> None:
    """A ratio counts as an overflow exactly if the trainer's float32 ratio is infinite."""
    assert torch.tensor(log_ratio).exp().isinf().item() == bool(overflows)
    assert summary_of_log_ratios([[log_ratio]]).metrics()[f"{OWN}counts/overflow"] == overflows


def test_a_mean_beyond_float64_is_absent() -> None:
    """A mean beyond float64 is absent; log-ratios, quantiles and weight diagnostics are still computed."""
    metrics = summary_of_log_ratios([[0.0, 900.0, 0.0]]).metrics()
    for absent in (f"{RAW}mean", f"{RAW}max", f"{OWN}token/raw/std", f"{OWN}chi2/token", f"{OWN}kl/k3"):
        assert absent not in metrics
    assert metrics[f"{RAW}min"] == 1.0
    assert metrics[f"{OWN}token/log_ratio/max"] == 900.0
    assert metrics[f"{OWN}log_ratio/abs_mean"] == 300.0
    assert metrics[f"{OWN}kl/k1"] == -300.0
    assert metrics[f"{OWN}raw/p50"] == 1.0
    assert metrics[f"{OWN}ess/raw"] == pytest.approx(1 / 3)
    assert metrics[f"{OWN}token/max_weight_share"] == 1.0
    assert metrics[f"{OWN}token/perplexity"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("bad", "counter", "weight"), [(NAN, "nan", 1.0), (-INF, "inf", 0.0), (INF, "inf", 2.0)], ids=["nan", "-inf", "inf"]
)
def test_a_non_finite_token_is_left_out(bad: float, counter: str, weight: float) -> None:
    """A log-ratio of NaN or infinity is counted and enters no statistic, while its weight is TRL's."""
    correction = rule("token_truncate", upper=2.0)
    train = torch.tensor([[0.0, bad, 0.0]])
    mask = torch.ones_like(train)
    assert rs.correct(train, torch.zeros_like(train), mask, correction=correction).tolist() == [[1.0, weight, 1.0]]
    metrics = summary_of_log_ratios([[0.0, bad, 0.0]], rule=correction).metrics()
    for key in (f"{RAW}min", f"{RAW}mean", f"{RAW}max", f"{OWN}corrected/mean", f"{OWN}ess/raw"):
        assert metrics[key] == 1.0
    assert metrics[f"{OWN}kl/k3"] == 0.0
    assert metrics[FRACTION] == 0.0
    assert metrics[f"{OWN}counts/{counter}"] == 1.0
    assert metrics[f"{OWN}counts/tokens"] == 2.0
    assert metrics[f"{OWN}tokens/invalid"] == pytest.approx(1 / 3)


def test_empty_completions_have_no_ratio() -> None:
    """Two completions without a token leave the numbers of the other three unchanged."""
    rows = [[-10.0], [-10.0], [-10.0], [0.0], [0.0]]
    mask = [[1], [1], [1], [0], [0]]
    metrics = summary_of_log_ratios(rows, mask=mask, rule=rule("sequence_mask", upper=3.0)).metrics()
    for name in ("min", "mean", "max"):
        assert metrics[RAW + name] == pytest.approx(4.54e-5, rel=1e-3)
        assert metrics[f"{OWN}corrected/{name}"] == pytest.approx(4.54e-5, rel=1e-3)
    assert metrics[FRACTION] == 0.0
    assert metrics[f"{OWN}perplexity/ratio"] == pytest.approx(math.exp(10.0))
    assert metrics[f"{OWN}counts/rows"] == 3.0
    assert metrics[f"{OWN}counts/rows_empty"] == 2.0
    assert metrics[f"{OWN}rows/empty"] == 0.4


def test_two_ranks_of_unequal_size_are_pooled() -> None:
    """Three ratios on one rank and nine on another give the statistics of all twelve, not means of means."""
    cap = rule("token_truncate", upper=2.0)
    metrics = summary_of_ratios([1.0, 1.0, 4.0], rule=cap).merge(summary_of_ratios([0.5] * 9, rule=cap)).metrics()
    assert metrics[f"{RAW}mean"] == pytest.approx(0.875)
    assert metrics[FRACTION] == pytest.approx(1 / 12)
    assert metrics[f"{OWN}ess/raw"] == pytest.approx(0.453704, rel=1e-5)
    assert metrics[f"{RAW}min"] == pytest.approx(0.5)
    assert metrics[f"{RAW}max"] == pytest.approx(4.0)


def test_tiny_mismatch_keeps_its_digits() -> None:
    """For engines that differ by 1e-4, k3, chi-squared and the ratio's standard deviation keep their digits."""
    rng = np.random.default_rng(3)
    d = rng.normal(0.0, 1e-4, (8, 64)).astype(np.float32)
    exact = d.astype(np.float64)
    metrics = summary_of_log_ratios(d.tolist()).metrics()
    assert metrics[f"{OWN}kl/k3"] == pytest.approx((exact**2 / 2 + exact**3 / 6).mean(), rel=1e-6)
    assert metrics[f"{OWN}kl/k3"] > 0
    assert metrics[f"{OWN}chi2/token"] == pytest.approx(np.expm1(2 * exact).mean(), rel=1e-9)
    assert metrics[f"{OWN}token/raw/std"] == pytest.approx(np.expm1(exact).std(), rel=1e-9)
    assert metrics[f"{OWN}token/log_ratio/std"] == pytest.approx(exact.std(), rel=1e-9)


def test_a_vanishing_ratio_keeps_the_others_right() -> None:
    """A finite log-ratio of -1e20 is a ratio of 0 and does not reduce the precision of the other moments."""
    metrics = summary_of_log_ratios([[-1e20], [0.0]]).metrics()
    assert metrics[f"{RAW}mean"] == 0.5
    assert metrics[f"{OWN}token/raw/std"] == 0.5
    assert metrics[f"{OWN}chi2/token"] == -0.5
    assert metrics[f"{OWN}chi2/sequence"] == -0.5


# --- the whole catalogue against the oracle ----------------------------------------------------------------------


def random_batch(seed: int, *, spread: float, bad: bool, rows: int | None = None) -> Batch:
    """A batch with ragged rows, an empty row now and then, and bad tokens if wanted."""
    rng = np.random.default_rng(seed)
    rows, width = rows or int(rng.integers(2, 9)), int(rng.integers(1, 40))
    lengths = rng.integers(0, width + 1, rows)
    lengths[0] = width
    mask = (np.arange(width) < lengths[:, None]) & (rng.random((rows, width)) < 0.9)
    mask[0, 0] = True
    rollout = -rng.exponential(1.5, (rows, width)).astype(np.float32)
    train = (rollout + rng.normal(0.0, spread, (rows, width))).astype(np.float32)
    if bad:
        for target, value in ((rollout, NAN), (train, NAN), (rollout, -INF), (train, INF), (rollout, 0.5)):
            target[rng.random((rows, width)) < 0.04] = value
    train[~mask] = 7.0
    return Batch(train, rollout, mask, advantages=rng.normal(0.0, 1.0, rows).astype(np.float32).astype(np.float64))


def summary_of(batch: Batch, correction: rs.Correction | None) -> rs.RatioSummary:
    """The package's summary of the oracle's input."""
    advantages = None if batch.advantages is None else torch.from_numpy(batch.advantages)
    tensors = (torch.from_numpy(array) for array in (batch.train, batch.rollout, batch.mask))
    return rs.summarize(*tensors, correction=correction, advantages=advantages)


def assert_agrees(got: dict[str, float], want: Answer, *, largest: float) -> None:
    """Every key of the oracle, none besides, and each value to the digits that float32 rows allow."""
    assert set(got) == want.keys()
    by_row = ("sequence/", "corrected", "chi2/sequence", "gradient_removed", "sampling/", "ess/")
    for key, value in want.values.items():
        rel = 1e-6 * (1.0 + largest) if any(part in key for part in by_row) else 1e-7
        assert got[key] == pytest.approx(value, rel=rel, abs=1e-9), key
    for key, (low, high) in want.ranges.items():
        assert low - 1e-6 <= math.log(got[key]) <= high + 1e-6, key


ORACLE_RULES = (
    None,
    Rule("token", "truncate", None, 1.2),
    Rule("token", "mask", 0.8, 1.2),
    Rule("sequence", "truncate", 0.5, 2.0),
    Rule("sequence", "mask", None, 1.2),
    Rule("sequence", "mask", 0.9, None),
)


def rows_of(array: Array) -> float:
    """Largest finite absolute sum of a row's entries."""
    return float(np.nanmax(np.abs(np.where(np.isfinite(array), array, 0.0)).sum(axis=1)))


@pytest.mark.parametrize("wanted", ORACLE_RULES, ids=str)
@pytest.mark.parametrize("spread", [0.01, 0.3])
@pytest.mark.parametrize("bad", [False, True], ids=["clean", "bad tokens"])
@pytest.mark.parametrize(("seed", "rows"), [(0, None), (1, None), (2, None), (3, 40), (4, 150)])
def test_every_metric_equals_the_reference(
    wanted: Rule | None, spread: float, bad: bool, seed: int, rows: int | None
) -> None:
    """Every metric of two merged random batches equals the reference, and exactly the same keys have data."""
    batches = [random_batch(2 * seed + k, spread=spread, bad=bad, rows=rows) for k in (0, 1)]
    correction = None if wanted is None else rs.Correction(**vars(wanted))
    merged = rs.RatioSummary.empty(correction)
    for batch in batches:
        merged = merged.merge(summary_of(batch, correction))
    largest = max(rows_of(np.where(batch.mask, batch.train - batch.rollout, 0.0)) for batch in batches)
    assert_agrees(merged.metrics(), answer(*batches, rule=wanted), largest=largest)


def test_the_reference_covers_the_catalogue() -> None:
    """The reference computes every key of the catalogue."""
    batch = random_batch(4, spread=0.3, bad=True, rows=50)
    covered = answer(batch, rule=Rule("token", "truncate", None, 1.2)).keys()
    covered |= answer(batch, rule=Rule("sequence", "mask", 0.5, 1.2)).keys()
    d = np.array([[0.01, -0.02]])
    covered |= noise_floor((d, np.zeros_like(d), d != 0), abs_d=np.abs(d)).keys()
    covered |= drift((d, np.zeros_like(d), d != 0), epsilon=(0.2, 0.2)).keys()
    covered |= set(account(PlainRule((PlainStage("ratio", "token", "zero", 0.5, 1.2),) * 4), batch))
    assert covered == {metric.key for metric in rs.CATALOGUE}
