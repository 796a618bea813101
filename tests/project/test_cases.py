"""Public bug reports as small inputs, each with its correct result.

The number in a test's name is that of the case. The comment names the public report.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import ratioscope as rs

RAW = "sampling/raw_importance_sampling_ratio/"
FRACTION = "sampling/frac_modified_importance_sampling_ratio"
OWN = "ratioscope/"
NAN, INF = math.nan, math.inf

TOKEN_TRUNCATE = rs.Correction("token", "truncate", upper=3.0)
SEQUENCE_MASK = rs.Correction("sequence", "mask", upper=3.0)
SEQUENCE_TRUNCATE = rs.Correction("sequence", "truncate", upper=3.0)


def from_log_ratios(rows: list[list[float]], correction: rs.Correction | None = None) -> rs.RatioSummary:
    """Summarizes tokens with given log-ratios, all masked in."""
    train = torch.tensor(rows)
    return rs.summarize(train, torch.zeros_like(train), torch.ones_like(train), correction=correction)


def from_ratios(ratios: list[float], correction: rs.Correction | None = None) -> rs.RatioSummary:
    """Summarizes one row with given token ratios."""
    return from_log_ratios([[math.log(ratio) for ratio in ratios]], correction)


def approx(value: float) -> object:
    """Matches a value to the number of digits stated in the cases."""
    return pytest.approx(value, rel=2e-6, abs=5e-7)


def test_c01_none_log_probability_is_excluded_and_counted() -> None:
    """A token whose log-probability is None is counted and excluded, instead of giving a ratio of 1."""
    # huggingface/trl#6166, #6693
    train = torch.tensor([[-0.5, -1.0, -2.0]])
    metrics = rs.summarize(train, [[None, -1.2, -2.0]], torch.ones(1, 3), correction=TOKEN_TRUNCATE).metrics()
    assert metrics[f"{OWN}counts/tokens"] == 2
    assert metrics[f"{OWN}counts/missing"] == 1
    assert metrics[f"{OWN}tokens/invalid"] == approx(1 / 3)
    assert metrics[f"{RAW}mean"] == approx(1.110701)
    assert metrics[f"{RAW}min"] == approx(1.0)
    assert metrics[f"{RAW}max"] == approx(1.221403)
    assert metrics[f"{OWN}kl/k1"] == approx(-0.1)
    as_nan = torch.tensor([[NAN, -1.2, -2.0]])
    assert rs.correct(train, as_nan, torch.ones(1, 3), correction=TOKEN_TRUNCATE)[0, 0] == 1.0


@pytest.mark.parametrize("correction", [TOKEN_TRUNCATE, None])
@pytest.mark.parametrize("missing", [None, NAN, -INF])
def test_c02_missing_log_probability_makes_no_false_ratio(
    missing: float | None, correction: rs.Correction | None
) -> None:
    """A missing log-probability gives neither a ratio of e^-4 nor an infinite one, also without a correction."""
    # huggingface/trl#6266, #6281
    metrics = rs.summarize([[-4.0, -1.0]], [[missing, -1.0]], torch.ones(1, 2), correction=correction).metrics()
    assert metrics[f"{RAW}min"] == metrics[f"{RAW}max"] == 1.0
    assert metrics[f"{OWN}counts/tokens"] == 1
    assert sum(metrics[f"{OWN}counts/{kind}"] for kind in ("missing", "nan", "inf")) == 1
    assert (FRACTION in metrics) == (correction is not None)


def test_c03_sequence_ratios_grow_with_length() -> None:
    """A hundred tokens with a log-ratio of 0.012 give a sequence ratio of 3.32, which is masked at 3."""
    # huggingface/trl#4772
    metrics = from_log_ratios([[0.012] * 100], SEQUENCE_MASK).metrics()
    assert metrics[f"{RAW}max"] == approx(3.320117)
    assert metrics[f"{OWN}corrected/max"] == 0.0
    assert metrics[FRACTION] == 1.0


@pytest.mark.parametrize(("correction", "corrected"), [(SEQUENCE_TRUNCATE, 3.0), (SEQUENCE_MASK, 0.0)])
def test_c03_overflow_is_reported_as_a_log_ratio(correction: rs.Correction, corrected: float) -> None:
    """A sequence log-ratio of 90 overflows float32: it is counted, reported in nats, and not sent as infinity."""
    # huggingface/trl#4772
    summary = from_log_ratios([[0.0225] * 4000], correction)
    metrics = summary.metrics()
    assert metrics[f"{OWN}sequence/log_ratio/max"] == approx(90.0)
    assert metrics[f"{OWN}counts/overflow"] == 1
    assert metrics[f"{OWN}corrected/mean"] == corrected
    assert metrics[FRACTION] == 1.0
    assert metrics[f"{RAW}mean"] == pytest.approx(math.exp(90.0), rel=1e-5)
    assert all(math.isfinite(value) for value in metrics.values())
    raw = rs.correct(torch.full((1, 4000), 0.0225), torch.zeros(1, 4000), torch.ones(1, 4000), correction=correction)
    assert raw.item() == corrected


@pytest.mark.parametrize(("middle", "positive"), [(0, 0), (1, 1)])
def test_c04_a_sentinel_of_one_is_no_log_probability(middle: int, positive: int) -> None:
    """A rollout log-probability of 1 gives no ratio of e^-1, whether its token is masked out or not."""
    # yaof20/Flash-RL#19
    train, rollout = torch.tensor([[-0.7, 0.0, -0.3]]), torch.tensor([[-0.7, 1.0, -0.3]])
    metrics = rs.summarize(train, rollout, torch.tensor([[1, middle, 1]])).metrics()
    assert metrics[f"{OWN}counts/tokens"] == 2
    assert metrics[f"{RAW}mean"] == metrics[f"{RAW}min"] == 1.0
    assert metrics[f"{OWN}counts/positive_logp"] == positive


def test_c05_bf16_is_cast_before_subtracting() -> None:
    """Quantiles of bf16 log-probabilities are computed, and the ratio is that of the received values."""
    # huggingface/trl#3666, huggingface/transformers#31267
    train, rollout = (torch.tensor([[value]], dtype=torch.bfloat16) for value in (-12.34, -12.38))
    metrics = rs.summarize(train, rollout, torch.ones(1, 1)).metrics()
    assert metrics[f"{RAW}mean"] == metrics[f"{OWN}raw/p50"] == approx(1.064494)


def test_c05_quantiles_of_nothing_and_of_infinity() -> None:
    """Without a token there is no quantile, and an infinite ratio is dropped before quantiles are taken."""
    # pytorch/pytorch#91156
    nothing = rs.summarize(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2)).metrics()
    assert not [key for key in nothing if "/p5" in key]
    metrics = from_log_ratios([[0.0, math.log(2.0), INF]]).metrics()
    assert metrics[f"{OWN}raw/p50"] == pytest.approx(math.sqrt(2.0), rel=0.01)
    assert metrics[f"{OWN}counts/inf"] == 1


def test_c06_absent_trainer_log_probabilities_invent_no_ratio() -> None:
    """Missing trainer log-probabilities give an error and an event, and no ratio of 1 in the record."""
    # huggingface/trl#5413
    recorder = rs.Recorder(correction=TOKEN_TRUNCATE)
    with pytest.raises(TypeError, match="got train_logps of type NoneType"):
        recorder.observe(None, torch.zeros(1, 2), torch.ones(1, 2))  # type: ignore[arg-type]
    record = recorder.flush(step=1)
    assert record is not None
    assert not [key for key in record.scalars if "raw" in key]
    assert record.events == ("observations that failed and are not in this record: 1",)


@pytest.mark.parametrize(
    ("correction", "mean", "smallest", "modified", "ess"),
    [
        (rs.Correction("token", "truncate", upper=1.2), 0.975, 0.5, 0.5, 3.682809),
        (rs.Correction("token", "mask", upper=1.2), 0.375, 0.0, 0.5, 1.8),
        (rs.Correction("token", "truncate", lower=0.8, upper=1.2), 1.05, 0.8, 0.75, 4.2**2 / 4.52),
    ],
)
def test_c07_raw_and_modified_are_separate(
    correction: rs.Correction, mean: float, smallest: float, modified: float, ess: float
) -> None:
    """Statistics show both the raw ratios and the effect of the rule."""
    # huggingface/trl#5231, #5243
    metrics = from_ratios([0.5, 1.0, 1.5, 3.0], correction).metrics()
    assert [metrics[RAW + name] for name in ("min", "mean", "max")] == [approx(0.5), approx(1.5), approx(3.0)]
    assert metrics[f"{OWN}ess/raw"] == approx(0.72)
    assert metrics[f"{OWN}corrected/mean"] == approx(mean)
    assert metrics[f"{OWN}corrected/min"] == approx(smallest)
    assert metrics[FRACTION] == modified
    assert metrics[f"{OWN}ess/corrected"] == approx(ess / 4)
    quantiles = {"p05": 0.5**0.85, "p50": 1.5**0.5, "p95": 1.5**0.15 * 3.0**0.85}
    for name, value in quantiles.items():
        assert metrics[f"{OWN}token/raw/{name}"] == pytest.approx(value, rel=0.016 * abs(math.log(value)) + 1e-6)


def test_c07_a_truncated_maximum_is_the_float32_cap() -> None:
    """A corrected maximum at the cap reads as the float32 nearest to it."""
    # huggingface/trl#5231
    metrics = from_ratios([3.0], rs.Correction("token", "truncate", upper=1.2)).metrics()
    assert metrics[f"{OWN}corrected/max"] == 1.2000000476837158


def test_c08_all_masked_has_counts_and_nothing_else() -> None:
    """If every token is masked out, counts are 0 and all other statistics are absent instead of 0."""
    # huggingface/trl#5243
    correction = rs.Correction("token", "mask", upper=3.0)
    summary = rs.summarize(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3), correction=correction)
    metrics = summary.metrics()
    assert metrics.pop(f"{OWN}rows/empty") == 1.0
    assert metrics.pop(f"{OWN}counts/rows_empty") == 2
    assert metrics.pop(f"{OWN}counts/generations") == 1
    assert {key.rpartition("/")[0] for key in metrics} == {f"{OWN}counts"}
    assert set(metrics.values()) == {0.0}
    assert summary.histograms.sum() == 0


def test_c09_ranks_are_pooled_not_averaged() -> None:
    """One ratio of 2 on one rank and three of 1 on another have a mean of 1.25, not 1.5, and pooled quantiles."""
    # huggingface/trl#6380
    assert from_ratios([2.0]).merge(from_ratios([1.0] * 3)).metrics()[f"{RAW}mean"] == approx(1.25)
    metrics = from_ratios([1.0] * 9).merge(from_ratios([5.0])).metrics()
    assert metrics[f"{OWN}token/raw/p95"] == pytest.approx(5.0**0.55, rel=0.016 * math.log(5.0))


def test_c10_an_empty_rank_does_not_pull_the_minimum_to_zero() -> None:
    """A rank without a valid token changes neither minimum nor mean."""
    # InternLM/xtuner#1788
    nothing = rs.summarize(torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2, 2))
    metrics = nothing.merge(from_ratios([0.9, 1.1])).metrics()
    assert [metrics[RAW + name] for name in ("min", "mean", "max")] == [approx(0.9), approx(1.0), approx(1.1)]
    assert metrics[f"{OWN}counts/tokens"] == 2


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_c11_synthetic_completions_dilute_nothing(padding: int) -> None:
    """Completions without a valid token do not change perplexity or the mean sequence log-ratio."""
    # verl-project/verl#7771
    rows = 1 + padding
    train, rollout, mask = torch.zeros(rows, 4), torch.zeros(rows, 4), torch.zeros(rows, 4)
    train[0], rollout[0], mask[0] = -2.0, -1.0, 1.0
    metrics = rs.summarize(train, rollout, mask).metrics()
    assert metrics[f"{OWN}perplexity/train"] == approx(7.389056)
    assert metrics[f"{OWN}perplexity/ratio"] == approx(math.e)
    assert metrics[f"{OWN}row/abs_mean_max"] == 1.0
    assert metrics[f"{OWN}counts/rows"] == 1


def test_c12_a_fully_masked_row_has_no_ratio() -> None:
    """A fully masked row enters no mean, no minimum and no denominator."""
    # huggingface/trl#4976, #3476
    train = torch.tensor([[math.log(2.0), 0.0], [-1.0, -1.0]])
    mask = torch.tensor([[1, 1], [0, 0]])
    correction = rs.Correction("sequence", "mask", upper=1.5)
    metrics = rs.summarize(train, torch.zeros(2, 2), mask, correction=correction).metrics()
    assert metrics[f"{OWN}counts/rows"] == metrics[f"{OWN}counts/rows_empty"] == 1
    assert metrics[f"{RAW}mean"] == metrics[f"{RAW}min"] == approx(2.0)
    assert metrics[FRACTION] == 1.0


def test_c13_a_sequence_ratio_is_the_product() -> None:
    """A sequence ratio is exp of the sum of its log-ratios; the geometric mean per token has another name."""
    # huggingface/trl#5814
    metrics = from_log_ratios([[0.01] * 120, [-0.01] * 120], SEQUENCE_MASK).metrics()
    assert metrics[f"{RAW}max"] == approx(3.320117)
    assert metrics[f"{RAW}min"] == approx(0.301194)
    assert metrics[f"{OWN}corrected/mean"] == approx(0.150597)
    assert metrics[FRACTION] == 0.5
    assert metrics[f"{OWN}sequence/geometric/max"] == approx(1.010050)
    assert metrics[f"{OWN}sequence/geometric/min"] == approx(0.990050)


def test_c14_equal_engines_give_a_sequence_ratio_of_one() -> None:
    """Three equal log-probabilities give a sequence ratio of 1, not 3."""
    # unslothai/unsloth-zoo#870
    assert from_log_ratios([[0.0, 0.0, 0.0]], SEQUENCE_MASK).metrics()[f"{RAW}mean"] == 1.0


def test_c14_the_renamed_cap_is_kept_with_its_name() -> None:
    """A cap under TRL's former name is the upper bound, with that name as its source."""
    # unslothai/unsloth-zoo#870
    rule = rs.Correction.from_trl(SimpleNamespace(vllm_importance_sampling_cap=2.0))
    assert rule is not None
    assert rule.upper == 2.0
    assert rule.sources["upper"] == "vllm_importance_sampling_cap"


