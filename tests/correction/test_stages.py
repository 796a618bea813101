"""General rules: stages against an oracle, the laws of their account, and what they refuse."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ratioscope as rs
from benchmarks.counting import Counting
from ratioscope.correction.stages import CLASSES, STAGE_COUNTS
from ratioscope.state.slots import MAXIMA
from tests.metrics.test_vectors import random_batch, summary_of
from tests.state.test_laws import HUGE, LOG_RATIOS, Rows, assert_same_data, batches
from tests.summary.test_no_sync import observe_everything, tensors
from tests.support.reference import Batch
from tests.support.reference_stages import PlainRule, PlainStage, account, weights_of

OWN = "ratioscope/"
RATIO_LEVELS = ("token", "product", "geometric", "max", "segment", "any")
OTHER_LEVELS = ("token", "sum", "mean", "max", "segment", "any")
OTHERS = (
    "k1",
    "k2",
    "k3",
    "reversed_k3",
    "binary_kl",
    "probability_difference",
    "abs_probability_difference",
    "total_variation",
    "squared_gap",
    "mult_prob_error",
)
SIDES = ("both", "positive", "negative", "outward")
SOURCE = {"token": "token", "sequence": "product", "geometric": "geometric", "segment": "segment"}


@st.composite
def stages(draw: st.DrawFn, weight: str) -> PlainStage:
    """Any stage that goes with a weight, with bounds that random batches cross."""
    action = draw(st.sampled_from(["zero", "drop"] if weight == "one" else ["truncate", "zero", "drop"]))
    low, high = draw(st.sampled_from([(0.83, None), (None, 1.17), (0.83, 1.17), (0.4, 2.3)]))
    if action == "truncate":
        return PlainStage("ratio", SOURCE[weight], action, low, high)
    name = draw(st.sampled_from(["ratio", *OTHERS]))
    level = draw(st.sampled_from(RATIO_LEVELS if name == "ratio" else OTHER_LEVELS))
    if name != "ratio":
        size = draw(st.sampled_from([0.013, 0.11, 0.7]))
        above = 1.0 if name == "mult_prob_error" else 0.0
        signed = name in {"k1", "probability_difference"}
        low, high = draw(st.sampled_from([(None, above + size), (-size if signed else None, above + size)]))
    return PlainStage(name, level, action, low, high, draw(st.sampled_from(SIDES)))


@st.composite
def rules(draw: st.DrawFn, *, normalize: bool = True) -> PlainRule:
    """Any general rule."""
    weight = draw(st.sampled_from(["one", *SOURCE]))
    chosen = draw(st.lists(stages(weight), max_size=4))
    clamp = draw(st.sampled_from([None, 0.21, 20.0]))
    return PlainRule(tuple(chosen), weight, clamp, normalize and draw(st.booleans()))


def rule_of(plain: PlainRule) -> rs.Correction:
    """The package's rule."""
    made: list[Any] = [rs.Stage(**vars(stage)) for stage in plain.stages]
    return rs.Correction.of(
        made,
        weight=plain.weight,  # type: ignore[arg-type]
        log_clamp=plain.log_clamp,
        batch_normalize=plain.batch_normalize,
    )


@settings(max_examples=40)
@given(plain=rules(), seed=st.integers(0, 10**6), spread=st.sampled_from([0.02, 0.3]), bad=st.booleans())
def test_any_rule_gives_the_oracles_numbers(plain: PlainRule, seed: int, spread: float, bad: bool) -> None:
    """Every statistic that stages have a part in is the oracle's, for any rule on any two merged batches."""
    drawn = [random_batch(seed + k, spread=spread, bad=bad, rows=3) for k in (0, 1)]
    rule = rule_of(plain)
    got = summary_of(drawn[0], rule).merge(summary_of(drawn[1], rule)).metrics()
    want = account(plain, *drawn)
    own = ("/stage/", "/safety_clamp/", "/modified/", "/corrected/", "/ess/corrected")
    mine = {key for key in got if any(part in key for part in own) and "_advantage" not in key}
    assert mine - {f"{OWN}token/ess/corrected"} - {key for key in mine if "length" in key} == set(want)
    for key, value in want.items():
        assert got[key] == pytest.approx(value, rel=1e-5, abs=1e-9), key
    if want:
        parts = [got[f"{OWN}modified/{name}"] for name in CLASSES[1:]]
        assert math.fsum(parts) == pytest.approx(got[f"{OWN}modified/fraction"])


