"""The TRL callback with real trackers: whose run it is decides who opens, merges and ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ratioscope.trackers.registry import names
from ratioscope_integrations.trainers.trl import RatioscopeCallback
from tests.fake_engine import make_trainer
from tests.readback import read_mlflow, read_tensorboard, read_wandb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.trackers, pytest.mark.trl]

MEAN = "sampling/raw_importance_sampling_ratio/mean"
TOKENS = "ratioscope/counts/tokens"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keeps every tracker in the test's folder, and ends what a test left open."""
    import mlflow
    import wandb

    for name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI", "WANDB_API_KEY", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'user.db'}")
    yield
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(before)
    wandb.teardown()  # W&B reads its settings once; the next test has others


def mlflow_runs(uri: str) -> list[Any]:
    """Every run at a tracking URI."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    return list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))


def test_the_trainers_runs_are_shared_and_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the trainer reports itself, there is one run a tracker, and each scalar is in it once."""
    trainer = make_trainer(tmp_path / "out", monkeypatch, report_to=["wandb", "mlflow", "tensorboard"])
    trainer.add_callback(RatioscopeCallback(trainer))
    trainer.train()
    logged = [row[MEAN] for row in trainer.state.log_history if MEAN in row]

    (run,) = mlflow_runs(f"sqlite:///{tmp_path / 'user.db'}")
    received = read_mlflow(f"sqlite:///{tmp_path / 'user.db'}", run.info.run_id)
    assert [metric.value for metric in received.metrics[MEAN]] == logged
    assert len(received.metrics[TOKENS]) == len(logged) == 2
    assert received.status == "FINISHED"

    board = read_tensorboard(tmp_path / "tensorboard")
    assert [value for _, value in board.scalars[f"train/{MEAN}"]] == pytest.approx(logged)
    assert MEAN not in board.scalars
    assert len(board.histograms["ratioscope/hist/token_log_ratio"]) == 2

    import wandb

    assert wandb.run is not None
    wandb.run.finish()
    received_by_wandb = read_wandb(tmp_path / "wandb")
    rows = [row for row in received_by_wandb.history if TOKENS in row]
    assert [row[f"train/{MEAN}"] for row in rows] == logged
    assert all("train/loss" in row and MEAN not in row for row in rows)


def test_runs_of_our_own_are_opened_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With report_to given to us alone, we open a run in each tracker, send all of it and end it."""
    monkeypatch.setattr("mlflow.is_tracking_uri_set", lambda: False)
    trainer = make_trainer(tmp_path / "out", monkeypatch, report_to="none", run_name="mine")
    trainer.add_callback(RatioscopeCallback(trainer, report_to=["wandb", "mlflow", "tensorboard"]))
    trainer.train()
    logged = [row[MEAN] for row in trainer.state.log_history if MEAN in row]

    import wandb

    assert wandb.run is None
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


def test_a_live_run_of_the_users_is_used_and_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that the user opened receives our rows and stays open."""
    import mlflow
    import wandb

    mine = wandb.init(project="user")
    run = mlflow.start_run(run_name="user")
    trainer = make_trainer(tmp_path / "out", monkeypatch, report_to="none")
    trainer.add_callback(RatioscopeCallback(trainer, report_to=["wandb", "mlflow"]))
    trainer.train()
    assert wandb.run is mine
    assert mlflow.active_run() is not None
    received = read_mlflow(mlflow.get_tracking_uri(), run.info.run_id)
    assert received.status == "RUNNING"
    assert len(received.metrics[MEAN]) == 2
    mine.finish()
    assert len([row for row in read_wandb(tmp_path / "wandb").history if MEAN in row]) == 2
    assert len(mlflow_runs(mlflow.get_tracking_uri())) == 1


def test_every_promised_tracker_is_found_by_name() -> None:
    """The entry points name the three trackers."""
    assert {"wandb", "mlflow", "tensorboard"} <= set(names())