def test_c15_a_row_mask_is_not_broadcast() -> None:
    """Two rows with ratios 1.2 and 0.8 have a mean of 1, and a mask of shape (B,) is refused, not broadcast."""
    # NVIDIA-NeMo/RL#3753
    train = torch.tensor([[math.log(1.2)], [math.log(0.8)]])
    rollout = torch.zeros(2, 1)
    assert rs.summarize(train, rollout, torch.ones(2, 1)).metrics()[f"{OWN}sequence/raw/mean"] == approx(1.0)
    with pytest.raises(ValueError, match="Nothing is broadcast"):
        rs.summarize(train, rollout, torch.ones(2))


def test_c16_the_mean_is_over_valid_tokens() -> None:
    """Two ratios of 1 among four positions have a mean of 1, not a half."""
    # PrimeIntellect-ai/prime-rl#580
    mask = torch.tensor([[1, 1, 0, 0]])
    assert rs.summarize(torch.zeros(1, 4), torch.zeros(1, 4), mask).metrics()[f"{RAW}mean"] == 1.0


def test_c17_effective_sample_size_knows_its_n() -> None:
    """The effective sample size counts valid tokens only, and its squares do not overflow."""
    # radixark/miles#1000
    train = torch.tensor([[0.0, math.log(3.0), 0.0]])
    metrics = rs.summarize(train, torch.zeros(1, 3), torch.tensor([[1, 1, 0]])).metrics()
    assert metrics[f"{OWN}token/ess/raw"] == approx(0.8)
    assert from_log_ratios([[50.0, 49.0, 0.0]]).metrics()[f"{OWN}token/ess/raw"] == approx(1.648054 / 3)