@settings(max_examples=25)
@given(plain=rules(normalize=False), seed=st.integers(0, 10**6))
def test_any_rule_gives_the_oracles_weights(plain: PlainRule, seed: int) -> None:
    """Each token's weight, and whether the loss divides by it, is the oracle's."""
    batch = random_batch(seed, spread=0.3, bad=True, rows=4)
    arrays = [torch.from_numpy(array) for array in (batch.train, batch.rollout, batch.mask)]
    advantages = torch.from_numpy(batch.advantages)
    done = rs.weigh(*arrays, correction=rule_of(plain), advantages=advantages)
    valid = rs.Observation.of(*arrays).valid
    weights, kept = weights_of(plain, batch)
    np.testing.assert_allclose(done.weights[valid].numpy(), weights, rtol=1e-5)
    assert done.mask[valid].tolist() == kept.tolist()
    assert torch.equal(done.mask & ~valid, arrays[2] & ~valid)


def test_normalised_weights_have_a_mean_of_one() -> None:
    """Where the rule normalises, the weights of a batch have a mean of 1 before anything is dropped."""
    train, rollout, mask = torch.randn(4, 9) * 0.3 - 1, torch.full((4, 9), -1.0), torch.ones(4, 9)
    rule = rs.Correction.of([rs.Stage("ratio", "token", "truncate", upper=1.1)], batch_normalize=True)
    assert rs.correct(train, rollout, mask, correction=rule).mean().item() == pytest.approx(1.0)


RULES = (
    rs.Correction.of(
        [
            rs.Stage("ratio", "any", "drop", lower=1e-3, upper=50.0),
            rs.Stage("k3", "max", "zero", upper=0.4),
            rs.Stage("probability_difference", "token", "drop", lower=-0.2, upper=0.2, advantage="outward"),
            rs.Stage("ratio", "product", "truncate", lower=0.5, upper=2.0),
        ],
        weight="sequence",
        log_clamp=20.0,
    ),
    rs.Correction.of([rs.Stage("ratio", "segment", "truncate", upper=1.2)], weight="segment", batch_normalize=True),
    rs.Correction.of([rs.Stage("squared_gap", "mean", "drop", upper=0.04)], weight="one"),
    rs.Correction.of([], weight="geometric", log_clamp=0.1),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.weight)
@settings(max_examples=8)
@given(batch=batches(log_ratios=LOG_RATIOS | HUGE), padding=st.integers(0, 20), cut=st.integers(0, 5), data=st.data())
def test_the_account_is_of_rows_alone(
    rule: rs.Correction, batch: Rows, padding: int, cut: int, data: st.DataObject
) -> None:
    """Rows in any order, split in any way, trimmed and padded, give the same account; classes add up to all tokens."""
    order = data.draw(st.permutations(range(len(batch.mask))), label="order of rows")
    merged = rs.RatioSummary.empty(rule)
    for part, width in ((order[:cut], padding), (order[cut:], 0)):
        if part:
            merged = batch.part(part, padding=width, trimmed=True).summary(rule).merge(merged)
    whole = batch.summary(rule)
    assert_same_data(merged, whole)
    assert sum(whole.count(f"class/{name}") for name in CLASSES) == whole.count("token/n")
    assert whole.count("corrected/n") + whole.count("dropped/n") == whole.count("token/n")
    assert whole.merge(rs.RatioSummary.empty(rule)) == whole


@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.weight)
def test_stages_never_wait_for_the_device(rule: rs.Correction) -> None:
    """Observing and correcting by stages makes no operation that waits, needs no data and keeps no graph."""
    logps, advantages = torch.full((3, 5), -1.0), torch.ones(3)
    with Counting() as watch:
        observe_everything(_without_advantage(rule))
        rs.summarize(logps, logps, torch.ones(3, 5), correction=rule, advantages=advantages)
        rs.weigh(logps, logps, torch.ones(3, 5), correction=rule, advantages=advantages)
    assert not watch.waits
    for summary in observe_everything(_without_advantage(rule), device="meta"):
        assert {state.device.type for state in tensors(summary)} == {"meta"}
    for summary in observe_everything(_without_advantage(rule), requires_grad=True):
        assert not any(state.requires_grad for state in tensors(summary))


def _without_advantage(rule: rs.Correction) -> rs.Correction:
    """The same for batches without advantages."""
    kept = [stage for stage in rule.stages if stage.advantage == "both"]
    return rs.Correction.of(kept, weight=rule.weight, log_clamp=rule.log_clamp, batch_normalize=rule.batch_normalize)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 5)])
def test_nothing_to_weigh_is_no_error(shape: tuple[int, int]) -> None:
    """Batches without rows, columns or valid tokens have an account of nothing."""
    nothing = torch.zeros(shape)
    for rule in RULES:
        summary = rs.summarize(nothing, nothing, nothing, correction=rule, advantages=torch.zeros(shape[0]))
        assert summary.count("corrected/n") == 0
        assert not any("/stage/" in key for key in summary.metrics())


