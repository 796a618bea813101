"""Own training loop with accelerate and its trackers; each rank writes its records to a file.

python -m torch.distributed.run --nproc_per_node 2 tests/support/accelerate_training.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator, ParallelismConfig
from accelerate.tracking import GeneralTracker

import ratioscope as rs

RULE = rs.Correction("token", "truncate", upper=2.0)
RATIOS = ([0.5, 1.0], [1.5, 3.0])
"""Ratios of each rank."""


class Lines(GeneralTracker):  # type: ignore[misc]
    """Tracker that the user wrote."""

    name = "lines"
    requires_logging_directory = False

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    @property
    def tracker(self) -> Path:
        """The file that it writes to."""
        return self.path

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Appends a line."""
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")


def observe(recorder: rs.Recorder, rank: int) -> None:
    """Observes one batch of this rank's ratios."""
    train = torch.tensor([RATIOS[rank]]).log()
    recorder.observe(train, torch.zeros_like(train), torch.ones_like(train))


def train(folder: Path) -> dict[str, Any]:
    """Trains three steps; the trackers begin after the first one."""
    log_with: list[Any] = ["wandb", "mlflow", "tensorboard", "trackio", Lines(folder / "lines.jsonl")]
    accelerator = Accelerator(cpu=True, log_with=log_with, project_dir=str(folder / "logs"))
    rank = accelerator.process_index
    recorder = rs.Recorder(accelerator=accelerator, correction=RULE, output_dir=folder / "out")
    records = []
    for step in (1, 2, 3):
        observe(recorder, rank)
        records.append(recorder.flush(step=step))
        if step == 1:
            accelerator.init_trackers("accelerated", config={"lr": 0.1})
        accelerator.log({"loss": 1.0 / step}, step=step)
    recorder.close()
    accelerator.log({"last": 5.0}, step=3)
    group = across_tensor_parallel(rank) if accelerator.num_processes > 1 else None
    accelerator.end_training()
    return {
        "records": [None if record is None else record.to_json() for record in records],
        "trackers": recorder.tracker_names,
        "incidents": dict(recorder.incidents.counts),
        "tensor_parallel": group,
    }


def across_tensor_parallel(rank: int) -> dict[str, Any]:
    """Records on ranks that share one model and one batch, which each rank counts alone."""
    parallelism = ParallelismConfig(tp_size=2)
    mesh = parallelism.get_device_mesh("cpu")
    accelerator = SimpleNamespace(
        log_with=[], trackers=[], parallelism_config=parallelism, torch_device_mesh=mesh, num_processes=2
    )
    recorder = rs.Recorder(accelerator=accelerator)
    observe(recorder, 0)
    record = recorder.flush(step=1)
    assert record is not None
    return {"world_size": record.world_size, "tokens": record.scalars["ratioscope/counts/tokens"]}


if __name__ == "__main__":
    out = Path(sys.argv[1])
    results = train(out)
    rank = int(os.environ.get("RANK", "0"))
    (out / f"rank{rank}.json").write_text(json.dumps(results))
