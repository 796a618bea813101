"""``ratioscope sweep``, compared with rules applied directly to the raw ratios."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

import ratioscope as rs
from ratioscope.cli.main import main
from ratioscope.correction.bounds import MODES
from ratioscope.journal.reader import JournalReader
from ratioscope.runs import read
from ratioscope.runs.pooled import PooledRun
from ratioscope.state import histogram
from ratioscope.sweep.bounds import Bounded
from ratioscope.sweep.outcome import Outcome, recorded, sweep, sweep_view
from ratioscope.sweep.recommend import advise, grid, pool_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ROUNDING = 1e-11  # of sums in another order
NUMBERS = ("modified", "below", "above", "mean", "ess")


@dataclass(frozen=True)
class Truth:
    """Effect of a rule, computed from every single log-ratio."""

    modified: float
    below: float
    above: float
    mean: float
    ess: float | None


def truth(d: NDArray[np.float64], rule: rs.Correction) -> Truth:
    """Applies a rule directly, in float64."""
    ratio = np.exp(d)
    low = d < math.log(rule.lower) if rule.lower else np.zeros(d.size, bool)
    high = d > (math.log(rule.upper) if rule.upper else -math.inf) if rule.upper is not None else np.zeros(d.size, bool)
    clamped = np.where(low, rule.lower or 0.0, np.where(high, rule.upper or 0.0, ratio))
    weights = np.where(low | high, 0.0, ratio) if rule.action == "mask" else clamped
    square = float(np.sum(weights**2))
    ess = float(weights.sum()) ** 2 / (d.size * square) if square else None
    return Truth(float(np.mean(low | high)), float(low.mean()), float(high.mean()), float(weights.mean()), ess)


def swept(values: NDArray[np.float32], rule: rs.Correction, *, sums: bool = True) -> Outcome:
    """Outcome of a rule from the histogram, the extremes and, if requested, the sums."""
    tensor = torch.from_numpy(values)
    counts = histogram.count([(tensor, torch.ones_like(tensor, dtype=torch.bool))])[0].numpy()
    d = values.astype(np.float64)
    relative = np.exp(d - d.max())
    w, w2 = (float(relative.sum()), float((relative**2).sum())) if sums else (None, None)
    return sweep(counts, rule, minimum=float(d.min()), maximum=float(d.max()), w=w, w2=w2)


def assert_inside(outcome: Outcome, expected: Truth) -> None:
    """Asserts that every interval holds the true number and the reported value."""
    for name in NUMBERS:
        found, true = getattr(outcome, name), getattr(expected, name)
        if found is None:
            assert name == "ess"
            assert true is None
            continue
        assert found.low <= found.value <= found.high, name
        if true is not None:
            slack = ROUNDING * abs(true)
            assert found.low - slack <= true <= found.high + slack, (name, found, true)


def heavy(n: int, scale: float, seed: int = 0) -> NDArray[np.float32]:
    """Log-ratios with heavy tails."""
    return (scale * np.random.default_rng(seed).standard_t(3, n)).astype(np.float32)


def mode(level_action: str, lower: float | None, upper: float | None) -> rs.Correction:
    """Rule by TRL's name of its mode."""
    level, action = level_action.split("_")
    return rs.Correction(level, action, lower, upper)  # type: ignore[arg-type]


LOG_RATIOS = st.builds(
    lambda sign, exponent: float(np.float32(sign * 10.0**exponent)), st.sampled_from([-1, 1]), st.floats(-8.0, 1.9)
)
BELOW = st.builds(lambda exponent: float(np.float32(-(10.0**exponent))), st.floats(2.0, 5.0))
BOUNDS = st.none() | st.floats(1e-6, 1e6) | LOG_RATIOS.map(math.exp).filter(lambda bound: 0.0 < bound < 1e38)