def test_the_short_form_is_one_stage() -> None:
    """A token rule of the short form and of one stage give the same weights to the bit and the same statistics."""
    batch = random_batch(7, spread=0.4, bad=False, rows=6)
    for action, of_stage in (("truncate", "truncate"), ("mask", "zero")):
        short = rs.Correction("token", action, lower=0.8, upper=1.2)  # type: ignore[arg-type]
        general = rs.Correction.of([rs.Stage("ratio", "token", of_stage, lower=0.8, upper=1.2)])  # type: ignore[arg-type]
        arrays = [torch.from_numpy(array) for array in (batch.train, batch.rollout, batch.mask)]
        valid = torch.from_numpy(batch.mask)
        weights = [rs.correct(*arrays, correction=rule)[valid] for rule in (short, general)]
        assert torch.equal(*weights)
        one, other = (summary_of(batch, rule).metrics() for rule in (short, general))
        assert one == pytest.approx({key: other[key] for key in one})


def test_an_earlier_stage_hides_nothing() -> None:
    """A row that a veto drops is still counted by the truncation that comes after it."""
    rule = rs.Correction.of(
        [rs.Stage("ratio", "any", "drop", upper=100.0), rs.Stage("ratio", "token", "truncate", upper=2.0)]
    )
    train = torch.tensor([[5.0, 1.0], [0.0, 1.0]])
    summary = rs.summarize(train, torch.zeros(2, 2), torch.ones(2, 2), correction=rule)
    metrics = summary.metrics()
    assert metrics[f"{OWN}stage/1/high"] == 0.5
    assert metrics[f"{OWN}stage/2/high"] == 0.75
    assert metrics[f"{OWN}modified/vetoed"] == 0.5
    assert metrics[f"{OWN}modified/truncated_high"] == 0.25
    assert metrics[f"{OWN}corrected/mean"] == 1.5


@pytest.mark.parametrize(("action", "mean", "ess"), [("zero", 0.75, 0.5625), ("drop", 1.5, 0.9)])
def test_zeroing_keeps_the_denominator_and_dropping_does_not(action: Any, mean: float, ess: float) -> None:
    """Zeroed tokens are in the mean weight and in the effective sample size; dropped ones are in neither."""
    ratios = torch.tensor([[1.0, 2.0, 8.0, 8.0]])
    rule = rs.Correction.of([rs.Stage("ratio", "token", action, upper=4.0)])
    metrics = rs.summarize(ratios.log(), torch.zeros(1, 4), torch.ones(1, 4), correction=rule).metrics()
    assert metrics[f"{OWN}corrected/mean"] == pytest.approx(mean)
    assert metrics[f"{OWN}ess/corrected"] == pytest.approx(9 / (4 * 5) if action == "zero" else 9 / (2 * 5))
    assert metrics[f"{OWN}ess/corrected"] == pytest.approx(ess * (0.8 if action == "zero" else 1.0))
    assert metrics[f"{OWN}modified/fraction"] == 0.5


def test_weights_that_the_trainer_used_are_checked() -> None:
    """Weights that differ from the rule's by float32's rounding pass; others withhold what is said of weights."""
    train, rollout, mask = torch.randn(3, 5) * 0.2 - 1, torch.full((3, 5), -1.0), torch.ones(3, 5)
    rule = rs.Correction.of([rs.Stage("ratio", "product", "truncate", upper=1.1)], weight="sequence")
    weights = rs.correct(train, rollout, mask, correction=rule)
    observation = rs.Observation.of(train, rollout, mask)
    for factor, shape, count in ((1 + 1e-6, (3, 5), 0), (1 + 1e-6, (3, 1), 0), (1.01, (3, 5), 15), (1.0, (3, 4), 15)):
        applied = weights[:, : shape[1]] * factor
        summary = rs.RatioSummary.observe(observation, correction=rule, applied=applied)
        assert summary.count("disagreements") == count
        assert (f"{OWN}corrected/mean" in summary.metrics()) == (count == 0)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.weight)
def test_rules_survive_json_and_name_themselves(rule: rs.Correction) -> None:
    """A general rule written as strict JSON and read back is the same rule, and says in words what it does."""
    again = rs.Correction.from_json(json.loads(json.dumps(rule.to_json(), allow_nan=False)))
    assert again == rule
    assert hash(again.stages) == hash(rule.stages)
    assert all(stage.words() in rule.words() for stage in rule.stages)


def test_the_short_forms_json_is_as_before() -> None:
    """A rule of the short form has the five fields in its JSON that it always had."""
    data = rs.Correction("token", "mask", upper=3.0).to_json()
    assert list(data) == ["level", "action", "lower", "upper", "sources"]
    assert rs.Correction.from_json(data) == rs.Correction("token", "mask", upper=3.0)


