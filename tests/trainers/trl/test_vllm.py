"""Example on real vLLM in all four modes, read back from every tracker and compared with numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from tests.support.readback import read_mlflow, read_mlflow_artifact, read_tensorboard, read_wandb

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
CLIP_MAX = 1.2
STEPS = 3
RAW = "sampling/raw_importance_sampling_ratio"
CORRECTED = "sampling/importance_sampling_ratio"
FRACTION = "sampling/frac_modified_importance_sampling_ratio"
HEADLINE = (f"{RAW}/min", f"{RAW}/mean", f"{RAW}/max", FRACTION)
DRIVER = Path(__file__).resolve().parents[2] / "support" / "drive_grpo.py"

Batch = dict[str, "NDArray[Any]"]


@dataclass(frozen=True)
class Run:
    """Files and batches of one run of the example."""

    mode: str
    folder: Path
    batches: list[list[Batch]]  # by rank, then by generation
    state: dict[str, Any]

    @property
    def logged(self) -> list[dict[str, Any]]:
        """Rows of trainer_state.json that have a ratio."""
        return [row for row in self.state["log_history"] if f"{RAW}/mean" in row]

    @property
    def mlflow_uri(self) -> str:
        """MLflow's tracking URI."""
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    def mlflow_run_id(self) -> str:
        """Returns the id of the only MLflow run."""
        from mlflow import MlflowClient

        client = MlflowClient(self.mlflow_uri)
        (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
        run_id: str = run.info.run_id
        return run_id


def launch(folder: Path, mode: str, *, processes: int = 1, report_to: str = "mlflow,wandb,tensorboard") -> Run:
    """Runs the example in its own processes and collects the results."""
    command = [sys.executable]
    environment = {**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": str(DRIVER.parents[1])}
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "WANDB_API_KEY", "WANDB_DIR", "TENSORBOARD_LOGGING_DIR"):
        environment.pop(name, None)
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
        environment |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    options = ["--mode", mode, "--clip-max", str(CLIP_MAX), "--steps", str(STEPS), "--report-to", report_to]
    command += [str(DRIVER), str(folder / "batches"), *options, "--output-dir", str(folder)]
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=900)
    text = (folder / "log.txt").read_text()
    assert done.returncode == 0, text[-4000:]
    assert "(reported once; training continues)" not in text, [
        line for line in text.splitlines() if "reported once" in line
    ]
    batches = [
        [dict(np.load(path)) for path in sorted((folder / "batches").glob(f"rank{rank}-*.npz"))]
        for rank in range(processes)
    ]
    state = json.loads((folder / mode / "trainer_state.json").read_text())
    return Run(mode, folder, batches, state)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Trains each of the four modes once."""
    return {mode: launch(tmp_path_factory.mktemp(mode), mode) for mode in MODES}


def raw_ratios(batch: Batch, level: str) -> NDArray[np.float64]:
    """Computes raw ratios of valid tokens or completions, in numpy float64."""
    d = batch["old_per_token_logps"].astype(np.float64) - batch["sampling_per_token_logps"].astype(np.float64)
    mask = batch["completion_mask"].astype(bool)
    if level == "token":
        return np.exp(d[mask])
    return np.exp(np.where(mask, d, 0.0).sum(axis=1)[mask.any(axis=1)])


def expected(batches: list[Batch], level: str) -> dict[str, float]:
    """Computes the headline of one window from its batches."""
    ratios = np.concatenate([raw_ratios(batch, level) for batch in batches])
    values = (ratios.min(), ratios.mean(), ratios.max(), (ratios > CLIP_MAX).mean())
    return {key: float(value) for key, value in zip(HEADLINE, values, strict=True)}


def summarize(batch: Batch, correction: rs.Correction) -> dict[str, float]:
    """Computes ratioscope's metrics of a saved batch."""
    return rs.summarize(
        torch.from_numpy(batch["old_per_token_logps"]),
        torch.from_numpy(batch["sampling_per_token_logps"]),
        torch.from_numpy(batch["completion_mask"]),
        correction=correction,
        advantages=torch.from_numpy(batch["advantages"]),
    ).metrics()


@pytest.mark.parametrize("mode", MODES)
def test_corrected_ratios_keep_the_cap_that_raw_ones_exceed(runs: dict[str, Run], mode: str) -> None:
    """On real rollouts the largest raw ratio is above clip_max and the largest corrected one is not."""
    for row in runs[mode].logged:
        assert row[f"{RAW}/max"] > CLIP_MAX
        assert row[f"{CORRECTED}/max"] <= np.float32(CLIP_MAX)


@pytest.mark.parametrize("mode", MODES)
def test_the_log_equals_numpy(runs: dict[str, Run], mode: str) -> None:
    """trainer_state.json has numpy's values of the batches, under the documented names, at every step."""
    run = runs[mode]
    assert [row["step"] for row in run.logged] == [1, 2, 3]
    for row, batch in zip(run.logged, run.batches[0], strict=True):
        for key, value in expected([batch], mode.split("_")[0]).items():
            assert row[key] == pytest.approx(value, rel=1e-5), key


