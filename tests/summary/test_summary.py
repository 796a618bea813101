"""RatioSummary: accepted inputs, stored data and metrics."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.state import histogram
from ratioscope.state.slots import COUNTS, HISTOGRAMS, SUMS, TURNS
from ratioscope.summary.host import PACKED_SIZE

RAW = "sampling/raw_importance_sampling_ratio/"
FRACTION = "sampling/frac_modified_importance_sampling_ratio"
OWN = "ratioscope/"
NAN, INF = math.nan, math.inf

CAP = rs.Correction("token", "truncate", upper=1.2)


def summary_of(rows: list[list[float]], correction: rs.Correction | None = None, **options: Any) -> rs.RatioSummary:
    """Makes the summary of tokens with the given log-ratios, all masked in."""
    train = torch.tensor(rows)
    return rs.summarize(train, torch.zeros_like(train), torch.ones_like(train), correction=correction, **options)


def histogram_of(summary: rs.RatioSummary, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns a summary's histogram by name."""
    return summary.histograms[HISTOGRAMS.index(name)].numpy()


def test_empty_has_counts_of_zero_and_nothing_else() -> None:
    """An empty summary has 0 for every count and no other metric."""
    metrics = rs.RatioSummary.empty(CAP).metrics()
    assert {key.split("/")[1] for key in metrics} == {"counts"}
    assert set(metrics.values()) == {0.0}


def test_metrics_are_finite_python_floats() -> None:
    """Every metric is a finite Python float, also for batches with overflows, NaN and infinities."""
    summary = summary_of([[0.1, 800.0, NAN], [-INF, -3e38, 2.0]], CAP, advantages=[1.0, -1.0])
    assert {type(value) for value in summary.metrics().values()} == {float}
    assert all(math.isfinite(value) for value in summary.metrics().values())


def test_details_are_nested() -> None:
    """The headline is part of the standard detail, which is part of the full detail."""
    summary = summary_of([[0.1, -0.2], [0.3, 0.0]], CAP, advantages=[1.0, -1.0])
    headline, standard, full = (summary.metrics(detail=detail) for detail in ("headline", "standard", "full"))
    assert headline.items() < standard.items() < full.items()
    assert summary.metrics() == full


def test_an_unknown_detail_raises() -> None:
    """An unknown detail raises a ValueError that lists the valid ones."""
    with pytest.raises(ValueError, match="got detail='all'; expected one of 'headline', 'standard', 'full'"):
        rs.RatioSummary.empty().metrics(detail="all")


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("action", ["truncate", "mask"])
def test_the_headline_follows_the_level_of_the_rule(level: Any, action: Any) -> None:
    """The headline's raw ratio is of tokens under a token rule and of sequences under a sequence rule."""
    metrics = summary_of([[0.1, 0.2], [-0.3, 0.0]], rs.Correction(level, action, upper=1.2)).metrics()
    for name in ("min", "mean", "max"):
        assert metrics[RAW + name] == metrics[f"{OWN}{level}/raw/{name}"]
    assert metrics[f"{OWN}ess/raw"] == metrics[f"{OWN}{level}/ess/raw"]
    assert metrics[f"{OWN}raw/p50"] == metrics[f"{OWN}{level}/raw/p50"]
    assert f"{OWN}{level}/ess/corrected" in metrics
    other = "sequence" if level == "token" else "token"
    assert f"{OWN}{other}/ess/corrected" not in metrics
    done = {"truncate": "truncated", "mask": "masked"}[action]
    assert metrics[f"{OWN}modified/{done}"] == metrics[FRACTION] > 0
    assert metrics[f"{OWN}modified/truncated"] * metrics[f"{OWN}modified/masked"] == 0


def test_without_a_rule_there_are_no_weight_metrics() -> None:
    """Without a rule, corrected and modified metrics are absent instead of 0."""
    metrics = summary_of([[0.1, 0.5]]).metrics()
    assert not [key for key in metrics if "corrected" in key or "modified" in key]
    assert metrics[f"{RAW}max"] == pytest.approx(math.exp(0.5))


def test_merging_takes_over_the_rule() -> None:
    """Merging with a summary without a rule keeps the other's rule."""
    merged = rs.RatioSummary.empty().merge(summary_of([[0.5]], CAP))
    assert merged.correction == CAP
    assert merged.metrics()[FRACTION] == 1.0


def test_different_rules_cannot_be_pooled() -> None:
    """Merging summaries of different rules raises an error with a remedy."""
    other = rs.Correction("token", "truncate", upper=2.0)
    with pytest.raises(ValueError, match=r"different corrections.*Flush before the rule changes"):
        summary_of([[0.5]], CAP).merge(summary_of([[0.5]], other))


