"""A run under a rule of stages, in journal, trackers, report, sweep and diagnosis."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope.cli.main import main
from ratioscope.report.verdict.settings import settings
from ratioscope.runs.read import read

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = {"tis_ratio_type": "token", "outlier_token_is_threshold_low": 0.2, "outlier_token_is_threshold_high": 100.0}
WORDS = "drops rows with any token's ratio outside [0.2, 100]; truncates tokens with ratio above 2"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, rs.MemoryTracker, rs.Correction]:
    """Records a run of three windows under SkyRL's rule; returns its folder, tracker and rule."""
    folder, tracker = tmp_path_factory.mktemp("run"), rs.MemoryTracker()
    rule = rs.Correction.preset("skyrl/off_policy_correction", **OPTIONS)
    generator = torch.Generator().manual_seed(3)
    with rs.Recorder(report_to=tracker, output_dir=folder, correction=rule) as recorder:
        for step in (1, 2, 3):
            rollout = -torch.rand(8, 32, generator=generator) - 0.5
            train = rollout + 0.4 * torch.randn(8, 32, generator=generator)
            recorder.correct(train, rollout, torch.ones(8, 32), advantages=torch.randn(8, generator=generator))
            recorder.flush(step=step)
    return folder, tracker, rule


def test_the_journal_has_the_rule(run: tuple[Path, rs.MemoryTracker, rs.Correction]) -> None:
    """Records in the journal hold the whole rule, its preset's name and the options that were given."""
    folder, tracker, rule = run
    with rs.JournalReader(folder) as journal:
        records = list(journal.records())
    assert [record.correction for record in records] == [rule] * 3
    assert records[0].correction is not None
    assert records[0].correction.mode == "skyrl/off_policy_correction"
    assert records[0].correction.sources == {name: f"skyrl/off_policy_correction: {name}" for name in OPTIONS}
    assert records == [row.record for row in tracker.rows]


def test_trackers_get_each_stages_fraction(run: tuple[Path, rs.MemoryTracker, rs.Correction]) -> None:
    """By default trackers get the fraction of each stage of the rule, and of no other stage."""
    _, tracker, _ = run
    for row in tracker.rows:
        keys = {key for key in row.scalars if "/stage/" in key}
        assert keys == {f"ratioscope/stage/{stage}/modified" for stage in (1, 2)}
        assert row.record.scalars["ratioscope/modified/vetoed"] == row.scalars["ratioscope/stage/1/modified"]
        assert not row.record.events


def test_the_config_has_the_stages(run: tuple[Path, rs.MemoryTracker, rs.Correction]) -> None:
    """The run config has the stages as data and in words, and the report displays the words."""
    folder, _, rule = run
    config = read(folder).config
    assert config["correction"]["mode"] == "skyrl/off_policy_correction"
    assert WORDS in config["correction"]["words"]
    assert config["correction"]["stages"] == [stage.to_json() for stage in rule.stages]
    displayed = dict(settings(config))
    assert displayed["Mode"] == "skyrl/off_policy_correction"
    assert WORDS in displayed["Stages"]
    assert "Bounds" not in displayed


def test_report_and_terminal_show_the_stages(
    run: tuple[Path, rs.MemoryTracker, rs.Correction], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page and the terminal describe the rule in words."""
    folder, _, _ = run
    page = tmp_path / "page.html"
    assert main(["report", str(folder), "-o", str(page)]) == 0
    assert "drops rows with any token" in page.read_text(encoding="utf-8")
    assert "skyrl/off_policy_correction" in " ".join(capsys.readouterr().out.split())


def test_a_sweep_of_a_staged_run_tries_trls_modes(
    run: tuple[Path, rs.MemoryTracker, rs.Correction], capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep names the run's own rule and tries TRL's modes on its raw ratios, as a table and as JSON."""
    folder, _, _ = run
    assert main(["sweep", str(folder), "--json"]) == 0
    swept: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert swept["own"]["mode"] == "skyrl/off_policy_correction"
    assert {outcome["mode"] for outcome in swept["outcomes"]} == {"token_truncate", "sequence_mask"}
    assert not any(outcome["own"] for outcome in swept["outcomes"])
    assert main(["sweep", str(folder)]) == 0
    assert "drops rows" in " ".join(capsys.readouterr().out.split())


def test_a_staged_run_can_be_diagnosed(
    run: tuple[Path, rs.MemoryTracker, rs.Correction], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run under a rule of stages is diagnosed like any other."""
    folder, _, _ = run
    assert main(["diagnose", str(folder), "--json"]) in {0, 1}
    assert json.loads(capsys.readouterr().out)
