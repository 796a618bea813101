"""Bad batches of every kind give a clear error or a counted exclusion, and never damage a window."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs

if TYPE_CHECKING:
    from collections.abc import Callable

OWN = "ratioscope/"
RAW = "sampling/raw_importance_sampling_ratio/"
NAN, INF = math.nan, math.inf

RULE = rs.Correction("token", "truncate", upper=1.2)
EVERY_RULE = [
    None,
    *(
        rs.Correction(level, action, lower=0.5, upper=1.2)  # type: ignore[arg-type]
        for level in ("token", "sequence")
        for action in ("truncate", "mask")
    ),
]


@dataclass(frozen=True)
class Call:
    """Arguments of one observation; two rows of three tokens with a log-ratio of 0.1 unless replaced."""

    train: Any = None
    rollout: Any = None
    mask: Any = None
    options: Any = None

    def of(self, function: Callable[..., Any], **more: Any) -> Any:
        """Calls a function with the given arguments."""
        return function(self.train, self.rollout, self.mask, **(self.options or {}), **more)


GOOD = Call(torch.full((2, 3), -0.9), torch.full((2, 3), -1.0), torch.ones(2, 3))


def changed(**arguments: Any) -> Call:
    """Returns the valid call with some arguments replaced."""
    return replace(GOOD, **arguments)


REFUSED: dict[str, tuple[Call, type[Exception], str]] = {
    "wider rollout": (changed(rollout=torch.zeros(2, 4)), ValueError, r"rollout_logps of shape \(2, 4\); .*\(2, 3\)"),
    "more rows": (changed(train=torch.zeros(3, 3)), ValueError, r"rollout_logps of shape \(2, 3\); .*\(3, 3\)"),
    "transposed": (changed(rollout=torch.zeros(3, 2)), ValueError, r"rollout_logps of shape \(3, 2\)"),
    "(B,) mask": (changed(mask=torch.ones(2)), ValueError, r"mask of shape \(2,\).*Nothing is broadcast"),
    "(T,) mask": (changed(mask=torch.ones(3)), ValueError, r"mask of shape \(3,\).*Nothing is broadcast"),
    "(B, 1) mask": (changed(mask=torch.ones(2, 1)), ValueError, r"mask of shape \(2, 1\).*Nothing is broadcast"),
    "(1, T) mask": (changed(mask=torch.ones(1, 3)), ValueError, r"mask of shape \(1, 3\).*Nothing is broadcast"),
    "() mask": (changed(mask=torch.tensor(1)), ValueError, r"mask of shape \(\).*Nothing is broadcast"),
    "(B, 1) rollout": (changed(rollout=torch.zeros(2, 1)), ValueError, r"rollout_logps of shape \(2, 1\)"),
    "longer mask": (changed(mask=torch.ones(2, 5)), ValueError, r"mask of shape \(2, 5\); expected \(2, 3\)"),
    "3-D": (
        Call(*(torch.zeros(2, 3, 7) for _ in range(3))),
        ValueError,
        r"train_logps of shape \(2, 3, 7\); expected \(B, T\).*Select the sampled token",
    ),
    "3-D rollout": (changed(rollout=torch.zeros(2, 3, 1)), ValueError, r"rollout_logps of shape \(2, 3, 1\)"),
    "1-D": (Call(*(torch.zeros(3) for _ in range(3))), ValueError, r"train_logps of shape \(3,\); expected \(B, T\)"),
    "integer train": (
        changed(train=torch.zeros(2, 3).long()),
        TypeError,
        r"train_logps of dtype torch.int64.*token ids",
    ),
    "integer rollout": (changed(rollout=torch.zeros(2, 3).int()), TypeError, r"rollout_logps of dtype torch.int32"),
    "bool train": (changed(train=torch.zeros(2, 3).bool()), TypeError, r"train_logps of dtype torch.bool"),
    "no train": (changed(train=None), TypeError, "train_logps of type NoneType; expected a floating-point tensor"),
    "no rollout": (
        changed(rollout=None),
        TypeError,
        "rollout_logps of type NoneType; expected a floating-point tensor",
    ),
    "no mask": (changed(mask=None), TypeError, "mask"),
}

REFUSED_ONLY_OBSERVING: dict[str, tuple[Call, type[Exception], str]] = {
    "mask longer than ids": (
        changed(options={"token_ids": torch.zeros(2, 2)}),
        ValueError,
        r"token_ids of shape \(2, 2\); expected \(2, 3\)",
    ),
    "ids as a flat list": (changed(options={"token_ids": [1, 2, 3]}), TypeError, "token_ids of type list"),
    "(B, 1) advantages": (
        changed(options={"advantages": torch.zeros(2, 1)}),
        ValueError,
        r"advantages of shape \(2, 1\); expected \(2,\), one for each row",
    ),
    "(T,) advantages": (changed(options={"advantages": torch.zeros(3)}), ValueError, r"advantages of shape \(3,\)"),
    "short advantages": (changed(options={"advantages": [1.0]}), ValueError, r"advantages of shape \(1,\)"),
    "row longer than the mask": (
        changed(rollout=[[-1.0] * 3, [-1.0] * 4]),
        ValueError,
        "a row of 4 log-probabilities; expected at most 3, the mask's width",
    ),
    "fewer rows in a list": (changed(rollout=[[-1.0] * 3]), ValueError, r"rollout_logps of shape \(1, 3\)"),
    "lists with a (B,) mask": (
        Call([[-1.0] * 3] * 2, [[-1.0] * 3] * 2, torch.ones(2)),
        ValueError,
        r"mask of shape \(2,\).*Nothing is broadcast",
    ),
    "a row that is None": (
        changed(rollout=[[-1.0] * 3, None]),
        TypeError,
        "rollout_logps of type list; .*numbers and None",
    ),
    "lists of lists of lists": (
        changed(rollout=[[[-1.0]] * 3] * 2),
        TypeError,
        "rollout_logps of type list; expected .*one list a row",
    ),
    "a flat list": (changed(rollout=[-1.0] * 3), TypeError, "rollout_logps of type list; expected .*one list a row"),
}

EVERY_REFUSED = REFUSED | REFUSED_ONLY_OBSERVING


@pytest.mark.parametrize(("call", "error", "text"), EVERY_REFUSED.values(), ids=EVERY_REFUSED.keys())
def test_summarize_refuses_with_given_and_expected_value(call: Call, error: type[Exception], text: str) -> None:
    """A batch of the wrong shape or type raises an error with the argument, the given and the expected value."""
    with pytest.raises(error, match=rf"got {text}"):
        call.of(rs.summarize, correction=RULE)


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_correct_refuses_with_given_and_expected_value(call: Call, error: type[Exception], text: str) -> None:
    """The correction step refuses the same batches with the same messages."""
    with pytest.raises(error, match=rf"got {text}"):
        call.of(rs.correct, correction=RULE)


@pytest.mark.parametrize("argument", ["train", "rollout", "mask"])
def test_correct_takes_tensors_only(argument: str) -> None:
    """The correction step, whose result enters a loss, takes no lists."""
    with pytest.raises(TypeError, match=f"got {argument}(_logps)? of type list"):
        changed(**{argument: [[0.0] * 3] * 2}).of(rs.correct, correction=RULE)


@pytest.mark.parametrize(("call", "error", "text"), EVERY_REFUSED.values(), ids=EVERY_REFUSED.keys())
def test_a_failed_observation_harms_no_window(call: Call, error: type[Exception], text: str) -> None:
    """A refused batch leaves the window's data unchanged, and is counted in the record's events."""
    recorder, alone = rs.Recorder(correction=RULE), rs.Recorder(correction=RULE)
    for each in (recorder, alone):
        GOOD.of(each.observe)
    for _ in range(2):
        with pytest.raises(error, match=text):
            call.of(recorder.observe)
    for each in (recorder, alone):
        GOOD.of(each.observe)
    record, expected = recorder.flush(step=1), alone.flush(step=1)
    assert record is not None
    assert expected is not None
    assert record.scalars == expected.scalars
    assert record.events == ("observations that failed and are not in this record: 2",)
    assert expected.events == ()
    assert recorder.flush(step=2) is None


def test_a_window_of_failures_alone_is_reported() -> None:
    """A window in which every observation failed gives a record with the failures and no metric."""
    recorder = rs.Recorder(correction=RULE)
    with pytest.raises(ValueError, match="Nothing is broadcast"):
        changed(mask=torch.ones(2)).of(recorder.observe)
    record = recorder.flush(step=1)
    assert record is not None
    assert record.events == ("observations that failed and are not in this record: 1",)
    assert record.scalars == {}


def test_weights_of_the_wrong_shape_are_a_disagreement() -> None:
    """Weights whose shape is not the rule's withhold only the corrected metrics."""
    recorder = rs.Recorder(correction=RULE)
    GOOD.of(recorder.observe, applied=torch.ones(2, 1))
    record = recorder.flush(step=1)
    assert record is not None
    assert f"{OWN}corrected/mean" not in record.scalars
    assert record.scalars[f"{RAW}mean"] == pytest.approx(math.exp(0.1), rel=1e-6)