@given(
    values=st.lists(LOG_RATIOS | st.just(0.0) | BELOW, min_size=1, max_size=30),
    lower=BOUNDS,
    upper=BOUNDS,
    action=st.sampled_from(["truncate", "mask"]),
    sums=st.booleans(),
)
@example(values=[-1e5, 0.1], lower=None, upper=1.05, action="mask", sums=True)
@example(values=[0.6931, 0.6932], lower=1.99999, upper=2.00001, action="mask", sums=False)
@example(
    values=[0.0, *[3.1622776985168457] * 2], lower=math.exp(3.1622776985168457), upper=None, action="mask", sums=True
)
@example(values=[0.5, 0.5], lower=None, upper=0.0, action="truncate", sums=True)
def test_interval_holds_the_true_number(
    values: list[float], lower: float | None, upper: float | None, action: Any, sums: bool
) -> None:
    """For any log-ratios and bounds, every number lies in its interval, with and without the sums of raw weights.

    Excluded, as the module states: a ratio equal to a bound that is a bucket's edge.
    """
    if lower is not None and upper is not None and lower >= upper:
        lower, upper = (upper, lower) if upper < lower else (None, upper)
    if lower is None and upper is None:
        action = "mask"
    rule = rs.Correction("token", action, lower, upper)
    d = np.asarray(values, dtype=np.float32)
    edges = d[np.isin(d, histogram.BOUNDARIES)]
    assume(not any(np.isclose(edges, math.log(bound), rtol=0.0, atol=1e-15).any() for bound in (lower, upper) if bound))
    assert_inside(swept(d, rule, sums=sums), truth(d.astype(np.float64), rule))


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize(("lower", "upper"), [(None, 2.0), (0.5, None), (0.8, 1.3), (1.02, 1.03), (0.0, 3.0)])
def test_value_is_near_and_the_interval_narrow(name: str, lower: float | None, upper: float | None) -> None:
    """With many log-ratios the interval is narrow and the value far more exact than it, in all four modes."""
    values = heavy(50_000, 0.05)
    rule = mode(name, lower, upper)
    outcome, expected = swept(values, rule), truth(values.astype(np.float64), rule)
    assert_inside(outcome, expected)
    for number in NUMBERS:
        found, true = getattr(outcome, number), getattr(expected, number)
        assert abs(found.value - true) < 4e-4, number
        assert found.error < 0.04, number


@pytest.mark.parametrize("action", ["truncate", "mask"])
@pytest.mark.parametrize("edge", [(k, e) for k in (32, 40, 63) for e in (-12, -4, -1)])
def test_counts_are_exact_at_bucket_edges(action: Any, edge: tuple[int, int]) -> None:
    """Bounds whose logarithms are k/32 * 2**e, up to the rounding of exp and log, give exact counts."""
    bound = edge[0] / 32 * 2.0 ** edge[1]
    values = heavy(20_000, 1.5 * bound, seed=edge[0])
    values = values[np.abs(values) != np.float32(bound)]
    rule = rs.Correction("token", action, math.exp(-bound), math.exp(bound))
    outcome, d = swept(values, rule), values.astype(np.float64)
    for number, outside in (("below", d < -bound), ("above", d > bound), ("modified", np.abs(d) > bound)):
        found = getattr(outcome, number)
        assert found.error == 0.0, number
        assert found.value == float(outside.mean()), number
    assert outcome.above is not None
    assert 0.0 < outcome.above.value < 0.5


def test_a_bound_beyond_every_ratio_changes_nothing() -> None:
    """Without a ratio outside, mean and ESS are the raw ones to the last digits, with an error of 0."""
    values = heavy(1000, 0.01)
    rule = rs.Correction("token", "truncate", upper=float(np.exp(values.max(), dtype=np.float64)) * 1.0001)
    outcome, expected = swept(values, rule), truth(values.astype(np.float64), rule)
    assert outcome.modified == Bounded(0.0, 0.0, 0.0)
    assert outcome.mean is not None
    assert outcome.ess is not None
    assert outcome.mean.value == pytest.approx(expected.mean, rel=1e-12)
    assert outcome.ess.value == pytest.approx(expected.ess, rel=1e-12)
    assert outcome.mean.error < 1e-15
    assert outcome.ess.error < 1e-15