def test_the_modified_fraction_is_split_by_advantage() -> None:
    """The modified fraction is split by the advantage's sign; an advantage of 0 enters neither part."""
    rows = [[0.5, 0.5], [0.5, 0.0], [0.0, 0.0]]
    metrics = summary_of(rows, CAP, advantages=torch.tensor([2.0, -1.0, 0.0])).metrics()
    assert metrics[f"{OWN}modified/positive_advantage"] == 1.0
    assert metrics[f"{OWN}modified/negative_advantage"] == 0.5
    r = math.exp(0.5)
    removed = (2.0 * 2 * (r - 1.2) + (r - 1.2)) / (2.0 * 2 * r + r + 1.0)
    assert metrics[f"{OWN}modified/gradient_removed"] == pytest.approx(removed, rel=1e-6)
    without = summary_of(rows, CAP).metrics()
    assert not [key for key in without if "advantage" in key or "gradient" in key]


def test_an_absent_advantage_sign_has_no_metric() -> None:
    """Without a negative advantage, its part of the modified fraction is absent instead of 0."""
    metrics = summary_of([[0.5], [0.0]], CAP, advantages=[1.0, 0.5]).metrics()
    assert metrics[f"{OWN}modified/positive_advantage"] == 0.5
    assert f"{OWN}modified/negative_advantage" not in metrics


@pytest.mark.parametrize(("row", "over"), [([1.0, -1.0], 0.0), ([1.0, -1.0000001], 1.0), ([-3.0, 0.5], 1.0)])
def test_completions_over_one_nat(row: list[float], over: float) -> None:
    """A completion whose mean absolute log-ratio is exactly 1 nat does not count as above it."""
    metrics = summary_of([row]).metrics()
    assert metrics[f"{OWN}row/over_1nat"] == over
    assert metrics[f"{OWN}row/abs_mean_max"] == pytest.approx(np.abs(row).mean(), rel=1e-6)


def test_all_masked_leaves_a_sample_size_of_zero() -> None:
    """If the rule masks everything, the corrected mean and the corrected effective sample size are 0."""
    metrics = summary_of([[0.5, 0.9]], rs.Correction("token", "mask", upper=1.2)).metrics()
    assert metrics[f"{OWN}corrected/mean"] == metrics[f"{OWN}corrected/max"] == 0.0
    assert metrics[f"{OWN}ess/corrected"] == 0.0


@pytest.mark.parametrize(
    ("correction", "values"),
    [
        (rs.Correction("token", "mask", upper=1.2), [0.125, -0.5]),
        (rs.Correction("token", "truncate", lower=0.75, upper=1.5), [0.125, math.log(0.75), math.log(1.5)]),
        (rs.Correction("sequence", "mask", lower=0.9), [0.25]),
        (rs.Correction("sequence", "truncate", upper=1.2), [math.log(1.2)]),
    ],
)
def test_the_corrected_histogram_has_the_weights(correction: rs.Correction, values: list[float]) -> None:
    """Masked ratios leave the corrected histogram and truncated ones move to their bound, at the rule's level."""
    expected = torch.tensor(values)
    counts = histogram.count([(expected, torch.ones_like(expected, dtype=torch.bool))])[0].numpy()
    got = histogram_of(summary_of([[0.125, -0.5, 0.625]], correction), "corrected_log_ratio")
    assert np.array_equal(got, counts)


def test_histograms_hold_every_valid_value() -> None:
    """The token histogram sums to the valid tokens, and sequence histograms to the non-empty completions."""
    train = torch.tensor([[0.1, NAN, 0.3], [2e3, -2e3, 1.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0]])
    summary = rs.summarize(train, torch.zeros(3, 3), mask, correction=CAP)
    assert histogram_of(summary, "token_log_ratio").sum() == summary.count("token/n") == 4
    assert histogram_of(summary, "corrected_log_ratio").sum() == 4
    for name in ("sequence_log_ratio", "geometric_log_ratio"):
        assert histogram_of(summary, name).sum() == summary.count("sequence/n") == 2