def test_c17_effective_sample_size_before_and_after_masking() -> None:
    """In a mask mode the effective sample sizes before and after the rule are two numbers."""
    # radixark/miles#1000
    metrics = from_ratios([0.5, 1.0, 1.5, 3.0], rs.Correction("token", "mask", upper=1.2)).metrics()
    assert metrics[f"{OWN}token/ess/raw"] == approx(0.72)
    assert metrics[f"{OWN}token/ess/corrected"] == approx(0.45)
    assert f"{OWN}sequence/ess/corrected" not in metrics


def test_c18_starved_tokens_are_reported() -> None:
    """The low tail is reported beside the high one, and modified tokens are counted separately for each side."""
    # rllm-org/rllm#760
    metrics = from_log_ratios([[-4.0, 0.0, 1.0]], rs.Correction("token", "mask", lower=0.5, upper=2.0)).metrics()
    assert metrics[f"{RAW}min"] == approx(0.018316)
    assert metrics[f"{RAW}mean"] == approx(1.245532)
    assert metrics[f"{RAW}max"] == approx(2.718282)
    assert metrics[f"{OWN}token/raw/p01"] == pytest.approx(math.exp(-3.92), rel=0.07)
    assert metrics[f"{OWN}modified/low"] == metrics[f"{OWN}modified/high"] == approx(1 / 3)