def test_infinite_weights_have_no_mean() -> None:
    """A ratio that float32 cannot hold is masked or clamped by a cap; without a cap, mean and ESS are absent."""
    values = np.array([0.0, 0.01, 90.0, 2000.0], dtype=np.float32)
    capped = swept(values, rs.Correction("token", "truncate", upper=2.0))
    assert capped.mean is not None
    assert capped.mean.value == pytest.approx((1.0 + math.exp(0.01) + 4.0) / 4, rel=1e-3)
    masked = swept(values, rs.Correction("token", "mask", upper=2.0))
    assert masked.ess is not None
    assert masked.ess.value == pytest.approx(0.5, rel=1e-3)
    uncapped = swept(values, rs.Correction("token", "truncate", lower=0.5))
    assert (uncapped.mean, uncapped.ess) == (None, None)
    assert uncapped.modified == Bounded(0.0, 0.0, 0.0)


def test_all_masked_has_no_ess() -> None:
    """With all ratios masked the mean is 0 and the ESS is absent."""
    outcome = swept(np.array([1.0, 1.1], dtype=np.float32), rs.Correction("sequence", "mask", upper=1.0001))
    assert outcome.mean == Bounded(0.0, 0.0, 0.0)
    assert outcome.ess is None


@pytest.mark.parametrize("rollout", [[[math.nan, math.nan]], [[-1.0, -1.0]]], ids=["only NaN", "all masked out"])
def test_no_data_is_absent(rollout: list[list[float]]) -> None:
    """A window without a valid token gives no number for any rule."""
    mask = torch.full((1, 2), math.isnan(rollout[0][0]))
    view = rs.summarize(torch.full((1, 2), -1.0), torch.tensor(rollout), mask).view()
    for name in MODES:
        rule = mode(name, 0.5, 2.0)
        assert sweep_view(view, rule) == Outcome(rule, 0)


@dataclass(frozen=True)
class Run:
    """A journal, and the log-ratios that it was recorded from."""

    folder: Path
    token: NDArray[np.float64]
    sequence: NDArray[np.float64]


OWN = rs.Correction("token", "truncate", lower=0.6, upper=1.2)


def record(folder: Path, rule: rs.Correction | None = OWN, *, steps: int = 5, scale: float = 0.1) -> Run:
    """Records a run with an evaluation, which sweeps must ignore."""
    torch.manual_seed(3)
    tokens, rows = [], []
    with rs.Recorder(report_to="none", correction=rule, output_dir=folder) as recorder:
        for step in range(1, steps + 1):
            train = -torch.rand(8, 40) - 1.0
            rollout = torch.clamp(train - scale * torch.distributions.StudentT(3.0).sample((8, 40)), max=-1e-3)
            recorder.observe(train, rollout, torch.ones(8, 40))
            recorder.flush(step=step)
            d = (train - rollout).double().numpy()
            tokens.append(d.ravel())
            rows.append(d.sum(axis=1))
        recorder.observe(train + 5.0, train, torch.ones(8, 40), split="eval")
        recorder.flush(step=steps, split="eval")
    return Run(folder, np.concatenate(tokens), np.concatenate(rows))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Stored run with a rule."""
    return record(tmp_path_factory.mktemp("run"))


def swept_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """Parsed output of ``ratioscope sweep --json``."""
    assert main(["sweep", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", MODES)
def test_journal_agrees_with_the_raw_ratios(stored: Run, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Over all windows of a real journal, every interval holds the number from the raw ratios, in all four modes."""
    d = stored.token if name.startswith("token") else stored.sequence
    found = swept_json(capsys, stored.folder, "--modes", name, "--clip-max", "1.05:4,none", "--clip-min", "0.5,none")
    outcomes = [one for one in found["outcomes"] if not one["own"]]
    assert len(outcomes) == 19  # 10 x 2 without the pair of none
    for one in outcomes:
        expected = truth(d, mode(name, one["lower"], one["upper"]))
        assert one["n"] == d.size
        for number in NUMBERS:
            true = getattr(expected, number)
            assert one[number]["low"] - 1e-6 <= true <= one[number]["high"] + 1e-6, (number, one)


