"""Presets: other frameworks' rules against their own numbers, their options, and what is refused."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch

import ratioscope as rs
from ratioscope.correction.presets import PRESETS, REFUSED
from tests.metrics.test_vectors import SHARED_LOG_RATIOS, SHARED_MASK, SHARED_ROLLOUT
from tests.project.test_docs import tables
from tests.support.preset_vectors import (
    BAND,
    BATCH,
    EDGES,
    ESS,
    MEAN,
    MODIFIED,
    OWN,
    OWN_TESTS,
    REFUSED_ROWS,
    STAGE,
    Row,
)

NUMBERS = tables("preset_tables").NUMBERS
ROWS = {**OWN_TESTS, **{f"batch: {name}": row for name, row in BATCH.items()}, **EDGES}


def inputs(row: Row) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both log-probabilities, mask and advantages."""
    if row.log_ratios is None:
        rollout = torch.tensor(SHARED_ROLLOUT)
        return rollout + torch.tensor(SHARED_LOG_RATIOS), rollout, torch.tensor(SHARED_MASK), torch.tensor([1.0, -1, 1])
    train = torch.tensor(row.log_ratios)
    mask = torch.ones_like(train) if row.mask is None else torch.tensor(row.mask)
    advantages = torch.ones(len(train)) if row.advantages is None else torch.tensor(row.advantages)
    return train, torch.zeros_like(train), mask, advantages


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_a_preset_gives_its_frameworks_numbers(row: Row) -> None:
    """Weights, mask and statistics are those that the framework itself gave on the same input."""
    train, rollout, mask, advantages = inputs(row)
    rule = rs.Correction.preset(row.preset, **row.options) if row.preset else None
    metrics = rs.summarize(train, rollout, mask, correction=rule, advantages=advantages).metrics()
    assert {key: metrics[key] for key in row.values} == pytest.approx(row.values, rel=1e-5, abs=2e-6)
    if rule is None:
        return
    done = rs.weigh(train, rollout, mask, correction=rule, advantages=advantages)
    if row.weights is not None:
        torch.testing.assert_close(done.weights, torch.tensor(row.weights), rtol=5e-5, atol=5e-6)
    if row.kept is not None:
        assert done.mask.tolist() == torch.tensor(row.kept).bool().tolist()


def test_two_ranks_of_unequal_size_are_pooled() -> None:
    """Under a preset too, three ratios here and nine there give the statistics of all twelve."""
    rule = rs.Correction.preset("verl/token")
    parts = [torch.tensor([ratios]).log() for ratios in ([1.0, 1.0, 4.0], [0.5] * 9)]
    summaries = [rs.summarize(part, torch.zeros_like(part), torch.ones_like(part), correction=rule) for part in parts]
    metrics = summaries[0].merge(summaries[1]).metrics()
    assert metrics[f"{STAGE}high"] == metrics[MODIFIED] == pytest.approx(1 / 12)
    assert metrics[MEAN] == pytest.approx((1 + 1 + 2 + 4.5) / 12)
    assert metrics[ESS] == pytest.approx(8.5**2 / (12 * (1 + 1 + 4 + 9 * 0.25)))
    assert metrics[f"{OWN}token/ess/raw"] == pytest.approx(0.453704, rel=1e-5)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_accounts_for_one_batch(name: str) -> None:
    """Each preset runs on the shared batch, accounts for every token, and keeps its own name through JSON."""
    preset = PRESETS[name]
    rule = rs.Correction.preset(name, **preset.example)
    train, rollout, mask, advantages = inputs(Row())
    summary = rs.summarize(train, rollout, mask, correction=rule, advantages=advantages)
    metrics = summary.metrics()
    assert 0.0 <= metrics[MODIFIED] <= 1.0
    assert rs.Correction.from_json(rule.to_json()) == rule
    assert all("/" in source for source in rule.sources.values())
    assert preset.source
    if rule.bounds is None:
        assert rule.mode == name
        assert sum(summary.count(f"class/{part}") for part in ("kept", "vetoed", "dropped", "zeroed", "clamped")) + sum(
            summary.count(f"class/truncated_{side}") for side in ("low", "high")
        ) == summary.count("token/n")