def test_c19_kl_estimators_have_the_right_sign() -> None:
    """k1, k2 and k3 estimate KL(rollout || trainer) on the rollout's tokens."""
    # modelscope/ms-swift#7145, verl-project/verl#2953
    metrics = from_log_ratios([[0.1, -0.2, 0.0, 0.05]]).metrics()
    assert metrics[f"{OWN}kl/k1"] == approx(0.0125)
    assert metrics[f"{OWN}kl/k2"] == approx(0.0065625)
    assert metrics[f"{RAW}mean"] == approx(0.993793)
    assert metrics[f"{OWN}kl/k3"] == approx(0.006293)


@pytest.mark.parametrize(("tokens", "flag"), [(101, 1.0), (100, None)])
def test_c20_identical_engines_are_suspicious(tokens: int, flag: float | None) -> None:
    """Bit-equal log-probabilities on more than a hundred tokens are flagged as suspicious."""
    # verl-project/verl#4070
    logps = -torch.rand(1, tokens)
    metrics = rs.summarize(logps, logps, torch.ones(1, tokens)).metrics()
    assert metrics.get(f"{OWN}identical") == flag
    assert metrics[f"{RAW}min"] == metrics[f"{RAW}max"] == 1.0


def test_c20_one_different_token_clears_the_flag() -> None:
    """One token that differs is enough for the engines not to be flagged as identical."""
    # verl-project/verl#4070
    logps = -torch.rand(1, 200) - 0.1
    other = logps.clone()
    other[0, 17] -= 1e-3
    assert rs.summarize(logps, other, torch.ones(1, 200)).metrics()[f"{OWN}identical"] == 0.0