def test_the_correction_step_needs_a_rule() -> None:
    """Correcting with a recorder without a rule raises an error with a remedy."""
    with pytest.raises(ValueError, match=r"pass correction=Correction\(...\) to Recorder"):
        GOOD.of(rs.Recorder().correct)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)], ids=str)
def test_a_batch_without_elements_is_no_data(rule: rs.Correction | None, shape: tuple[int, int]) -> None:
    """A batch of no rows or no columns is accepted and gives counts of 0 and no metric."""
    zeros = torch.zeros(shape)
    summary = rs.summarize(zeros, zeros, zeros, correction=rule, advantages=torch.zeros(shape[0]))
    metrics = summary.metrics()
    assert metrics.pop(f"{OWN}counts/rows_empty") == shape[0]
    assert metrics.pop(f"{OWN}counts/generations") == 1
    assert metrics.pop(f"{OWN}rows/empty", 1.0) == 1.0
    assert {key.split("/")[1] for key in metrics} == {"counts"}
    assert set(metrics.values()) == {0.0}
    if rule is not None:
        weights = rs.correct(zeros, zeros, zeros, correction=rule)
        assert weights.shape == (shape if rule.level == "token" else (shape[0], 1))


@pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
@pytest.mark.parametrize(
    ("bad", "kind"),
    [(NAN, "nan"), (INF, "inf"), (-INF, "inf"), (1e30, "positive_logp"), (None, "missing")],
    ids=["nan", "inf", "-inf", "1e30", "None"],
)
def test_a_bad_value_is_excluded_and_counted(rule: rs.Correction | None, bad: float | None, kind: str) -> None:
    """A NaN or infinite log-probability is counted and leaves the other tokens' raw metrics unchanged."""
    train = torch.tensor([[-1.0, -2.0, -1.5], [-0.5, -0.25, -0.75]])
    rollout = (train - 0.125).tolist()
    rollout[0][1] = bad
    metrics = rs.summarize(train, rollout, torch.ones(2, 3), correction=rule).metrics()
    assert metrics[f"{OWN}counts/{kind}"] == 1
    assert metrics[f"{OWN}counts/tokens"] == 5
    assert metrics[f"{OWN}token/raw/min"] == metrics[f"{OWN}token/raw/max"] == math.exp(0.125)
    assert metrics[f"{OWN}sequence/log_ratio/min"] == 0.25
    assert metrics[f"{OWN}tokens/invalid"] == pytest.approx(1 / 6)
    assert all(math.isfinite(value) for value in metrics.values())


