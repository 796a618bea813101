"""``ratioscope check``: limits on a run's statistics, for CI and job scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope.cli.main import main
from ratioscope.runs.limits import Limit, Verdict, full_key, judge
from ratioscope.runs.timeline import Curve, Timeline

if TYPE_CHECKING:
    from pathlib import Path

FRACTIONS = {1: 0.1, 2: 0.4, 3: 0.2, 4: 0.3}
"""Modified fraction at each step of the run."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records a run with known modified fractions, and an evaluation in which every token is masked."""
    folder = tmp_path_factory.mktemp("run")
    rule = rs.Correction("token", "mask", upper=2.0)
    with rs.Recorder(report_to="none", correction=rule, output_dir=folder) as recorder:
        for step, fraction in [*FRACTIONS.items(), (4, 1.0)]:
            split = "eval" if fraction == 1.0 else "train"
            outside = torch.arange(10) < round(10 * fraction)
            rollout = torch.full((1, 10), -2.0)
            recorder.observe(rollout + outside * 1.0, rollout, torch.ones(1, 10), split=split)
            recorder.flush(step=step, split=split)
    return folder


def check(*arguments: object) -> int:
    """Returns the exit code of ``ratioscope check``."""
    try:
        return main(["check", *map(str, arguments)])
    except SystemExit as ended:
        return int(str(ended.code))


@pytest.mark.parametrize(
    ("limit", "options", "code"),
    [
        ("--max modified/fraction=0.4", "", 0),
        ("--max modified/fraction=0.39", "", 1),
        ("--max ratioscope/modified/fraction=0.39", "", 1),
        ("--max modified/fraction=0.39", "--at last", 0),
        ("--max modified/fraction=0.29", "--at last", 1),
        ("--max modified/fraction=0.25", "--at median", 0),
        ("--max modified/fraction=0.24", "--at median", 1),
        ("--max modified/fraction=0.1", "--at any", 0),
        ("--max modified/fraction=0.09", "--at any", 1),
        ("--min modified/fraction=0.1", "", 0),
        ("--min modified/fraction=0.11", "", 1),
        ("--min modified/fraction=0.4", "--at any", 0),
        ("--max modified/fraction=0.3", "--steps 3:", 0),
        ("--max modified/fraction=0.3", "--steps 2", 1),
        ("--max eval/modified/fraction=0.9", "", 1),
        ("--max eval/ratioscope/modified/fraction=1", "", 0),
        ("--max corrected/max=1", "", 0),
        ("--max modified/fraction=0.4 --min ess/corrected=0.7", "", 1),
        ("--max sampling/frac_modified_importance_sampling_ratio=0.4", "", 0),
    ],
)
def test_exit_code_is_0_if_limits_hold(run: Path, limit: str, options: str, code: int) -> None:
    """The exit code is 0 if every limit holds, also with equality, else 1, for each choice of ``--at``."""
    assert check(run, *limit.split(), *options.split()) == code


