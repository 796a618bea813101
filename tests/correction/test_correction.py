"""Bounds, compared with TRL's own arithmetic restated here."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ratioscope as rs

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
BOUNDS = ((None, 1.2), (0.8, None), (0.8, 1.2), (0.5, 3.0), (None, 3.0), (0.0, 2.0))
CASES = [(mode, *bounds) for mode, bounds in itertools.product(MODES, BOUNDS)]

LOGPS = st.floats(-30.0, 0.0, width=32) | st.sampled_from([math.nan, -math.inf, math.inf, 1.0, -1e30, 1e30])


def trl_weights(
    train: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor, mode: str, low: float | None, high: float | None
) -> torch.Tensor:
    """Computes TRL's factors of the loss, in TRL's order of operations."""
    difference = (train - rollout) * mask
    difference = torch.nan_to_num(difference, nan=0.0)
    if mode.startswith("sequence"):
        difference = difference.sum(dim=-1, keepdim=True)
    ratio = torch.exp(difference)
    if mode.endswith("truncate"):
        return torch.clamp(ratio, min=low, max=high)
    discard = (ratio < (-math.inf if low is None else low)) | (ratio > (math.inf if high is None else high))
    return ratio.masked_fill(discard, value=0.0)


def rule_of(mode: str, lower: float | None, upper: float | None) -> rs.Correction:
    """Makes a rule from TRL's name of its mode."""
    level, _, action = mode.partition("_")
    return rs.Correction(level, action, lower=lower, upper=upper)  # type: ignore[arg-type]


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of both sides, good and bad, and a mask of 0 and 1."""
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9))
    train, rollout = (draw(hnp.arrays(np.float32, shape, elements=LOGPS)) for _ in range(2))
    mask = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 1)))
    return torch.from_numpy(train), torch.from_numpy(rollout), torch.from_numpy(mask)


def odd_batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Padding with garbage, a NaN, both infinities, an overflow and an empty row."""
    nan, inf = math.nan, math.inf
    train = torch.tensor([[-1.0, -2.0, nan, -0.1], [-1.0, -inf, -3.0, -0.5], [-1.0, -0.5, -0.2, 9.0], [-1.0] * 4])
    rollout = torch.tensor([[-1.3, -1.9, -1.0, 0.0], [-1.0, -1.0, -0.1, nan], [-99.0, -0.5, inf, 7.0], [-9.0] * 4])
    return train, rollout, torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize(("mode", "lower", "upper"), CASES)