def test_the_presets_cover_the_frameworks() -> None:
    """Every framework that corrects anything has a preset, and no name is both given and refused."""
    frameworks = {name.partition("/")[0] for name in rs.Correction.presets()}
    assert frameworks >= {"trl", "axolotl", "verl", "openrlhf", "slime", "prime-rl", "areal", "nemo", "skyrl"}
    assert frameworks >= {"open-instruct", "ms-swift", "unsloth", "tunix", "roll", "xtuner", "deepseek"}
    assert not {refusal.name for refusal in REFUSED} & set(PRESETS)


def test_every_refusal_says_why() -> None:
    """Rows, numbers and rules that are refused each have a reason, and a refused rule's error says it."""
    assert all(len(reason) > 20 for reason in REFUSED_ROWS.values())
    assert all(number.ours or len(number.remark) > 20 for number in NUMBERS)
    for refusal in REFUSED:
        with pytest.raises(ValueError, match="which stages cannot express") as caught:
            rs.Correction.preset(refusal.name)
        assert refusal.reason in str(caught.value)


def test_our_side_of_every_number_is_a_key() -> None:
    """Every key that a number of another framework is equated with is one that the catalogue has."""
    known = {metric.key.removeprefix("ratioscope/") for metric in rs.CATALOGUE}
    for number in NUMBERS:
        for part in filter(None, number.ours.split(", ")):
            head, brace, rest = part.partition("{")
            names = (
                [head + end + rest.partition("}")[2] for end in rest.partition("}")[0].split(",")] if brace else [part]
            )
            assert {name.replace("/N/", "/1/") for name in names} <= known, number


