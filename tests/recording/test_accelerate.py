"""A recorder with an ``Accelerator`` merges its ranks and attaches to its trackers' runs without ending them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ratioscope as rs
from tests.support.readback import read_mlflow, read_tensorboard, read_trackio, read_wandb

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "accelerate_training.py"
MEAN = "sampling/raw_importance_sampling_ratio/mean"
TOKENS = "ratioscope/hist/token_log_ratio"


@dataclass(frozen=True)
class Run:
    """Files and results of two processes."""

    folder: Path
    ranks: list[dict[str, Any]]
    log: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs two processes with accelerate and five trackers, all offline."""
    folder = tmp_path_factory.mktemp("accelerate")
    own = ("WANDB_", "MLFLOW_", "TRACKIO_", "ACCELERATE_", "RATIOSCOPE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)} | {
        "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[2]), *filter(None, sys.path)]),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "TRACKIO_DIR": str(folder / "trackio"),
        "HF_HUB_OFFLINE": "1",
        "GRADIO_ANALYTICS_ENABLED": "False",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(PROGRAM)]
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(
            [*command, str(folder)], env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT, timeout=280
        )
    text = (folder / "log.txt").read_text()
    assert done.returncode == 0, text[-4000:]
    return Run(folder, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)], text)


@pytest.mark.distributed
@pytest.mark.trackers
class TestTwoProcesses:
    """With accelerate, real trackers and two processes."""

    def test_ranks_are_merged(self, run: Run) -> None:
        """Each record covers both ranks' tokens, and the trackers are those of `log_with`."""
        for rank in run.ranks:
            assert rank["trackers"] == ["wandb", "mlflow", "tensorboard", "trackio", "lines"]
            assert rank["incidents"] == {}
            for record in rank["records"]:
                assert record["world_size"] == 2
                assert record["scalars"][MEAN] == pytest.approx(1.5)
        assert "reported once" not in run.log

    def test_ranks_that_share_a_batch_count_it_once(self, run: Run) -> None:
        """Tensor-parallel ranks have the same tokens, so no rank merges with another."""
        assert [rank["tensor_parallel"] for rank in run.ranks] == [{"world_size": 1, "tokens": 2}] * 2

    def test_wandb_has_one_run_of_accelerates(self, run: Run) -> None:
        """W&B has one run; both kinds of rows share their steps, and none is lost after the recorder's close."""
        (folder,) = (run.folder / "wandb").glob("offline-run-*")
        received = read_wandb(folder)
        assert received.project == "accelerated"
        rows = {row["_step"]: row for row in received.history}
        assert {step: row["loss"] for step, row in rows.items()} == {1: 1.0, 2: 0.5, 3: pytest.approx(1 / 3)}
        assert [rows[step][MEAN] for step in (1, 2, 3)] == [pytest.approx(1.5)] * 3
        assert sum(rows[3][f"{TOKENS}.values"]) == 4
        assert rows[3]["last"] == 5.0
        assert received.config["lr"] == 0.1
        assert received.config["ratioscope"]["accelerate"]["num_processes"] == 2
        assert received.exit_code == 0

    def test_mlflow_has_one_run_of_accelerates(self, run: Run) -> None:
        """MLflow has one run with the user's metrics and ratioscope's at every step, ended by accelerate."""
        from mlflow import MlflowClient

        uri = f"sqlite:///{run.folder / 'mlflow.db'}"
        client = MlflowClient(uri)
        (found,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
        received = read_mlflow(uri, found.info.run_id)
        assert received.status == "FINISHED"
        assert [metric.step for metric in received.metrics["loss"]] == [1, 2, 3]
        assert [(metric.step, metric.value) for metric in received.metrics[MEAN]] == [
            (step, pytest.approx(1.5)) for step in (1, 2, 3)
        ]
        assert received.params["lr"] == "0.1"
        assert received.params["ratioscope.accelerate.num_processes"] == "2"

    def test_tensorboard_has_one_file_of_accelerates(self, run: Run) -> None:
        """TensorBoard has scalars and histograms in the folder of accelerate's writer, beside the user's."""
        received = read_tensorboard(run.folder / "logs" / "accelerated")
        assert [step for step, _ in received.scalars["loss"]] == [1, 2, 3]
        assert received.scalars[MEAN] == [(step, pytest.approx(1.5)) for step in (1, 2, 3)]
        assert [step for step, _ in received.histograms[TOKENS]] == [1, 2, 3]
        assert list((run.folder / "out").rglob("*tfevents*")) == []

    def test_trackio_has_one_run_of_accelerates(self, run: Run) -> None:
        """Trackio has one run with the user's rows and ratioscope's at the same steps."""
        (received,) = read_trackio(run.folder / "trackio", "accelerated").values()
        steps = [(row["step"], MEAN in row, "loss" in row) for row in received.rows]
        assert {step for step, ours, _ in steps if ours} == {1, 2, 3}
        assert {step for step, _, users in steps if users} == {1, 2, 3}

    def test_an_unknown_tracker_gets_scalars(self, run: Run) -> None:
        """A tracker that the user wrote receives scalars at their steps from one process, after one warning."""
        lines = [json.loads(line) for line in (run.folder / "lines.jsonl").read_text().splitlines()]
        ours = [line for line in lines if MEAN in line]
        assert [line["step"] for line in ours] == [1, 2, 3]
        assert ours[0]["ratioscope/counts/tokens"] == 4
        assert run.log.count("lines gets scalars only") == 1


def accelerator(**attributes: Any) -> SimpleNamespace:
    """Makes an object with the attributes of an accelerator."""
    return SimpleNamespace(**{"log_with": [], "trackers": [], **attributes})


def test_report_to_wins_over_the_accelerator() -> None:
    """With an accelerator, `report_to` selects the trackers as usual, and "none" selects none."""
    host = accelerator(log_with=["tensorboard"])
    assert rs.Recorder(accelerator=host).tracker_names == ["tensorboard"]
    assert rs.Recorder(accelerator=host, report_to="none").tracker_names == []
    tracker = rs.MemoryTracker()
    assert rs.Recorder(accelerator=host, report_to=[tracker]).tracker_names == ["memory"]
    assert rs.Recorder().tracker_names == []


def test_an_object_that_is_no_accelerator_is_refused() -> None:
    """An object without trackers raises when the recorder is made."""
    with pytest.raises(TypeError, match=r"got accelerator of type str; expected an accelerate\.Accelerator"):
        rs.Recorder(accelerator="wandb")


def test_trackers_that_never_begin_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Without `init_trackers` no other run is opened, and close reports the rows that were not sent."""
    recorder = rs.Recorder(accelerator=accelerator(log_with=["tensorboard", "mine"]))
    logps = -torch.rand(2, 3)
    recorder.observe(logps, logps, torch.ones(2, 3))
    recorder.flush(step=1)
    recorder.close()
    assert dict(recorder.incidents.counts) == {"tensorboard never opened": 1, "mine never opened": 1}
    assert "tensorboard never had a run; 1 rows were not sent" in caplog.text