@settings(max_examples=15)
@given(batch=batches())
@example(batch=odd_batch())
def test_weights_are_trls_bits(
    mode: str, lower: float | None, upper: float | None, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    """In all four modes, with either bound open, the weights are bit for bit those of TRL's own arithmetic."""
    expected = trl_weights(*batch, mode, lower, upper)
    weights = rs.correct(*batch, correction=rule_of(mode, lower, upper))
    assert weights.dtype == torch.float32
    assert torch.equal(weights.isnan(), expected.isnan())
    assert torch.equal(weights.nan_to_num(nan=-1.0), expected.nan_to_num(nan=-1.0))


@pytest.mark.parametrize("mode", MODES)
def test_bool_and_integer_masks_are_the_same(mode: str) -> None:
    """A bool mask and a mask of 0 and 1 give the same weights."""
    train, rollout, mask = odd_batch()
    rule = rule_of(mode, None, 1.2)
    with_integers = rs.correct(train, rollout, mask, correction=rule)
    assert torch.equal(rs.correct(train, rollout, mask.bool(), correction=rule), with_integers)
    assert torch.equal(rs.correct(train, rollout, mask.float(), correction=rule), with_integers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_are_cast_before_subtracting(dtype: torch.dtype) -> None:
    """Log-probabilities of another dtype are cast to float32 first, so that no digit is lost in the difference."""
    train, rollout = (torch.tensor([[-12.34, -0.7]], dtype=dtype), torch.tensor([[-12.38, -0.71]], dtype=dtype))
    mask = torch.ones(1, 2)
    weights = rs.correct(train, rollout, mask, correction=rs.Correction("token", "truncate", upper=3.0))
    assert torch.equal(weights, (train.float() - rollout.float()).exp())


def test_a_nan_log_probability_gets_weight_one() -> None:
    """A token whose log-probability is NaN has weight exactly 1, and leaves its row's product alone."""
    train, rollout = torch.tensor([[-1.0, -1.0]]), torch.tensor([[math.nan, -1.5]])
    mask = torch.ones(1, 2)
    token = rs.correct(train, rollout, mask, correction=rs.Correction("token", "truncate", upper=3.0))
    row = rs.correct(train, rollout, mask, correction=rs.Correction("sequence", "truncate", upper=3.0))
    assert token[0, 0].item() == 1.0
    assert row.item() == token[0, 1].item()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (rs.Correction("token", "truncate", lower=0.5, upper=2.0), [0.5, 0.5, 1.0, 2.0, 2.0]),
        (rs.Correction("token", "mask", lower=0.5, upper=2.0), [0.0, 0.5, 1.0, 2.0, 0.0]),
        (rs.Correction("token", "mask", upper=2.0), [0.25, 0.5, 1.0, 2.0, 0.0]),
        (rs.Correction("token", "mask", lower=0.5), [0.0, 0.5, 1.0, 2.0, 4.0]),
        (rs.Correction("token", "mask"), [0.25, 0.5, 1.0, 2.0, 4.0]),
    ],
)
def test_a_ratio_equal_to_a_bound_is_kept(rule: rs.Correction, expected: list[float]) -> None:
    """Bounds are inclusive, on both sides and for both actions."""
    ratio = torch.tensor([[0.25, 0.5, 1.0, 2.0, 4.0]])
    low, high = rule.outside(ratio)
    assert rule.apply(ratio).tolist() == [expected]
    assert low.tolist() == [[rule.lower is not None, False, False, False, False]]
    assert high.tolist() == [[False, False, False, False, rule.upper is not None]]


@pytest.mark.parametrize("bound", [1.2, 0.1, 3.3])
def test_the_comparison_is_made_in_float32(bound: float) -> None:
    """A ratio that is the float32 nearest to a bound is kept, though it differs from the bound in float64."""
    ratio = torch.tensor([[bound]])
    for rule in (rs.Correction("token", "mask", upper=bound), rs.Correction("token", "mask", lower=bound)):
        assert rule.apply(ratio).item() == ratio.item()
    above = torch.nextafter(ratio, torch.tensor(math.inf))
    assert rs.Correction("token", "mask", upper=bound).apply(above).item() == 0.0


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"level": "row", "action": "mask", "upper": 2.0}, "level='row'; expected one of 'token', 'sequence'"),
        ({"level": "token", "action": "clip", "upper": 2.0}, "action='clip'; expected one of 'truncate', 'mask'"),
        ({"level": None, "action": "mask", "upper": 2.0}, "level=None"),
        ({"level": "token", "action": "mask", "lower": 2.0, "upper": 2.0}, "expected lower < upper. Swap"),
        ({"level": "token", "action": "mask", "lower": 3.0, "upper": 2.0}, "expected lower < upper. Swap"),
        ({"level": "token", "action": "truncate"}, "without a bound.*give upper"),
        ({"level": "token", "action": "truncate", "upper": math.nan}, "upper=nan; expected a finite ratio"),
        ({"level": "token", "action": "truncate", "upper": math.inf}, "upper=inf; expected a finite.*or None"),
        ({"level": "token", "action": "mask", "lower": -0.1}, "lower=-0.1; expected a finite ratio >= 0"),
        ({"level": "token", "action": "mask", "upper": "two"}, "upper='two'; expected a finite ratio"),
        ({"level": "token", "action": "mask", "upper": [2.0]}, r"upper=\[2.0\]; expected a finite ratio"),
    ],
)
def test_invalid_settings_say_what_to_do(wrong: dict[str, Any], text: str) -> None:
    """Invalid settings raise a ValueError that names the value and what is expected."""
    with pytest.raises(ValueError, match=text):
        rs.Correction(**wrong)


