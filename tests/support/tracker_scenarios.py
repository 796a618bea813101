"""Trainings with real trackers, each for a process of its own: W&B and MLflow keep state in the process.

    python tests/support/tracker_scenarios.py SCENARIO FOLDER

Writes the mean ratios of the trainer's log to ``logged.json`` in the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.support.fake_engine import make_trainer

MEAN = "sampling/raw_importance_sampling_ratio/mean"


def shared(folder: Path) -> Any:
    """The trainer reports itself, and we follow it."""
    trainer = make_trainer(folder / "out", report_to=["wandb", "mlflow", "tensorboard"])
    trainer.add_callback(RatioscopeCallback(trainer))
    trainer.train()
    return trainer


def own(folder: Path) -> Any:
    """The trainer reports nowhere, and report_to is given to us."""
    import wandb

    trainer = make_trainer(folder / "out", report_to="none", run_name="mine")
    trainer.add_callback(RatioscopeCallback(trainer, report_to=["wandb", "mlflow", "tensorboard"]))
    trainer.train()
    assert wandb.run is None, "our own run was not finished"
    return trainer


def users(folder: Path) -> Any:
    """The user has opened runs before; they stay open."""
    import mlflow
    import wandb

    mine = wandb.init(project="user")
    mlflow.start_run(run_name="user")
    trainer = make_trainer(folder / "out", report_to="none")
    trainer.add_callback(RatioscopeCallback(trainer, report_to=["wandb", "mlflow"]))
    trainer.train()
    assert wandb.run is mine, "the user's W&B run was finished"
    active = mlflow.active_run()
    assert active is not None, "the user's MLflow run was ended"
    assert mlflow.MlflowClient().get_run(active.info.run_id).info.status == "RUNNING"
    return trainer


def trackio_shared(folder: Path) -> Any:
    """The trainer reports to trackio itself, and evaluates too; its x-axis is as it would be without us."""
    import trackio

    settings = {"max_steps": 4, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "eval_rows": 8}
    trainer = make_trainer(folder / "out", report_to=["trackio"], run_name="shared", project="trained", **settings)
    trainer.add_callback(RatioscopeCallback(trainer))
    trainer.train()
    assert trackio.context_vars.current_run.get() is None, "the trainer ends its run"
    return trainer


def trackio_alone(folder: Path) -> Any:
    """The trainer as above, without us."""
    settings = {"max_steps": 4, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "eval_rows": 8}
    trainer = make_trainer(folder / "out", report_to=["trackio"], run_name="alone", project="trained", **settings)
    trainer.train()
    return trainer


def trackio_own(folder: Path) -> Any:
    """The trainer reports nowhere; we report to trackio and relay the trainer's log."""
    trainer = make_trainer(folder / "out", report_to="none", run_name="mine")
    trainer.add_callback(RatioscopeCallback(trainer, report_to="trackio", relay=True))
    trainer.train()
    return trainer


SCENARIOS = {each.__name__: each for each in (shared, own, users, trackio_shared, trackio_alone, trackio_own)}

if __name__ == "__main__":
    done = SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
    logged = [row[MEAN] for row in done.state.log_history if MEAN in row]
    (Path(sys.argv[2]) / "logged.json").write_text(json.dumps(logged))