def test_the_short_form_counts_no_stage() -> None:
    """Under the short form no slot of stages is used, and no statistic of theirs is there."""
    summary = summary_of(random_batch(1, spread=0.5, bad=True), rs.Correction("token", "mask", upper=1.1))
    assert sum(summary.count(name) for name in STAGE_COUNTS) == 0
    assert not [key for key in summary.metrics() if "/stage/" in key or "/safety_clamp/" in key]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (("ratios", "token", "zero", None, 2.0), "Did you mean 'ratio'"),
        (("ratio", "sum", "zero", None, 2.0), "got level='sum' of statistic='ratio'"),
        (("k3", "product", "zero", None, 2.0), "got level='product' of statistic='k3'"),
        (("ratio", "token", "mask", None, 2.0), "got action='mask'"),
        (("ratio", "token", "zero"), "got a stage without a bound"),
        (("ratio", "token", "zero", 3.0, 2.0), "expected lower <= upper"),
        (("k2", "token", "drop", None, -1.0), "got upper=-1.0 of k2"),
        (("ratio", "token", "drop", None, math.inf), "expected a finite number"),
        (("ratio", "token", "drop", None, True), "expected a finite number"),
        (("k3", "token", "truncate", None, 1.0), "got a truncation of k3"),
        (("ratio", "any", "truncate", None, 1.0), "got a truncation of ratio at level 'any'"),
        (("ratio", "token", "truncate", None, 1.0, "positive"), "got a truncation by advantage"),
        (("ratio", "token", "zero", None, 1.0, "up"), "got advantage='up'"),
    ],
)
def test_a_stage_that_makes_no_sense_is_refused(fields: tuple[Any, ...], says: str) -> None:
    """A stage says what is wrong with it, what is expected, and which name is near."""
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        rs.Stage(*fields)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weight": "geo"}, "got weight='geo'"),
        ({"log_clamp": 0.0}, "got log_clamp=0.0"),
        ({"stages": [rs.Stage("ratio", "token", "zero", upper=2.0)] * 5}, "got 5 stages; expected at most 4"),
        (
            {"stages": [rs.Stage("ratio", "token", "truncate", upper=2.0)], "weight": "sequence"},
            "got a truncation at level 'token' of weight='sequence'; expected level='product'",
        ),
        (
            {"stages": [rs.Stage("ratio", "token", "truncate", upper=2.0)], "weight": "one"},
            "expected no truncation, since the weight is 1",
        ),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(options: dict[str, Any], says: str) -> None:
    """A general rule says what is wrong with it, and what is expected."""
    with pytest.raises(ValueError, match=says):
        rs.Correction.of(**{"stages": [], **options})
    with pytest.raises(ValueError, match=r"got action='stages'.*Correction\.of makes a rule of stages"):
        rs.Correction("sequence", "stages", upper=2.0)


def test_a_rule_by_advantage_needs_advantages() -> None:
    """A stage that goes by the advantage says so where a batch has none, and a recorder counts the failure."""
    rule = rs.Correction.of([rs.Stage("k1", "mean", "zero", upper=0.1, advantage="negative")])
    logps = torch.full((2, 3), -1.0)
    with pytest.raises(ValueError, match="got no advantages; expected one for each row, since a stage zeroes rows"):
        rs.correct(logps, logps, torch.ones(2, 3), correction=rule)
    recorder = rs.Recorder(correction=rule)
    with pytest.raises(ValueError, match="got no advantages"):
        recorder.observe(logps, logps, torch.ones(2, 3))
    recorder.correct(logps, logps, torch.ones(2, 3), advantages=torch.tensor([1.0, -1.0]))
    record = recorder.flush(step=1)
    assert record is not None
    assert record.summary.count("errors") == 1
    assert rs.Record.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_sweep_refuses_a_rule_of_stages() -> None:
    """No histogram of one level holds what stages decide on, and the sweep says so."""
    from ratioscope.sweep.outcome import recorded, sweep_view

    rule = rs.Correction.of([rs.Stage("k3", "token", "drop", upper=0.1)])
    view = summary_of(Batch(*(np.full((1, 2), -1.0, np.float32),) * 2, np.ones((1, 2), np.bool_)), rule).view()
    assert recorded(view) is None
    with pytest.raises(ValueError, match="got a rule of stages"):
        sweep_view(view, rule)


def test_the_state_stays_small() -> None:
    """Stages add less than a hundredth to a packed summary, whatever the rule is."""
    assert len(STAGE_COUNTS) + 3 < 0.01 * rs.RatioSummary.empty().pack().numel()
    assert len({rs.RatioSummary.empty(rule).pack().numel() for rule in (*RULES, None)}) == 1
    assert len(MAXIMA) == rs.RatioSummary.empty().maxima.numel()