def test_worst_window_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each limit has a line with its verdict, the worst value, its step, and the number of windows outside."""
    assert check(run, "--max", "modified/fraction=0.25", "--min", "ess/corrected=0.5") == 1
    failed, held = capsys.readouterr().out.splitlines()
    assert failed == "FAIL  modified/fraction <= 0.25: 0.4 at step 2 (worst of 4 windows, 2 outside)"
    assert held == "ok    ess/corrected >= 0.5: 0.6 at step 2 (worst of 4 windows)"


def test_missing_statistic_fails_unless_allowed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A statistic that was not measured fails, or is skipped with --allow-missing; a line says so either way."""
    limit = ["--max", "modified/positive_advantage=0.5"]
    assert check(run, *limit) == 1
    assert capsys.readouterr().out == "FAIL  modified/positive_advantage <= 0.5: not measured\n"
    assert check(run, *limit, "--allow-missing") == 0
    assert capsys.readouterr().out == "skip  modified/positive_advantage <= 0.5: not measured\n"
    assert check(run, "--max", "modified/fraction=1", "--steps", "50:") == 1
    assert "not measured in steps from 50" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--max modifed/fracton=0.2", "got 'modifed/fracton', which is no statistic; nearest: modified/fraction"),
        ("--max eval/kl/k33=0.2", "nearest: eval/kl/k3"),
        ("--min ratioscope/ess/corect=0.2", "nearest: ess/corrected"),
        ("--max zzzz=0.2", "which is no statistic; the reference of metrics has all names"),
        ("--max modified/fraction", "expected KEY=VALUE with a finite number"),
        ("--max modified/fraction=nan", "expected KEY=VALUE with a finite number"),
        ("--max =1", "expected KEY=VALUE with a finite number"),
        ("", "nothing to check; expected at least one --max KEY=VALUE, --min KEY=VALUE or --fail-on"),
        ("--max kl/k3=1 --steps a", "expected steps as 100:200"),
        ("--max kl/k3=1 --at first", "invalid choice: 'first'"),
    ],
)
def test_wrong_usage_exits_with_2(run: Path, arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown statistic, with the nearest ones, or an option that makes no sense exits with 2."""
    assert check(run, *arguments.split()) == 2
    assert message in capsys.readouterr().err


def test_unreadable_run_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing journal, or another file, gives exit code 3 and one line with the reason."""
    assert check(tmp_path, "--max", "kl/k3=1") == 3
    assert "FileNotFoundError: got" in capsys.readouterr().err
    (tmp_path / "journal.sqlite").write_text("no database")
    assert check(tmp_path / "journal.sqlite", "--max", "kl/k3=1", "--json") == 3
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1
    found = json.loads(printed.out)
    assert (found["holds"], found["limits"]) == (None, [])
    assert found["error"].startswith("JournalError: ")


def test_json_is_one_object(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON output always has every field."""
    arguments = [
        "--max",
        "modified/fraction=0.25",
        "--min",
        "modified/positive_advantage=0.5",
        "--json",
        "--steps",
        ":3",
    ]
    assert check(run, *arguments) == 1
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "path": str(run),
        "at": "worst",
        "steps": [None, 3],
        "allow_missing": False,
        "holds": False,
        "fail_on": None,
        "diagnosis": None,
        "limits": [
            {
                "key": "ratioscope/modified/fraction",
                "kind": "max",
                "limit": 0.25,
                "status": "violated",
                "value": pytest.approx(0.4),
                "step": 2,
                "windows": 3,
                "violations": 1,
                "read_from": None,
            },
            {
                "key": "ratioscope/modified/positive_advantage",
                "kind": "min",
                "limit": 0.5,
                "status": "not measured",
                "value": None,
                "step": None,
                "windows": 0,
                "violations": 0,
                "read_from": None,
            },
        ],
        "error": None,
    }


def test_a_tracker_is_read_by_its_address(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A tracker's address is read as for a report; keys that only the tracker has are known too."""
    timeline = Timeline()
    timeline.add(7, "train", 0.0, {"ratioscope/kl/k3": 0.02, "loss": 1.5}, {})

    def read(address: Any) -> Timeline:
        if address == "mlflow:away":
            raise ConnectionError("no route")
        return timeline

    monkeypatch.setattr("ratioscope.runs.limits.journal_of", lambda _: None)
    monkeypatch.setattr("ratioscope.runs.limits.read", read)
    assert check("mlflow:run", "--max", "kl/k3=0.01") == 1
    assert "0.02 at step 7" in capsys.readouterr().out
    assert check("mlflow:run", "--max", "loss=2") == 0
    assert check("mlflow:away", "--max", "kl/k3=0.01") == 3
    assert "ConnectionError: no route" in capsys.readouterr().err


def test_judge_skips_values_that_are_not_finite_and_takes_the_first_worst() -> None:
    """Values that are not finite are ignored; among equal values the first step is named."""
    curve = Curve([1, 2, 3, 4], [0, 0, 0, 0], [float("nan"), 0.5, 0.5, 0.1])
    limit = Limit("ratioscope/kl/k3", "max", 0.2)
    assert judge(limit, curve) == Verdict(limit, "violated", 0.5, 2, 3, 2)
    assert judge(limit, curve, at="median") == Verdict(limit, "violated", 0.5, None, 3, 2)
    assert judge(limit, None) == Verdict(limit, "not measured")


def test_literal_key_wins() -> None:
    """A key that the run has is taken literally, before the one under ratioscope/."""
    assert full_key("kl/k3", {"kl/k3": Curve()}) == "kl/k3"
    assert full_key("kl/k3", {}) == "ratioscope/kl/k3"


@pytest.mark.slow
def test_the_command_needs_no_extra(run: Path) -> None:
    """The check runs without rich, and its exit code reaches the shell."""
    code = "import sys; sys.modules['rich'] = None; from ratioscope.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "check", str(run), "--max", "modified/fraction=0.2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("FAIL  modified/fraction <= 0.2: 0.4 at step 2")