def test_c21_no_graph_and_no_mutation() -> None:
    """Log-probabilities that require a gradient leave no graph behind, and no bit of a tensor changes."""
    # verl-project/verl#4105
    train = torch.tensor([[-1.0, NAN, -0.3]], requires_grad=True)
    rollout, mask = torch.tensor([[-1.1, -2.0, 0.5]]), torch.tensor([[1, 1, 1]])
    before = [tensor.detach().clone() for tensor in (train, rollout, mask)]
    recorder = rs.Recorder(correction=SEQUENCE_MASK)
    weights = recorder.correct(train, rollout, mask)
    record = recorder.flush(step=1)
    assert record is not None
    assert not weights.requires_grad
    assert isinstance(record.summary.sums, np.ndarray)  # which has no gradient
    for tensor, copy in zip((train, rollout, mask), before, strict=True):
        assert torch.equal(tensor.detach().nan_to_num(nan=9.0), copy.nan_to_num(nan=9.0))


def test_c45_extremes_of_a_window_are_extremes() -> None:
    """Over three generations in one window the minimum is 0.5 and the maximum 8, not their averages."""
    # huggingface/trl#6380
    recorder = rs.Recorder()
    for low, high in ((0.5, 2.0), (0.9, 1.1), (0.7, 8.0)):
        recorder.observe(torch.tensor([[low, high]]).log(), torch.zeros(1, 2), torch.ones(1, 2))
    record = recorder.flush(step=3)
    assert record is not None
    assert record.scalars[f"{RAW}min"] == approx(0.5)
    assert record.scalars[f"{RAW}max"] == approx(8.0)
    assert record.scalars[f"{RAW}mean"] == approx((0.5 + 2.0 + 0.9 + 1.1 + 0.7 + 8.0) / 6)
    assert record.scalars[f"{OWN}counts/generations"] == 3