def test_rules_are_frozen_values() -> None:
    """A rule cannot be changed, and equals another with the same settings wherever they were read from."""
    rule = rs.Correction("token", "mask", upper=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.upper = 3.0  # type: ignore[misc]
    assert rule == rs.Correction("token", "mask", upper=2.0, sources={"upper": "clip_max"})
    assert rule != rs.Correction("token", "truncate", upper=2.0)


@pytest.mark.parametrize("mode", MODES)
def test_a_trl_config_is_read_with_its_names(mode: str) -> None:
    """The rule of a TRL config has its mode and bounds, and says which setting each came from."""
    args = SimpleNamespace(
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=0.5,
        vllm_importance_sampling_clip_max=3.0,
    )
    rule = rs.Correction.from_trl(args)
    assert rule == rule_of(mode, 0.5, 3.0)
    assert rule is not None
    assert rule.mode == mode
    assert rule.sources == {
        "level": "vllm_importance_sampling_mode",
        "action": "vllm_importance_sampling_mode",
        "lower": "vllm_importance_sampling_clip_min",
        "upper": "vllm_importance_sampling_clip_max",
    }


@pytest.mark.parametrize("clip_max", [None, 3.0])
def test_the_deprecated_cap_is_read_under_its_own_name(clip_max: float | None) -> None:
    """`vllm_importance_sampling_cap` is the upper bound where it is set, and is named as its source."""
    args = SimpleNamespace(
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=clip_max,
        vllm_importance_sampling_cap=2.0,
    )
    rule = rs.Correction.from_trl(args)
    assert rule is not None
    assert (rule.lower, rule.upper) == (None, 2.0)
    assert rule.sources["upper"] == "vllm_importance_sampling_cap"


def test_an_unset_cap_does_not_hide_the_clip() -> None:
    """A cap of None leaves the bound to `vllm_importance_sampling_clip_max`."""
    args = SimpleNamespace(vllm_importance_sampling_clip_max=1.5, vllm_importance_sampling_cap=None)
    rule = rs.Correction.from_trl(args)
    assert rule is not None
    assert (rule.mode, rule.upper) == ("sequence_mask", 1.5)
    assert rule.sources["upper"] == "vllm_importance_sampling_clip_max"


def test_a_trl_config_without_the_correction_has_no_rule() -> None:
    """With `vllm_importance_sampling_correction` off there is no rule, whatever the other settings are."""
    args = SimpleNamespace(vllm_importance_sampling_correction=False, vllm_importance_sampling_clip_max=-1.0)
    assert rs.Correction.from_trl(args) is None


@pytest.mark.parametrize("mode", ["token", "token_clip", "row_mask", "", "token_truncate_mask"])
def test_an_unknown_trl_mode_is_refused(mode: str) -> None:
    """A mode that is not one of TRL's four raises a ValueError that lists them."""
    args = SimpleNamespace(vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_max=3.0)
    with pytest.raises(ValueError, match="expected token_truncate, token_mask, sequence_truncate or sequence_mask"):
        rs.Correction.from_trl(args)


@pytest.mark.parametrize(("mode", "lower", "upper"), CASES)
def test_rules_survive_json(mode: str, lower: float | None, upper: float | None) -> None:
    """A rule written as JSON and read back is the same rule with the same sources."""
    rule = dataclasses.replace(rule_of(mode, lower, upper), sources={"upper": "clip_max"})
    again = rs.Correction.from_json(rule.to_json())
    assert again == rule
    assert again.sources == rule.sources


def test_log_bounds_are_logarithms() -> None:
    """The bounds on the log-ratio are the logarithms of the bounds, minus infinity for 0 and None for None."""
    assert rs.Correction("token", "mask", lower=0.5, upper=2.0).log_bounds == pytest.approx((-math.log(2), math.log(2)))
    assert rs.Correction("token", "mask", lower=0.0).log_bounds == (-math.inf, None)