def test_lists_equal_tensors_with_gaps() -> None:
    """Lists with None and missing tails count missing tokens, and otherwise equal the corresponding tensors."""
    train = [[-1.0, -2.0, -0.5], [-1.0, -0.1]]
    rollout = [[-1.1, None, -0.4], [-1.2, -0.2]]
    mask = torch.tensor([[1, 1, 1], [1, 1, 1]])
    from_lists = rs.summarize(train, rollout, mask, correction=CAP, advantages=[1.0, -1.0])
    assert from_lists.count("missing") == 2
    tensors = torch.tensor([[-1.0, -2.0, -0.5], [-1.0, -0.1, 0.0]]), torch.tensor([[-1.1, 0, -0.4], [-1.2, -0.2, 0]])
    valid = torch.tensor([[1, 0, 1], [1, 1, 0]])
    expected = rs.summarize(*tensors, valid, correction=CAP, advantages=torch.tensor([1.0, -1.0]))
    by_turn = {f"{turn}/{name}" for turn in TURNS for name in ("n", "d", "abs_d")}  # a hole ends a turn, a gap does not
    for name in set(COUNTS) - by_turn - {"missing", "masked_in"}:
        assert from_lists.count(name) == expected.count(name), name
    for name, got, want in zip(SUMS, from_lists.sums, expected.sums, strict=True):
        assert got == want or name in by_turn, name
    assert torch.equal(from_lists.histograms, expected.histograms)


def test_a_missing_tail_beyond_the_mask_is_not_counted() -> None:
    """Missing entries of a short list count only at masked-in positions."""
    summary = rs.summarize([[-1.0, -1.0], [-1.0]], [[-1.0, -1.0], [-1.0]], [[1, 1], [1, 0]])
    assert summary.count("missing") == 0
    assert summary.count("token/n") == 3


@pytest.mark.parametrize(
    ("train", "rollout", "kind"),
    [
        (NAN, -1.0, "nan"),
        (-1.0, NAN, "nan"),
        (NAN, INF, "nan"),
        (NAN, 1.0, "nan"),
        (-1.0, -INF, "inf"),
        (INF, -1.0, "inf"),
        (-INF, -INF, "inf"),
        (3e38, -3e38, "inf"),
        (-1.0, 1.1e-4, "positive_logp"),
        (-1.0, 1e30, "positive_logp"),
        (-1.0, 0.9e-4, None),
        (0.5, -1.0, None),
    ],
)
def test_each_bad_token_is_counted_once(train: float, rollout: float, kind: str | None) -> None:
    """An unusable token is counted under exactly one reason and enters nothing else."""
    summary = rs.summarize([[train, -1.0]], [[rollout, -1.5]], torch.ones(1, 2), correction=CAP)
    kinds = {name: summary.count(name) for name in ("nan", "inf", "positive_logp", "missing")}
    assert kinds == {name: int(name == kind) for name in kinds}
    assert summary.count("token/n") + sum(kinds.values()) == summary.count("masked_in") == 2
    if kind is not None:
        alone = rs.summarize([[-1.0]], [[-1.5]], torch.ones(1, 1), correction=CAP)
        assert torch.equal(summary.maxima, alone.maxima)
        assert torch.equal(summary.sums, alone.sums)
        assert torch.equal(summary.histograms, alone.histograms)


def test_masked_out_values_are_ignored() -> None:
    """Values at masked-out positions do not change a bit of the summary."""
    mask = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
    clean = torch.where(mask.bool(), torch.tensor([[-1.0, 0, -2.0, 0, 0], [0] * 5]), 0.0)
    garbage = torch.where(mask.bool(), clean, torch.tensor([NAN, INF, 7.0, -INF, 1e38]))
    expected = rs.summarize(clean, clean - 0.1, mask, correction=CAP)
    rollout = torch.where(mask.bool(), clean - 0.1, garbage.flip(-1))
    assert rs.summarize(garbage, rollout, mask, correction=CAP) == expected


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16])
def test_masks_of_any_dtype(dtype: torch.dtype) -> None:
    """A mask may be bool, or 0 and 1 of any dtype."""
    train, mask = torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[1, 0, 1]])
    expected = rs.summarize(train, torch.zeros(1, 3), mask)
    assert rs.summarize(train, torch.zeros(1, 3), mask.to(dtype)) == expected


def test_strided_tensors_are_accepted() -> None:
    """Transposed and sliced tensors give the same summary as contiguous ones."""
    wide = torch.linspace(-0.4, 0.4, 24).reshape(6, 4).T[:, ::2]
    mask = torch.ones_like(wide).expand(4, 3)
    strided = rs.summarize(wide, torch.zeros(1, 1).expand(4, 3), mask, correction=CAP)
    plain = rs.summarize(wide.contiguous(), torch.zeros(4, 3), mask.contiguous(), correction=CAP)
    assert torch.equal(strided.histograms, plain.histograms)
    assert strided.metrics() == pytest.approx(plain.metrics(), rel=1e-12, abs=1e-15)