def test_absurd_but_finite_log_probabilities_overflow() -> None:
    """Uninitialised memory as log-probabilities is excluded if positive, and else counted as overflow."""
    train = torch.full((1, 4), -0.3)
    rollout = torch.tensor([[-0.3, 1.2e30, -7.7e8, -0.2]])
    metrics = rs.summarize(train, rollout, torch.ones(1, 4), correction=RULE).metrics()
    assert metrics[f"{OWN}counts/positive_logp"] == 1
    assert metrics[f"{OWN}counts/overflow"] == 1
    assert metrics[f"{OWN}counts/tokens"] == 3
    assert f"{RAW}mean" not in metrics
    assert metrics[f"{OWN}corrected/mean"] == pytest.approx((1.0 + 1.2 + math.exp(-0.1)) / 3, rel=1e-6)
    assert metrics[f"{OWN}raw/p50"] == pytest.approx(1.0)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_with_a_gradient(rule: rs.Correction | None, dtype: torch.dtype) -> None:
    """Log-probabilities of any float dtype, with or without a gradient, equal their float32 values."""
    train = torch.tensor([[-0.7, -1.3, -0.2]], dtype=dtype, requires_grad=True)
    rollout = torch.tensor([[-0.6, -1.4, -0.3]], dtype=dtype)
    mask = torch.ones(1, 3)
    got = rs.summarize(train, rollout, mask, correction=rule)
    assert got == rs.summarize(train.detach().float(), rollout.float(), mask, correction=rule)


@pytest.mark.parametrize("rule", [rule for rule in EVERY_RULE if rule is not None], ids=str)
@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1.0, 1e30, -1e30])
def test_a_recorder_agrees_with_its_own_weights(rule: rs.Correction, bad: float) -> None:
    """Weights of the recorder's own correction step never count as disagreements, for any batch."""
    rollout = torch.full((2, 3), -1.0)
    rollout[0, 1] = bad
    recorder = rs.Recorder(correction=rule)
    recorder.correct(torch.full((2, 3), -0.9), rollout, torch.ones(2, 3))
    record = recorder.flush(step=1)
    assert record is not None
    assert record.events == ()
    assert f"{OWN}corrected/mean" in record.scalars
