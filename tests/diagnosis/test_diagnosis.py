"""Diagnosis as a whole: order of findings, causes that are not checked, pooling, and the commands."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.cli.main import main
from ratioscope.diagnosis import CAUSES, Run, diagnose
from ratioscope.record import Record
from ratioscope.runs.pooled import MOST_PARTS, PooledRun
from tests.support.scenarios import SEQUENCE
from tests.support.synthetic import Spec, records, window
from tests.support.synthetic_faults import zero
from tests.support.trials import first

if TYPE_CHECKING:
    from pathlib import Path

NAMES = {cause.name for cause in CAUSES}


def scalar_run(rows: list[dict[str, float]]) -> Run:
    """Makes a run of which only scalars are known, one window a row."""
    pooled = PooledRun()
    for step, scalars in enumerate(rows):
        pooled.add_scalars(step, scalars)
    return Run(pooled, {})


def made(spec: Spec, seed: int = 0) -> list[Record]:
    """Records of a synthetic run, with every statistic."""
    return [replace(it, scalars=it.summary.metrics()) for it in records(spec, np.random.default_rng(seed))]


def written(folder: Path, spec: Spec) -> Path:
    """Folder of a synthetic run's journal."""
    rng = np.random.default_rng(0)
    with rs.Recorder(report_to="none", correction=spec.correction, config=spec.config, output_dir=folder) as recorder:
        for index in range(spec.windows):
            batch = window(spec, rng, index)
            train, rollout = (torch.from_numpy(side.astype(np.float32)) for side in (batch.train, batch.rollout))
            recorder.observe(train, rollout, torch.from_numpy(batch.mask))
            recorder.flush(step=index + 1)
    return folder


@pytest.fixture(scope="module")
def truncated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Journal of a run with top_p 0.8."""
    return written(
        tmp_path_factory.mktemp("truncated"), Spec(windows=4, top_p=0.8, config={"sampling": {"top_p": 0.8}})
    )


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Journal of a run with noise only."""
    return written(tmp_path_factory.mktemp("healthy"), Spec(windows=4))


def run(*arguments: object) -> int:
    """Exit code of a command line."""
    try:
        return main([*map(str, arguments)])
    except SystemExit as ended:
        return int(str(ended.code))


def test_every_cause_is_found_passed_explained_or_not_checked() -> None:
    """Each cause is in exactly one of the four lists."""
    for spec in (Spec(), Spec(top_p=0.8, correction=SEQUENCE), Spec(after=zero(0.3)), Spec(windows=0)):
        found = diagnose(made(spec))
        lists = [
            *(finding.name for finding in found.findings),
            *(item.name for item in found.not_checked),
            *found.passed,
            *found.explained,
        ]
        assert sorted(lists) == sorted(NAMES)


def test_no_two_causes_explain_each_other() -> None:
    """A cause explains only later ones, or one that does not explain it: two that hide each other would both vanish."""
    explains = {cause.name: set(cause.explains) - {cause.name} for cause in CAUSES}
    assert [(one, other) for one in explains for other in explains[one] if one in explains.get(other, ())] == []


def test_no_records_pass_nothing() -> None:
    """Without a window and without a config, every cause is not checked, with a reason."""
    found = diagnose([])
    assert found.findings == found.passed == ()
    assert all(item.why for item in found.not_checked)


def test_data_that_an_older_journal_lacks_is_not_checked() -> None:
    """Records without positions, lags and zeros leave the dependent causes not checked rather than passed."""
    old = []
    for record in made(Spec(windows=2)):
        body = json.loads(json.dumps(record.to_json()))
        for part in ("sums", "counts"):
            known = body["state"][part]
            kept = {k: v for k, v in known.items() if not k.startswith(("position/", "turn/", "lag/", "zero_"))}
            body["state"][part] = kept
        old.append(Record.from_json(body))
    found = diagnose(old)
    missing = {"shifted_alignment", "eos_tokens", "starts_at_a_position", "zero_filled", "filler_scored"}
    assert missing <= {item.name for item in found.not_checked}
    assert not missing & set(found.passed)


def test_the_cause_stands_before_its_consequences() -> None:
    """A setting of the config is listed before the truncation that it causes, and that before the collapse."""
    config = {"sampling": {"top_p": 0.8}, "engine": {"logprobs_mode": "processed_logprobs"}}
    found = diagnose(made(Spec(top_p=0.8, length=128, correction=SEQUENCE)), config)
    names = [finding.name for finding in found.findings]
    assert names == ["sampling_settings", "support_truncation", "length_collapse"]
    assert [finding.level for finding in found.findings[:2]] == ["error", "error"]
    assert found.findings[1].confidence == "high"


def test_a_biased_setting_is_named_without_a_measured_effect() -> None:
    """With top_p 0.999 in the config and no deficit in the numbers, the setting alone is a warning."""
    found = diagnose(made(Spec(windows=2)), {"sampling": {"top_p": 0.999}})
    assert first(found) == "sampling_settings"


def test_a_temperature_that_the_numbers_do_not_show_is_no_warning() -> None:
    """A temperature with an unknown logprobs_mode is a warning at the start, and info once the slope is 1."""
    config = {"sampling": {"temperature": 0.7, "scoring_temperature": 0.7}, "engine": {}}
    assert first(diagnose([], config)) == "logprobs_mode"
    spec = Spec(windows=2, noise=0.001, engine_temperature=0.7, trainer_temperature=0.7)
    found = diagnose(made(spec), config)
    assert found.level == "info"
    assert "logprobs_mode" in {finding.name for finding in found.findings}


