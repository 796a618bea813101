"""One rank of a TRL training that the callback stops because the engine returns zeros.

python tests/support/stop_training.py FOLDER, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.support.fake_engine import FakeEngine, make_trainer

MAX_STEPS = 400


def fill_with_zeros(logps: list[list[list[float | None]]]) -> None:
    """Sets the log-probability of every other token to 0."""
    for row in logps:
        row[::2] = [[0.0] for _ in row[::2]]


def main(folder: Path) -> None:
    """Trains until the stop, and writes the step at which it happened."""
    torch.set_num_threads(1)
    FakeEngine.spoil = staticmethod(fill_with_zeros)
    trainer = make_trainer(folder / "run", max_steps=MAX_STEPS, ddp_backend="gloo", logging_steps=2)
    callback = RatioscopeCallback(trainer, report_to="none", on_finding="stop")
    trainer.add_callback(callback)
    trainer.train()
    results = {"step": trainer.state.global_step, "knew": callback.recorder._reaction.wants_stop}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