@pytest.mark.parametrize("mode", MODES)
def test_wandb_received_the_run(runs: dict[str, Run], mode: str) -> None:
    """The .wandb file holds the scalars under train/, histograms that sum to n in the same row, and the config."""
    run = runs[mode]
    received = read_wandb(run.folder / "wandb")
    rows = [row for row in received.history if f"train/{RAW}/mean" in row]
    assert len(rows) == len(run.logged)
    for row, logged, batch in zip(rows, run.logged, run.batches[0], strict=True):
        assert row["train/global_step"] == logged["step"]
        assert {key: row[f"train/{key}"] for key in HEADLINE} == {key: logged[key] for key in HEADLINE}
        assert "train/loss" in row
        assert row["ratioscope/hist/token_log_ratio._type"] == "histogram"
        assert sum(row["ratioscope/hist/token_log_ratio.values"]) == batch["completion_mask"].sum()
        assert sum(row["ratioscope/hist/sequence_log_ratio.values"]) == len(batch["completion_mask"])
        assert row["ratioscope/counts/tokens"] == batch["completion_mask"].sum()
    correction = received.config["ratioscope"]["correction"]
    assert (correction["mode"], correction["upper"]) == (mode, CLIP_MAX)
    assert received.exit_code == 0


@pytest.mark.parametrize("mode", MODES)
def test_mlflow_received_the_run(runs: dict[str, Run], mode: str) -> None:
    """MLflow's SQLite has the scalars, params, the config, and pictures and counts of the histograms."""
    run = runs[mode]
    run_id = run.mlflow_run_id()
    received = read_mlflow(run.mlflow_uri, run_id)
    for key in HEADLINE:
        assert [(m.step, m.value) for m in received.metrics[key]] == [(row["step"], row[key]) for row in run.logged]
    tokens = [int(batch["completion_mask"].sum()) for batch in run.batches[0]]
    assert [m.value for m in received.metrics["ratioscope/counts/tokens"]] == tokens
    assert received.params["ratioscope.correction.mode"] == mode
    assert received.params["ratioscope.engine.logprobs_mode"] == "processed_logprobs"
    assert received.status == "FINISHED"
    config = json.loads(read_mlflow_artifact(run.mlflow_uri, run_id, "ratioscope/config.json"))
    assert config["sampling"]["temperature"] == 1.0
    assert config["engine"]["vllm_mode"] == "colocate"
    pictures = [path for path in received.artifacts if path.endswith(".png")]
    assert any("log_ratio_over_training" in path for path in pictures)
    assert len(pictures) >= 3
    stored = json.loads(read_mlflow_artifact(run.mlflow_uri, run_id, "ratioscope/histograms.json"))
    (series,) = stored["histograms"]["ratioscope/hist/token_log_ratio"]
    assert [window["steps"] for window in series["windows"]] == [[1, 1], [2, 2], [3, 3]]
    assert [sum(window["counts"]) for window in series["windows"]] == tokens


@pytest.mark.parametrize("mode", MODES)
def test_tensorboard_received_the_run(runs: dict[str, Run], mode: str) -> None:
    """The trainer's own event file has the scalars, and native histograms that sum to the number of tokens."""
    run = runs[mode]
    received = read_tensorboard(run.folder / "tensorboard" / mode)
    for key in HEADLINE:
        values = [value for _, value in received.scalars[f"train/{key}"]]
        assert values == pytest.approx([row[key] for row in run.logged], rel=1e-6)
    histograms = received.histograms["ratioscope/hist/token_log_ratio"]
    tokens = [int(batch["completion_mask"].sum()) for batch in run.batches[0]]
    assert [step for step, _ in histograms] == [1, 2, 3]
    assert [sum(count for _, _, count in buckets) for _, buckets in histograms] == tokens


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_masking_gives_smaller_weights_than_truncation(runs: dict[str, Run], level: Any) -> None:
    """On the same rollouts the mean weight after masking is smaller than after truncation."""
    for batch in runs[f"{level}_mask"].batches[0]:
        means = [
            summarize(batch, rs.Correction(level, action, upper=CLIP_MAX))["ratioscope/corrected/mean"]
            for action in ("mask", "truncate")
        ]
        assert means[0] < means[1]


def test_sequences_are_modified_more_often_than_tokens(runs: dict[str, Run]) -> None:
    """On the same rollouts the modified fraction of sequences exceeds that of tokens."""
    for batch in runs["token_truncate"].batches[0]:
        fractions = [
            summarize(batch, rs.Correction(level, "truncate", upper=CLIP_MAX))["ratioscope/modified/fraction"]
            for level in ("token", "sequence")
        ]
        assert fractions[1] > fractions[0]


@pytest.mark.parametrize("mode", MODES)
def test_weights_are_bit_identical_to_trls(runs: dict[str, Run], mode: str) -> None:
    """On real rollouts rs.correct returns the weights that TRL multiplies its loss with, bit for bit."""
    level, action = mode.split("_")
    rule = rs.Correction(level, action, upper=CLIP_MAX)  # type: ignore[arg-type]
    for batch in runs[mode].batches[0]:
        train, rollout, mask = (
            torch.from_numpy(batch[key])
            for key in ("old_per_token_logps", "sampling_per_token_logps", "completion_mask")
        )
        weights = rs.correct(train, rollout, mask, correction=rule)
        assert torch.equal(weights, torch.from_numpy(batch["importance_sampling_ratio"]))


def test_two_processes_report_their_union(tmp_path: Path) -> None:
    """Under torchrun each logged value covers the tokens of both ranks, and there is one MLflow run."""
    run = launch(tmp_path, "sequence_truncate", processes=2, report_to="mlflow")
    assert len(run.logged) == STEPS
    for index, row in enumerate(run.logged):
        window = [run.batches[rank][index] for rank in (0, 1)]
        for key, value in expected(window, "sequence").items():
            assert row[key] == pytest.approx(value, rel=1e-5), key
    received = read_mlflow(run.mlflow_uri, run.mlflow_run_id())
    tokens = [sum(int(run.batches[rank][i]["completion_mask"].sum()) for rank in (0, 1)) for i in range(STEPS)]
    assert [m.value for m in received.metrics["ratioscope/counts/tokens"]] == tokens
