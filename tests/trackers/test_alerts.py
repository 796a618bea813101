"""Findings that real trackers receive during a run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import ratioscope as rs
from ratioscope.delivery.sync import sync
from ratioscope_integrations.trackers.mlflow.config import finding_tags
from tests.support import alert_scenarios
from tests.support.fake_trackers import register
from tests.support.local_server import environment
from tests.support.readback import read_mlflow, read_tensorboard, read_trackio_alerts, read_wandb

if TYPE_CHECKING:
    from pathlib import Path

TITLES = ["ratioscope: sampling_settings (warning)", "ratioscope: zero_filled (error)"]


def play(scenario: str, folder: Path) -> None:
    """One scenario in a process of its own; trackers read the environment once."""
    settings = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    command = [sys.executable, alert_scenarios.__file__, scenario, str(folder)]
    done = subprocess.run(
        command, env=environment(folder) | settings, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def only_mlflow_run(uri: str) -> str:
    """Id of the store's only run."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return str(run.info.run_id)


def test_tags_are_legal_and_bounded() -> None:
    """Both tags are short enough for every MLflow, and a resolved finding is marked as such."""
    event = rs.Event("zero_filled", "gone", "error", "high", "m", "e" * 9000, "r", 12, 0.0, 1, 0)
    tags = finding_tags(event)
    assert tags["ratioscope.findings"] == "0 errors, 1 warning"
    value = tags["ratioscope.finding.zero_filled"]
    assert value.startswith("gone (was error) · eee")
    assert value.endswith(" · step 12")
    assert len(value) <= 500


@pytest.mark.trackers
def test_every_tracker_receives_a_finding_once(tmp_path: Path) -> None:
    """W&B and trackio have one alert per finding, MLflow a tag, TensorBoard a text, with evidence and remedy."""
    play("own", tmp_path)
    alerts = read_wandb(tmp_path / "run").alerts
    assert [(title, level) for title, _, level in alerts] == list(zip(TITLES, ["WARN", "ERROR"], strict=True))
    assert "top_p=0.8" in alerts[0][1]
    assert "Leave missing log-probabilities missing" in alerts[1][1]

    trackio_alerts = read_trackio_alerts(tmp_path / "trackio")
    assert [(title, level) for title, _, level, _ in trackio_alerts] == list(
        zip(TITLES, ["warn", "error"], strict=True)
    )
    assert trackio_alerts[0][3] == 0
    assert 3 <= trackio_alerts[1][3] <= alert_scenarios.WINDOWS

    uri = f"sqlite:///{tmp_path}/run/mlflow.db"
    tags = read_mlflow(uri, only_mlflow_run(uri)).tags
    assert tags["ratioscope.findings"] == "1 error, 1 warning"
    assert tags["ratioscope.finding.sampling_settings"].startswith("warning · the config samples with top_p=0.8")
    assert tags["ratioscope.finding.zero_filled"].startswith("error · ")

    (events,) = (tmp_path / "run" / "ratioscope").rglob("events.out.tfevents.*")
    texts = read_tensorboard(events.parent).texts
    assert "top_p=0.8" in texts["ratioscope/events/sampling_settings/text_summary"]
    assert "Leave missing" in texts["ratioscope/events/zero_filled/text_summary"]


@pytest.mark.trackers
def test_runs_of_the_user_receive_alerts(tmp_path: Path) -> None:
    """Alerts reach the live runs that the user opened."""
    play("users", tmp_path)
    assert [title for title, _, _ in read_wandb(tmp_path / "wandb").alerts] == TITLES
    assert [title for title, *_ in read_trackio_alerts(tmp_path / "trackio", "user")] == TITLES


@pytest.mark.trackers
def test_sync_sets_tags_and_sends_no_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run delivered later gets the tags of its findings and no alert, because it is over."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    with rs.Recorder(output_dir=tmp_path, config=alert_scenarios.CONFIG) as recorder:
        alert_scenarios.write(recorder)
    assert sync(tmp_path, to=["mlflow"]) == {"mlflow": alert_scenarios.WINDOWS}
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tags = read_mlflow(uri, only_mlflow_run(uri)).tags
    assert tags["ratioscope.findings"] == "1 error, 1 warning"
    assert tags["ratioscope.finding.zero_filled"].startswith("error · ")
    pinged = rs.MemoryTracker()
    register(monkeypatch, pinged)
    assert sync(tmp_path, to=["memory"]) == {"memory": alert_scenarios.WINDOWS}
    assert pinged.events == []
