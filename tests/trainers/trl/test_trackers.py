"""TRL callback with real trackers: runs of the trainer, of ratioscope and of the user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ratioscope.trackers.registry import names
from tests.support.readback import read_mlflow, read_tensorboard, read_wandb

pytestmark = [pytest.mark.trackers, pytest.mark.trl]

MEAN = "sampling/raw_importance_sampling_ratio/mean"
TOKENS = "ratioscope/counts/tokens"
ROOT = Path(__file__).resolve().parents[3]


def train(scenario: str, folder: Path, **environment: str) -> list[float]:
    """Runs a scenario in its own process, with every tracker in the folder; returns the logged means."""
    removed = ("MLFLOW_", "WANDB_", "TENSORBOARD_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    variables |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard"),
        **environment,
    }
    command = [sys.executable, str(ROOT / "tests" / "support" / "tracker_scenarios.py"), scenario, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=folder, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "reported once" not in done.stderr, done.stderr[-3000:]
    logged: list[float] = json.loads((folder / "logged.json").read_text())
    return logged


def mlflow_runs(uri: str) -> list[Any]:
    """Returns every run at a tracking URI."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    return list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))


def test_runs_of_the_trainer_are_shared_and_left_open(tmp_path: Path) -> None:
    """If the trainer reports itself, each tracker has one run, with each scalar once."""
    uri = f"sqlite:///{tmp_path / 'user.db'}"
    logged = train("shared", tmp_path, MLFLOW_TRACKING_URI=uri)
    assert len(logged) == 2

    (run,) = mlflow_runs(uri)
    received = read_mlflow(uri, run.info.run_id)
    assert [metric.value for metric in received.metrics[MEAN]] == logged
    assert len(received.metrics[TOKENS]) == 2
    assert received.status == "FINISHED"

    board = read_tensorboard(tmp_path / "tensorboard")
    assert [value for _, value in board.scalars[f"train/{MEAN}"]] == pytest.approx(logged)
    assert MEAN not in board.scalars
    assert len(board.histograms["ratioscope/hist/token_log_ratio"]) == 2

    rows = [row for row in read_wandb(tmp_path / "wandb").history if TOKENS in row]
    assert [row[f"train/{MEAN}"] for row in rows] == logged
    assert all("train/loss" in row and MEAN not in row for row in rows)


def test_ratioscopes_runs_are_opened_and_ended(tmp_path: Path) -> None:
    """With only the callback's report_to, ratioscope opens a run in each tracker, fills it and ends it."""
    logged = train("own", tmp_path)
    rows = read_wandb(tmp_path / "out" / "wandb").history
    assert [row[MEAN] for row in rows] == logged
    assert [row["train/global_step"] for row in rows] == [1, 2]

    uri = f"sqlite:///{tmp_path / 'out' / 'mlflow.db'}"
    (run,) = mlflow_runs(uri)
    received = read_mlflow(uri, run.info.run_id)
    assert (run.info.run_name, received.status) == ("mine", "FINISHED")
    assert [metric.value for metric in received.metrics[MEAN]] == logged

    (folder,) = {path.parent for path in (tmp_path / "out").rglob("events.out.tfevents.*")}
    assert [value for _, value in read_tensorboard(folder).scalars[MEAN]] == pytest.approx(logged)


def test_a_live_run_of_the_user_is_used_and_left_open(tmp_path: Path) -> None:
    """A run that the user opened receives the rows and stays open, and no second run appears."""
    uri = f"sqlite:///{tmp_path / 'user.db'}"
    logged = train("users", tmp_path, MLFLOW_TRACKING_URI=uri)
    (run,) = mlflow_runs(uri)
    assert [metric.value for metric in read_mlflow(uri, run.info.run_id).metrics[MEAN]] == logged
    rows = [row for row in read_wandb(tmp_path / "wandb").history if MEAN in row]
    assert [row[MEAN] for row in rows] == logged


def test_entry_points_name_the_main_trackers() -> None:
    """Entry points exist for W&B, MLflow and TensorBoard."""
    assert {"wandb", "mlflow", "tensorboard"} <= set(names())
