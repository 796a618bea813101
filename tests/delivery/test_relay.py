"""Relay: a tracker receives the trainer's log and ratioscope's metrics, with the trainer reporting nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ratioscope.journal.reader import JournalReader
from tests.support.readback import MlflowRun, WandbRun, read_mlflow, read_mlflow_artifact, read_wandb
from tests.support.relay_training import SECRET

pytestmark = [pytest.mark.trackers, pytest.mark.trl]

ROOT = Path(__file__).resolve().parents[2]
MEAN = "sampling/raw_importance_sampling_ratio/mean"
HIST = "ratioscope/hist/token_log_ratio"


@dataclass
class Relayed:
    """One training, as the trainer saw it and as trackers have it."""

    folder: Path
    history: list[dict[str, Any]]
    uri: str
    run_id: str
    mlflow: MlflowRun
    wandb: WandbRun

    def kind(self, sign: str) -> list[dict[str, Any]]:
        """The trainer's rows that have this key."""
        return [row for row in self.history if sign in row]


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory) -> Relayed:
    """Trains once, in a process of its own."""
    folder = tmp_path_factory.mktemp("relay")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "WANDB_"))}
    kept |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), "WANDB_MODE": "offline"}
    command = [sys.executable, str(ROOT / "tests" / "support" / "relay_training.py"), str(folder), "mlflow", "wandb"]
    done = subprocess.run(command, capture_output=True, text=True, env=kept, cwd=folder, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    from mlflow import MlflowClient

    uri = f"sqlite:///{folder / 'out' / 'mlflow.db'}"
    client = MlflowClient(uri)
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    history = json.loads((folder / "history.json").read_text())
    mlflow, wandb = read_mlflow(uri, run.info.run_id), read_wandb(folder / "out" / "wandb")
    return Relayed(folder, history, uri, run.info.run_id, mlflow, wandb)


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """Returns the numbers of a row of the trainer's log; the epoch, which each row has, belongs to the loss."""
    dropped = {"step"} if "loss" in row else {"step", "epoch"}
    return {key: float(value) for key, value in row.items() if key not in dropped and isinstance(value, int | float)}


def test_mlflow_has_the_trainers_metrics(relayed: Relayed) -> None:
    """MLflow has every entry of the trainer's log at every step, with equal values."""
    assert {"loss", "reward", "learning_rate", "grad_norm", "entropy", MEAN} <= set(relayed.kind("loss")[0])
    assert [row["step"] for row in relayed.kind("loss")] == [1, 2, 3, 4]
    for row in relayed.history:
        for key, value in numbers(row).items():
            points = [point.value for point in relayed.mlflow.metrics[key] if point.step == row["step"]]
            assert value in points, (key, row["step"])


def test_each_point_is_there_once(relayed: Relayed) -> None:
    """No key has two points at one step, neither ours nor the trainer's."""
    for key, points in relayed.mlflow.metrics.items():
        doubled = [step for step, count in Counter(point.step for point in points).items() if count > 1]
        assert not doubled, (key, doubled)


def test_our_points_are_there_once(relayed: Relayed) -> None:
    """Ratioscope's further metrics have one point per step."""
    assert [point.step for point in relayed.mlflow.metrics["ratioscope/counts/tokens"]] == [1, 2, 3, 4]
    assert [point.value for point in relayed.mlflow.metrics[MEAN]] == [row[MEAN] for row in relayed.kind("loss")]


def test_the_closing_row_is_there(relayed: Relayed) -> None:
    """The totals that the trainer logs at its end are in the run."""
    (closing,) = relayed.kind("train_runtime")
    for key in ("train_runtime", "train_loss", "total_flos"):
        (point,) = relayed.mlflow.metrics[key]
        assert (point.step, point.value) == (4, closing[key])
    assert relayed.mlflow.status == "FINISHED"


def test_evaluations_keep_their_names(relayed: Relayed) -> None:
    """Evaluations have the trainer's names for them, also for our metrics."""
    rows = relayed.kind("eval_loss")
    assert [row["step"] for row in rows] == [2, 4]
    assert [point.value for point in relayed.mlflow.metrics["eval_reward"]] == [row["eval_reward"] for row in rows]
    assert [point.step for point in relayed.mlflow.metrics["eval/ratioscope/counts/tokens"]] == [2, 4]
    board = [row for row in relayed.wandb.history if "eval/loss" in row]
    assert [row["eval/reward"] for row in board] == [row["eval_reward"] for row in rows]
    assert all(f"eval/{HIST}.values" in row for row in board)


def test_wandb_has_one_row_per_log(relayed: Relayed) -> None:
    """In W&B the trainer's values, under transformers' names, share a row with ours."""
    rows = [row for row in relayed.wandb.history if "train/loss" in row]
    assert [row["train/global_step"] for row in rows] == [1, 2, 3, 4]
    for row, logged in zip(rows, relayed.kind("loss"), strict=True):
        assert {key: row[f"train/{key}"] for key in numbers(logged)} == numbers(logged)
        assert f"{HIST}.values" in row
        assert MEAN not in row
    (closing,) = [row for row in relayed.wandb.history if "train/train_runtime" in row]
    assert closing["train/global_step"] == 4
    assert len(relayed.wandb.history) == len(relayed.history)


def test_arguments_are_there_without_secrets(relayed: Relayed) -> None:
    """The trainer's arguments are in every config, of trackers and journal, and the secret is in no file."""
    with JournalReader(relayed.folder / "out") as reader:
        (attempt,) = reader.attempts()
    artifact = json.loads(read_mlflow_artifact(relayed.uri, relayed.run_id, "ratioscope/config.json"))
    for config in (attempt.config, artifact, relayed.wandb.config["ratioscope"]):
        assert config["args"]["learning_rate"] == 1e-2
        assert config["args"]["hub_token"] == "[redacted]"
    assert relayed.mlflow.params["ratioscope.args.learning_rate"] == "0.01"
    files = [path for path in relayed.folder.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_the_journal_has_the_log(relayed: Relayed) -> None:
    """Each record has the trainer's log of its step, so that a report needs the journal only."""
    with JournalReader(relayed.folder / "out") as reader:
        records = list(reader.records(superseded=True))
    assert [dict(record.logs) for record in records] == [numbers(row) for row in relayed.history]
    assert [record.split for record in records] == ["train", "train", "eval", "train", "train", "eval", "train"]