@pytest.mark.parametrize(
    ("name", "options", "error", "says"),
    [
        ("openrlhf/ice-pop", {}, ValueError, "Did you mean 'openrlhf/icepop'"),
        ("openrlfh/icepop", {}, ValueError, "Did you mean 'openrlhf/icepop'"),
        ("openrlhf/icepop", {"uper": 2.0}, ValueError, "Did you mean 'upper'"),
        ("slime/opsm", {}, ValueError, "got preset 'slime/opsm' without 'opsm_delta'; slime has no default"),
        ("verl/token", {"rollout_is_threshold": True}, TypeError, "got rollout_is_threshold=True"),
        ("verl/token", {"rollout_is_threshold": "2_1"}, ValueError, "two in order"),
        ("verl/token_k2", {"rollout_rs_threshold": "0.1_0.2"}, ValueError, "expected one upper bound"),
        ("verl/rollout_correction", {"rollout_rs": "token_k4"}, ValueError, "Did you mean 'token_k"),
        ("verl/rollout_correction", {"rollout_rs": "token_k1"}, ValueError, "verl has no default"),
        ("slime/mis", {"rs_veto_threshold": 1e-4}, ValueError, "only where rejection is on"),
        ("areal/rejection_sampling", {"action": "clamp", "metric": "kl_k2"}, ValueError, "expected metric='ratio'"),
        ("xtuner/rollout_is", {"rollout_is_threshold": (0.8, 1.2)}, ValueError, r"expected \(upper, lower\)"),
        ("xtuner/rollout_is", {}, ValueError, "without 'rollout_is_threshold'"),
        ("roll/train_infer_correction", {"filters": [{"ratio_hi": 1.2}]}, ValueError, "Did you mean 'ratio_high'"),
        (
            "skyrl/off_policy_correction",
            {**BAND, "sequence_mask_metric": "product"},
            ValueError,
            "our stages all decide on the raw values",
        ),
    ],
)
def test_a_wrong_preset_says_what_is_near(
    name: str, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    """Unknown names, options and values are refused with what is expected, or what is near."""
    with pytest.raises(error, match=says):
        rs.Correction.preset(name, **options)


def test_options_have_their_frameworks_defaults() -> None:
    """Defaults are the frameworks' own; one that has none must be given."""
    assert PRESETS["openrlhf/tis"].options["upper"] == 5.0
    assert PRESETS["skyrl/geometric"].options == {"geo_mask_low": 0.99, "geo_mask_high": 1.01}
    assert PRESETS["slime/opsm"].options == {"opsm_delta": inspect.Parameter.empty}
    given = rs.Correction.preset("openrlhf/icepop", vllm_is_truncated_threshold=[0.5, 5.0])
    assert (
        given
        == rs.Correction.preset("openrlhf/icepop", lower=0.5, upper=5.0)
        == rs.Correction.preset("openrlhf/icepop")
    )
    assert given.sources == {"vllm_is_truncated_threshold": "openrlhf/icepop: vllm_is_truncated_threshold"}


def test_slimes_options_make_each_stage() -> None:
    """Slime's mask, rejection and veto are three stages with bounds that follow from one another."""
    rule = rs.Correction.preset(
        "slime/mis", tis_level="geometric", tis_mode="mask", tis_upper_bound=2.0, use_rs=True, rs_veto_threshold=1e-4
    )
    assert [(stage.level, stage.action, stage.lower, stage.upper) for stage in rule.stages] == [
        ("geometric", "drop", 0.5, 2.0),
        ("token", "drop", 0.5, 2.0),
        ("any", "drop", 1e-4, None),
    ]
    assert rule.weight == "geometric"


def test_verls_rejections_combine() -> None:
    """Verl's comma list makes one stage each, beside weights that they leave alone."""
    rule = rs.Correction.preset(
        "verl/rollout_correction", rollout_is="token", rollout_rs="token_k1,seq_max_k2", rollout_rs_threshold="2.0,0.5"
    )
    assert [(stage.statistic, stage.level, stage.action) for stage in rule.stages] == [
        ("ratio", "token", "truncate"),
        ("k1", "token", "drop"),
        ("k2", "max", "drop"),
    ]
    assert rule.stages[1].upper == pytest.approx(math.log(2.0)) == -(rule.stages[1].lower or 0.0)
    assert rule.log_clamp == 20.0


BY_HAND: dict[str, tuple[float, float, float]] = {
    "areal/token_mask": (0.375, 1.26503, 0.969454),
    "areal/token_clamp": (0.375, 1.16564, 0.852292),
    "axolotl/token_truncate": (0.375, 1.16564, 0.852292),
    "axolotl/token_mask": (0.375, 0.978144, 0.850116),
    "ms-swift/token_truncate": (0.125, 1.11963, 0.801104),
    "ms-swift/token_mask": (0.125, 0.869634, 0.710229),
    "ms-swift/sequence_truncate": (0.0, 0.991145, 0.992009),
    "ms-swift/sequence_mask": (0.0, 1.42985, 0.571795),
    "nemo/tis": (0.125, 1.11963, 0.801104),
    "nemo/icepop": (0.375, 0.790644, 0.605909),
    "open-instruct/clamp": (0.125, 1.11963, 0.801104),
    "open-instruct/mask": (0.375, 0.790644, 0.605909),
    "openrlhf/tis": (0.375, 1.16564, 0.852292),
    "openrlhf/icepop": (0.375, 0.790644, 0.605909),
    "prime-rl/dppo": (0.25, (8 * 1.42985 - math.exp(0.5) - math.exp(-2.0)) / 8, 0.450437),
    "skyrl/token": (0.125, 1.11963, 0.801104),
    "skyrl/outlier": (0.5, 1.0, 1.0),
    "slime/vanilla_tis": (0.125, 1.11963, 0.801104),
    "slime/opsm": (0.5, 0.5, 0.5),
    "trl/token_truncate": (0.125, 1.11963, 0.801104),
    "trl/token_mask": (0.125, 0.869634, 0.710229),
    "trl/sequence_truncate": (0.0, 0.981657, 0.969833),
    "tunix/token": (0.125, 1.11963, 0.801104),
    "unsloth/token_truncate": (0.125, 1.11963, 0.801104),
    "verl/token": (0.125, 1.11963, 0.801104),
    "verl/sequence": (0.0, 0.912118, 0.981995),
    "verl/icepop": (0.375, 0.790644, 0.605909),
}


def test_the_table_of_one_batch_is_right() -> None:
    """The documentation's table has the modified fraction, mean weight and effective size that are known by hand."""
    table = tables("preset_tables").one_batch()
    assert set(table) == set(PRESETS)
    for name, values in BY_HAND.items():
        assert table[name] == pytest.approx(values, rel=1e-5), name


def test_rolls_segments_have_geometric_means() -> None:
    """ROLL weighs a turn by the geometric mean of its ratios, and filters by mean and by sum of differences."""
    train = torch.tensor([[0.2, 0.4, 9.0, -0.3]]) - 2.0
    rollout, mask = torch.full((1, 4), -2.0), torch.tensor([[1, 1, 0, 1]])
    rule = rs.Correction.preset("roll/train_infer_correction", weight_type="segment", upper_bound=None)
    weights = rs.correct(train, rollout, mask, correction=rule)
    torch.testing.assert_close(weights[0, [0, 1, 3]], torch.tensor([0.3, 0.3, -0.3]).exp())
    each = [{"agg_type": level, "ratio_enabled": False, "diff_enabled": True} for level in ("sequence", "geometric")]
    rule = rs.Correction.preset("roll/train_infer_correction", filters=each)
    assert [(stage.statistic, stage.level, stage.upper) for stage in rule.stages[1:]] == [
        ("probability_difference", "sum", 0.2),
        ("probability_difference", "mean", 0.2),
    ]


def test_xtuners_mask_stands_beside_its_clamp() -> None:
    """XTuner masks by the second threshold, or by the first where there is no second, and clamps by the first."""
    rule = rs.Correction.preset(
        "xtuner/rollout_is", rollout_is_mode="both", rollout_is_threshold=(5, 0), rollout_is_mask_threshold=(5, 0.5)
    )
    assert [(stage.action, stage.lower, stage.upper) for stage in rule.stages] == [("drop", 0.5, 5), ("truncate", 0, 5)]
    rule = rs.Correction.preset("xtuner/rollout_is", rollout_is_mode="mask", rollout_is_threshold=(2, 0.5))
    assert [(stage.action, stage.lower, stage.upper) for stage in rule.stages] == [("drop", 0.5, 2)]


@pytest.mark.parametrize(
    ("name", "options", "clamp"),
    [
        ("open-instruct/rho", {"rho_mask_sequence_level": True, "rho_clamp_upper_bound": 0.0}, 10.0),
        ("open-instruct/sequence", {"rho_mask_lower_bound": 0.0, "rho_mask_upper_bound": 1e9}, 10.0),
        ("ms-swift/sequence_truncate", {"rollout_importance_sampling_threshold": 1e9}, 20.0),
    ],
)
@pytest.mark.parametrize("gap", [40.0, -40.0])
def test_tokens_are_clamped_before_their_geometric_mean(
    name: str, options: dict[str, Any], clamp: float, gap: float
) -> None:
    """One token of 40 nats among four weighs as one of the clamp's nats in its row's geometric mean."""
    train = torch.tensor([[-50.0] * 4])
    rollout = train.clone()
    rollout[0, 3] -= gap
    weights = rs.correct(train, rollout, torch.ones(1, 4), correction=rs.Correction.preset(name, **options))
    expected = math.exp(math.copysign(clamp, gap) / 4)
    assert weights.flatten().tolist() == pytest.approx([expected] * 4, rel=1e-6)


def test_ms_swift_masks_rows_by_the_mean_of_clamped_tokens() -> None:
    """A row whose geometric mean is above the bound only through what the clamp takes away is kept."""
    rule = rs.Correction.preset("ms-swift/sequence_mask", rollout_importance_sampling_threshold=200.0)
    train, rollout = torch.full((1, 4), -1.0), torch.tensor([[-1.0, -1.0, -1.0, -41.0]])
    weights = rs.correct(train, rollout, torch.ones(1, 4), correction=rule)
    assert weights[0].tolist() == pytest.approx([1.0, 1.0, 1.0, math.exp(20.0)], rel=1e-6)


@pytest.mark.parametrize("by_sequence", [False, True])
@pytest.mark.parametrize(("lower", "expected"), [(0.5, 0.5), (None, 0.0)])
def test_nemo_raises_what_is_not_finite_to_the_lower_bound(
    lower: float | None, expected: float, *, by_sequence: bool
) -> None:
    """NeMo-RL makes a weight that is not finite 0 first and truncates then, so a lower bound raises it."""
    rule = rs.Correction.preset(
        "nemo/tis",
        truncated_importance_sampling_ratio=2.0,
        truncated_importance_sampling_ratio_min=lower,
        sequence_level_importance_ratios=by_sequence,
    )
    weights = rs.correct(torch.tensor([[-1.0]]), torch.tensor([[-200.0]]), torch.ones(1, 1), correction=rule)
    assert weights.flatten().tolist() == [expected]


def test_effective_sample_size_of_no_weight_is_zero() -> None:
    """A rule that sets every weight to 0 leaves an effective sample size of 0, not an absent one."""
    rule = rs.Correction(level="token", action="mask", upper=2.0)
    summary = rs.summarize(torch.full((2, 3), -1.0), torch.full((2, 3), -4.0), torch.ones(2, 3), correction=rule)
    assert summary.metrics()["ratioscope/ess/corrected"] == 0.0