def test_c46_no_key_is_averaged_by_trl() -> None:
    """None of our keys is one that TRL averages into lists of its own."""
    # huggingface/trl#5233
    trls = ("sampling/importance_sampling_ratio/", "sampling/sampling_logp_difference/", "clip_ratio/", "kl", "entropy")
    assert not [metric.key for metric in rs.CATALOGUE if metric.key.startswith(trls)]
    assert all(metric.key.startswith((OWN, RAW, FRACTION)) for metric in rs.CATALOGUE)


@pytest.mark.parametrize("bad", [None, NAN])
def test_c47_the_exchanged_size_is_independent_of_data(bad: float | None) -> None:
    """Ranks with bad tokens, valid tokens, no token and a failure exchange vectors of one size."""
    # huggingface/trl#7310; with real processes in test_distributed.py
    ones = torch.ones(1, 2)
    good = rs.summarize([[-1.0, -1.0]], [[-1.0, -1.1]], ones, correction=TOKEN_TRUNCATE)
    with_bad = rs.summarize([[-1.0, -1.0]], [[bad, -1.1]], ones)
    nothing = rs.summarize([[-1.0, -1.0]], [[-1.0, -1.1]], torch.zeros(1, 2))
    failed = rs.RatioSummary.empty(TOKEN_TRUNCATE).failed()
    assert len({summary.pack().shape for summary in (good, with_bad, nothing, failed)}) == 1


def test_c48_a_flushed_window_is_not_counted_again() -> None:
    """Ten tokens count once, however often the record is read and the empty window flushed again."""
    # allenai/open-instruct#1808; with real processes in test_distributed.py
    recorder = rs.Recorder()
    recorder.observe(torch.zeros(1, 10), torch.zeros(1, 10), torch.ones(1, 10))
    record = recorder.flush(step=1)
    assert record is not None
    assert recorder.flush(step=2) is None
    assert record.scalars[f"{OWN}counts/tokens"] == record.summary.metrics()[f"{OWN}counts/tokens"] == 10


@pytest.mark.parametrize(("rank", "rows"), [("0", 1), ("1", 0), ("2", 0)])
def test_c49_only_the_worlds_rank_zero_touches_a_tracker(rank: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is first on its node but not in the world writes to no tracker."""
    # huggingface/accelerate#644; with real processes in test_distributed.py
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_RANK", "0")
    tracker = rs.MemoryTracker()
    with rs.Recorder(report_to=tracker) as recorder:
        recorder.observe(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2))
        assert recorder.flush(step=1) is not None
    assert len(tracker.rows) == rows
    assert (tracker.run is not None) == (rows > 0)


@pytest.mark.parametrize(
    ("log_ratios", "kept"),
    [([0.0, NAN], 1), ([0.0, INF], 1), ([0.0, 0.0, 0.0, 1e30], 4), ([i / 600 - 0.4 for i in range(513)], 513)],
    ids=["nan", "inf", "1e30", "513 values"],
)
def test_c50_a_tracker_gets_finite_bins(log_ratios: list[float], kept: int) -> None:
    """For any values, a tracker receives at most 512 bins with finite edges whose counts sum to all valid ones."""
    # wandb/wandb#984, pytorch/pytorch#31855
    tracker = rs.MemoryTracker()
    with rs.Recorder(report_to=tracker, correction=TOKEN_TRUNCATE) as recorder:
        train = torch.tensor([log_ratios], dtype=torch.bfloat16 if kept == 1 else torch.float32, requires_grad=True)
        recorder.observe(train, torch.zeros_like(train), torch.ones_like(train))
        recorder.flush(step=1)
    (row,) = tracker.rows
    assert set(row.histograms) == {
        f"{OWN}hist/{name}" for name in ("token_log_ratio", "sequence_log_ratio", "corrected_log_ratio")
    }
    for key, bins in row.histograms.items():
        assert len(bins.counts) <= 512
        assert bins.total == (1 if "sequence" in key else kept)
        json.dumps(bins.to_json(), allow_nan=False)
    assert all(math.isfinite(value) for value in row.scalars.values())


def test_c50_no_values_make_no_histogram() -> None:
    """Without a valid token no histogram is sent, instead of bins of zeros on [0, 1]."""
    # wandb/wandb#8319
    tracker = rs.MemoryTracker()
    with rs.Recorder(report_to=tracker, correction=TOKEN_TRUNCATE) as recorder:
        recorder.observe(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2))
        recorder.flush(step=1)
    (row,) = tracker.rows
    assert row.histograms == {}
