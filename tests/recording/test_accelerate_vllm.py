"""The accelerate example with real vLLM trains, and records exactly the sampled tokens and the used weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ratioscope as rs
from tests.support.readback import read_tensorboard

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

DRIVER = Path(__file__).resolve().parents[1] / "support" / "drive_accelerate.py"
CAP = 1.2
LAUNCHERS = {
    1: ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"],
    2: ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"],
}

Batch = dict[str, "NDArray[Any]"]


def launch(folder: Path, processes: int, *options: str) -> tuple[str, list[list[Batch]], list[rs.Record]]:
    """Runs the example in new processes; returns its output, each rank's batches, and the journal's records."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")},
        "PYTHONPATH": os.pathsep.join([str(DRIVER.parents[1]), *filter(None, sys.path)]),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *LAUNCHERS[processes], str(DRIVER), str(folder / "batches"), *options]
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(
            [*command, "--output-dir", str(folder)], env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=800
        )
    text = (folder / "log.txt").read_text()
    assert done.returncode == 0, text[-4000:]
    assert "reported once" not in text
    batches = [
        [dict(np.load(path)) for path in sorted((folder / "batches").glob(f"rank{rank}-*.npz"))]
        for rank in range(processes)
    ]
    with rs.JournalReader(folder) as journal:
        return text, batches, list(journal.records())


def log_ratios(batch: Batch) -> NDArray[np.float64]:
    """Computes the log-ratios of the sampled tokens in numpy."""
    return (batch["old_logps"] - batch["rollout_logps"]).astype(np.float64)[batch["mask"]]


def check(batches: list[list[Batch]], records: list[rs.Record]) -> None:
    """Asserts that each record covers all ranks' tokens, and that the loss used the rule's weights."""
    for index, record in enumerate(records):
        window = [rank[index] for rank in batches]
        d = np.concatenate([log_ratios(batch) for batch in window])
        assert record.scalars["ratioscope/counts/tokens"] == sum(batch["lengths"].sum() for batch in window)
        assert record.scalars["ratioscope/tokens/invalid"] == 0
        assert record.scalars["ratioscope/log_ratio/abs_mean"] == pytest.approx(np.abs(d).mean(), rel=1e-5)
        assert record.summary.count("disagreements") == 0
        assert np.abs(d).mean() < 0.15, "the engine has other weights than the trainer"
        for batch in window:
            expected = np.minimum(np.exp(log_ratios(batch)), CAP)
            np.testing.assert_allclose(batch["weights"][batch["mask"]], expected, rtol=1e-5)


def test_a_custom_loop_is_recorded(tmp_path: Path) -> None:
    """Under `accelerate launch` the loop trains, weights follow the rule, and the journal has the sampled tokens."""
    text, (batches,), records = launch(tmp_path, 1, "--steps", "3", "--log-with", "tensorboard")
    assert [record.step for record in records] == [1, 2, 3]
    check([batches], records)
    for batch in batches:
        assert batch["counted"] == 0
        assert batch["mask"].sum(axis=1).tolist() == batch["lengths"].tolist()
        sums = np.where(batch["mask"], batch["rollout_logps"], 0.0).sum(axis=1, dtype=np.float64)
        np.testing.assert_allclose(sums, batch["cumulative"], rtol=1e-4)
        first, last = batch["losses"][0], batch["losses"][-1]
        assert last < first
    norms = [float(line) for line in (tmp_path / "batches" / "norms.txt").read_text().split()]
    assert len(set(norms)) == 3
    config = rs.JournalReader(tmp_path).config()
    assert config["engine"]["logprobs_mode"] == "processed_logprobs"
    assert config["sampling"]["temperature"] == 1.0
    assert config["accelerate"]["num_processes"] == 1
    received = read_tensorboard(tmp_path / "ratioscope")
    assert [step for step, _ in received.scalars["loss"]] == [1, 2, 3]
    assert [step for step, _ in received.histograms["ratioscope/hist/token_log_ratio"]] == [1, 2, 3]
    assert "step 3: loss" in text
    assert "Mean |log-ratio|" in text
    assert "Traceback" not in text


def test_two_processes_sample_and_report_together(tmp_path: Path) -> None:
    """Under torchrun each process has its own engine, and each record covers both."""
    _, batches, records = launch(tmp_path, 2, "--steps", "2", "--prompts", "2")
    assert [record.world_size for record in records] == [2, 2]
    assert not np.array_equal(batches[0][0]["token_ids"], batches[1][0]["token_ids"])
    check(batches, records)