def test_own_rule_has_the_counts_of_the_training(stored: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The run's own rule is included, marked, and has the exact counts of the training, inside the interval."""
    found = swept_json(capsys, stored.folder, "--clip-max", "2,3")
    (own,) = [one for one in found["outcomes"] if one["own"]]
    assert (own["mode"], own["lower"], own["upper"]) == ("token_truncate", 0.6, 1.2)
    ratio = np.exp(stored.token)
    assert own["modified"]["low"] == own["modified"]["high"] == np.mean((ratio < 0.6) | (ratio > 1.2))
    assert own["mean"]["value"] == pytest.approx(np.clip(ratio, 0.6, 1.2).mean(), rel=1e-6)
    assert (found["windows"], found["steps"], found["own"]["upper"]) == (5, [1, 5], 1.2)

    with JournalReader(stored.folder) as journal:
        pooled = pool_of(PooledRun.from_records(journal.records()))
    assert pooled is not None
    counted, computed = recorded(pooled.view), sweep_view(pooled.view, OWN)
    assert counted is not None
    for number in NUMBERS:
        exact, bounded = getattr(counted, number), getattr(computed, number)
        assert bounded.low - 1e-6 <= exact.value <= bounded.high + 1e-6, number


def test_steps_and_single_windows(stored: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """A range of steps includes both ends; with --per-step each window has the outcomes of its own ratios."""
    found = swept_json(capsys, stored.folder, "--steps", "2:4", "--per-step", "--clip-max", "1.3")
    assert (found["windows"], found["steps"]) == (3, [2, 4])
    assert [each["step"] for each in found["per_step"]] == [2, 3, 4]
    for index, each in enumerate(found["per_step"], start=1):
        (one,) = [one for one in each["outcomes"] if not one["own"]]
        expected = truth(stored.token.reshape(5, -1)[index], mode(one["mode"], one["lower"], one["upper"]))
        assert one["modified"]["low"] <= expected.modified <= one["modified"]["high"]
    assert main(["sweep", str(stored.folder), "--steps", "7:"]) == 1
    assert "steps from 7; expected windows of training, and there is none" in capsys.readouterr().err


def test_rules_that_change_are_pooled_as_raw_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Windows of different rules are pooled; the last rule is the run's own and computed like the others."""
    first = record(tmp_path, rs.Correction("token", "mask", upper=3.0), steps=2)
    later = record(tmp_path, rs.Correction("token", "mask", upper=1.5), steps=2)
    # The second attempt repeats steps 1 and 2 and replaces them; a third attempt continues with another rule.
    torch.manual_seed(4)
    logps = -torch.rand(4, 40) - 1.0
    with rs.Recorder(report_to="none", correction=OWN, output_dir=tmp_path) as recorder:
        recorder.observe(logps, logps - 0.2, torch.ones(4, 40))
        recorder.flush(step=9)
    assert first.token.size == later.token.size
    found = swept_json(capsys, tmp_path, "--clip-max", "1.1")
    assert found["own_rules"] == 2
    assert found["own"]["upper"] == 1.2
    d = np.concatenate([later.token, np.full(160, 0.2)])
    for one in found["outcomes"]:
        assert one["n"] == d.size
        expected = truth(d, mode(one["mode"], one["lower"], one["upper"]))
        assert one["modified"]["low"] <= expected.modified <= one["modified"]["high"]


def outcome_of(upper: float, modified: float, ess: float, error: float = 0.0) -> Outcome:
    """Outcome of a cap, with numbers known up to an error."""
    share, size = (Bounded(value, value - error, value + error) for value in (modified, ess))
    return Outcome(rs.Correction("token", "mask", upper=upper), 100, share, share, share, size, size)


def test_recommendation_is_the_tightest_cap_that_surely_fits() -> None:
    """The tightest cap certainly within both limits is recommended; one that may be outside is not."""
    outcomes = [outcome_of(5.0, 0.001, 0.95), outcome_of(2.0, 0.003, 0.97), outcome_of(1.1, 0.3, 0.99)]
    advice = advise(outcomes)
    assert advice.outcome is outcomes[1]
    assert advice.text.startswith("Cap 2 keeps ESS at 0.97 and changes 0.3 % of tokens: the tightest of those swept")
    doubtful = [*outcomes, outcome_of(1.5, 0.009, 0.95, error=0.002)]
    assert advise(doubtful).outcome is outcomes[1]
    assert advise(outcomes, max_modified=0.3).outcome is outcomes[2]
    assert advise(outcomes, max_modified=0.002).outcome is outcomes[0]
    assert advise(outcomes, min_ess=0.98).outcome is None


def test_without_a_cap_that_fits_the_trade_off_is_named() -> None:
    """Without a fitting cap, the text compares the cap that changes least with the one that keeps most ESS."""
    text = advise([outcome_of(5.0, 0.02, 0.6), outcome_of(1.1, 0.4, 0.95)]).text
    assert text.startswith("None of the swept rules changes at most 1 % of tokens and keeps ESS at 0.9 or more.")
    assert "Cap 5 changes least, 2 %, with ESS 0.6; cap 1.1 keeps most ESS, 0.95, but changes 40 %." in text
    assert advise([Outcome(OWN, 0)]).outcome is None


def test_grid_has_only_rules() -> None:
    """Pairs of bounds that make no rule are left out, and the tightest rule comes first."""
    rules = grid("token_truncate", lowers=[None, 0.5, 2.0], uppers=[3.0, 1.5, None], own=OWN)
    bounds = [(rule.lower, rule.upper) for rule in rules]
    expected = [(0.6, 1.2), (0.5, 1.5), (None, 1.5), (2.0, 3.0), (0.5, 3.0), (None, 3.0), (2.0, None), (0.5, None)]
    assert bounds == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clip-max", "5:1.1"], "--clip-max: got '5:1.1'; expected a range of ratios as 1.1:5"),
        (["--clip-min", "a"], "--clip-min: got 'a'"),
        (["--clip-max", "0.3", "--clip-min", "0.5"], "no pair of these bounds is a rule"),
        (["--modes", "token"], "--modes: got 'token'; expected some of token_truncate"),
        (["--points", "1"], "--points: got 1; expected 2 to 1000"),
        (["--steps", "9:3"], "--steps: got '9:3'; expected steps as 100:200"),
        (["--min-ess", "90"], "--min-ess: got 90; expected a fraction from 0 to 1"),
    ],
)
def test_wrong_usage_is_reported(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invalid options exit with 2 and a message with the given and the expected value."""
    if "no pair" in message:
        record(tmp_path, None, steps=1)
    with pytest.raises(SystemExit) as ended:
        main(["sweep", str(tmp_path), *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_unsupported_inputs_are_reported(
    stored: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No journal, a tracker's address and a missing package each give one line with what to do."""
    assert main(["sweep", str(tmp_path), "--json"]) == 1
    assert "found no journal there" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["sweep", str(stored.folder)]) == 1
    assert 'pip install "ratioscope[report]", or ask for --json' in capsys.readouterr().err
    monkeypatch.setattr(read, "tracker_of", lambda address: "wandb")
    with pytest.raises(SystemExit):
        main(["sweep", "wandb:me/project/run", "--json"])
    assert "a tracker has even bins only, expected a journal" in capsys.readouterr().err


def test_table_fits_80_columns(
    stored: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has a line per rule within 80 columns, marks the run's own rule, and makes no claim about learning."""
    pytest.importorskip("rich")
    monkeypatch.setattr("ratioscope.cli.outputs.console", narrow_console)
    assert main(["sweep", str(stored.folder), "--modes", ",".join(MODES)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    rows = [line for line in out.splitlines() if re.match(r" *(–|0\.6) +\d", line)]
    assert len(rows) == 4 * 9 + 1
    (own,) = [row for row in rows if row.rstrip().endswith("this run")]
    assert own.split()[:2] == ["0.6", "1.2"]
    assert "what is good for learning only training shows" in " ".join(out.split())

    assert main(["sweep", str(stored.folder), "--per-step", "--clip-max", "1.1:3", "--points", "2"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(r"0\.6 +1\.2 +[\d.]+ +[\d.]+ +[1-5] +0\.\d{4} +0\.\d{4} +[1-5] +this run", out)


def narrow_console() -> Any:
    """Console of 80 columns."""
    from rich.console import Console

    return Console(width=80, file=sys.stdout, highlight=False)