def test_unpack_refuses_another_size() -> None:
    """Unpacking a vector of another size raises an error with both sizes."""
    with pytest.raises(ValueError, match=rf"shape \(3,\); expected \({PACKED_SIZE},\)"):
        rs.RatioSummary.unpack(torch.zeros(3))


def test_equality_is_of_rule_and_state() -> None:
    """Summaries are equal if rule and state are equal, and are not hashable."""
    one = summary_of([[0.5]], CAP)
    assert one == summary_of([[0.5]], CAP)
    assert one != summary_of([[0.5]], rs.Correction("token", "truncate", upper=1.3))
    assert one != summary_of([[0.5 + 1e-7]], CAP)
    assert one != "a summary"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_merging_changes_neither_part() -> None:
    """A merge leaves both inputs unchanged."""
    one, other = summary_of([[0.5]], CAP), summary_of([[3.0, -1.0]], CAP)
    before = [rs.RatioSummary.unpack(part.pack(), correction=CAP) for part in (one, other)]
    one.merge(other)
    assert [one, other] == before


def test_a_failure_adds_one_error() -> None:
    """A failed observation adds one to the errors and changes nothing else."""
    one = summary_of([[0.5]], CAP)
    assert (one.count("errors"), one.failed().failed().count("errors")) == (0, 2)
    assert one.failed().metrics() == one.metrics()


@pytest.mark.parametrize("shape", [(1, 1), (2, 1)])
def test_differing_weights_withhold_weight_metrics(shape: tuple[int, int]) -> None:
    """Weights of another value or shape withhold the weight metrics and no raw metric."""
    observation = rs.Observation.of(torch.full((2, 3), 0.5), torch.zeros(2, 3), torch.ones(2, 3))
    trusted = rs.RatioSummary.observe(observation, correction=CAP, applied=torch.full((2, 3), 1.2))
    foreign = rs.RatioSummary.observe(observation, correction=CAP, applied=torch.full(shape, 1.2))
    assert trusted.count("disagreements") == 0
    assert foreign.count("disagreements") == 6
    withheld = set(trusted.metrics()) - set(foreign.metrics())
    assert withheld == {f"{OWN}corrected/{name}" for name in ("min", "mean", "max")} | {
        f"{OWN}ess/corrected",
        f"{OWN}token/ess/corrected",
    }
    assert foreign.metrics()[f"{RAW}mean"] == trusted.metrics()[f"{RAW}mean"]


def test_one_wrong_weight_counts_at_valid_tokens_only() -> None:
    """A weight that is off by one bit is detected at a valid token and ignored at a masked-out one."""
    train, mask = torch.tensor([[0.1, 0.5]]), torch.tensor([[1, 0]])
    observation = rs.Observation.of(train, torch.zeros(1, 2), mask)
    weights = rs.correct(train, torch.zeros(1, 2), mask, correction=CAP)
    above = torch.nextafter(weights, torch.tensor(INF))
    where_valid = torch.where(mask.bool(), above, weights)
    where_masked = torch.where(mask.bool(), weights, above)
    for applied, disagreements in ((weights, 0), (where_masked, 0), (where_valid, 1), (weights * NAN, 1)):
        summary = rs.RatioSummary.observe(observation, correction=CAP, applied=applied)
        assert summary.count("disagreements") == disagreements


@pytest.mark.parametrize("action", ["truncate", "mask"])
def test_nan_in_both_weights_is_no_disagreement(action: Literal["truncate", "mask"]) -> None:
    """A completion of opposite infinities, whose log-ratios add to NaN, agrees with weights of NaN and no other."""
    train, rollout, mask = torch.full((1, 32), -1.0), torch.full((1, 32), -1.0), torch.ones(1, 32)
    train[0, 3::2], rollout[0, 2::2] = -INF, -INF  # the first two tokens are usable, so the completion counts
    rule = rs.Correction("sequence", action, upper=2.0)
    weights = rs.correct(train, rollout, mask, correction=rule)
    assert weights.isnan().all()
    observation = rs.Observation.of(train, rollout, mask)
    for applied, disagreements in ((weights, 0), (torch.ones_like(weights), 1)):
        summary = rs.RatioSummary.observe(observation, correction=rule, applied=applied)
        assert summary.count("disagreements") == disagreements


def test_moving_to_the_same_device_copies_nothing() -> None:
    """Moving a summary to its own device copies nothing."""
    summary = summary_of([[0.5]])
    assert summary.to("cpu") is summary