def test_identical_sides_pass_nothing_else() -> None:
    """With identical sides no other statistic is called clean."""
    record = made(Spec(windows=1))[0]
    train = torch.full((2, 100), -1.0)
    summary = rs.summarize(train, train, torch.ones(2, 100))
    found = diagnose([replace(record, summary=summary.to_host(), scalars=summary.metrics())])
    assert first(found) == "identical"
    assert set(found.passed) <= {"everything_masked"}


def test_a_long_run_is_pooled_and_still_dated() -> None:
    """A run of 300 windows is kept in at most 64 pools with all tokens, and a jump is dated within one pool."""
    spec = Spec(windows=300, rows=2, length=16, behind=lambda index: 0.5 if index >= 200 else 0.0)
    everything = made(spec)
    read = Run.from_records(everything)
    assert len(read.parts) <= MOST_PARTS
    assert read.windows == 300
    assert read.whole.tokens == sum(record.summary.count("token/n") for record in everything)
    finding = diagnose(read).findings[0]
    assert finding.name == "wrong_weights"
    assert abs(finding.steps[0] - 201) <= 8


def test_evaluations_are_left_out() -> None:
    """Windows of evaluations are ignored."""
    record = made(Spec(windows=1))[0]
    assert diagnose([replace(record, split="eval")]).windows == 0


def test_scalars_alone_show_drift_only() -> None:
    """Mean |d| alone shows a jump; causes that need more are not checked."""
    values = [0.01, 0.011, 0.01, 0.2, 0.21, 0.2]
    found = diagnose(scalar_run([{"ratioscope/log_ratio/abs_mean": value} for value in values]))
    assert first(found) == "wrong_weights"
    assert set(found.passed) <= {"stale_weights", "grows_between_syncs", "unexplained"}
    assert len(found.not_checked) > 15


def test_command_shows_findings_and_returns_an_exit_code(
    truncated: Path, healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 with cause, evidence, remedy and source; 0 without a finding above info; lists unchecked causes."""
    assert run("diagnose", truncated) == 1
    shown = capsys.readouterr().out
    for part in ("support_truncation", "evidence: mean token ratio", "remedy:", "huggingface/trl#6789", "Not checked"):
        assert part in shown
    assert run("diagnose", healthy) == 0
    assert "Nothing above info was found." in capsys.readouterr().out
    assert run("diagnose", healthy, "--steps", "9:") == 0
    assert "Nothing could be checked." in capsys.readouterr().out


def test_command_prints_json(truncated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints one object with findings and unchecked causes, and an error if the run cannot be read."""
    assert run("diagnose", truncated, "--json", "--steps", "2:3") == 1
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    named = [finding["name"] for finding in answer["diagnosis"]["findings"]]
    assert named == ["sampling_settings", "support_truncation"]
    assert answer["diagnosis"]["findings"][1]["confidence"] == "high"  # the user's own config confirms it
    assert answer["diagnosis"]["steps"] == [2, 3]
    assert {item["name"] for item in answer["diagnosis"]["not_checked"]} <= NAMES
    assert run("diagnose", tmp_path / "none", "--json") == 3
    assert json.loads(capsys.readouterr().out)["error"].startswith("FileNotFoundError")
    assert run("diagnose") == 2


def test_command_reads_a_trainers_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint's log with TRL's scalars only shows growth, and lists the causes that it cannot show."""
    log = [{"step": k, "loss": 0.1, "sampling/sampling_logp_difference/mean": 0.03 * k} for k in range(1, 10)]
    checkpoint = tmp_path / "checkpoint-9"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": [*log, {"eval_loss": 1.0}]}))
    for path in (tmp_path, checkpoint, checkpoint / "trainer_state.json"):
        assert run("diagnose", path, "--json") == 1
        answer = json.loads(capsys.readouterr().out)["diagnosis"]
        assert [finding["name"] for finding in answer["findings"]] == ["stale_weights"]
        assert "support_truncation" in {item["name"] for item in answer["not_checked"]}
    (checkpoint / "trainer_state.json").write_text("[]")
    assert run("diagnose", checkpoint) == 3


def test_a_trainers_log_hints_at_truncation() -> None:
    """TRL's two means alone show truncation with low confidence where they fit; with noise it is not checked."""
    ratio = "sampling/importance_sampling_ratio/mean"
    for kept, abs_mean in ((0.81, 0.215), (0.995, 0.07)):
        rows = [{ratio: kept + 0.004 * (-1) ** k, "ratioscope/log_ratio/abs_mean": abs_mean} for k in range(8)]
        found = diagnose(scalar_run(rows))
        assert ("support_truncation" in {item.name for item in found.not_checked}) == (kept > 0.9)
        assert first(found) == ("nothing" if kept > 0.9 else "support_truncation")
        assert "support_truncation" not in found.passed


def test_check_fails_on_findings(truncated: Path, healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--fail-on`` fails on a finding of that level or higher, alone or beside limits, and names it."""
    assert run("check", truncated, "--fail-on", "error") == 1
    assert "FAIL  error support_truncation in steps 1 to 4" in capsys.readouterr().out
    assert run("check", healthy, "--fail-on", "warning") == 0
    assert "not checked" in capsys.readouterr().out
    assert run("check", healthy, "--fail-on", "warning", "--max", "kl/k3=0", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["diagnosis"]["findings"][0]["level"] == "info"
    assert not answer["holds"]
    assert run("check", healthy) == 2


def test_check_fails_without_a_window(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a window to diagnose, ``--fail-on`` fails unless missing data is allowed."""
    assert run("check", healthy, "--fail-on", "error", "--steps", "9:") == 1
    assert "FAIL  no window of training to diagnose" in capsys.readouterr().out
    assert run("check", healthy, "--fail-on", "error", "--steps", "9:", "--allow-missing") == 0
