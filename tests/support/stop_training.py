"""One rank of a TRL training in which the engine gives zeros and the callback is to stop it.

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
    """Has the engine claim certainty of every other token."""
    for row in logps:
        row[::2] = [[0.0] for _ in row[::2]]


def main(folder: Path) -> None:
    """Trains until it is stopped, and says at which step that was."""
    torch.set_num_threads(1)
    FakeEngine.spoil = staticmethod(fill_with_zeros)
    trainer = make_trainer(folder / "run", max_steps=MAX_STEPS, ddp_backend="gloo", logging_steps=2)
    callback = RatioscopeCallback(trainer, report_to="none", on_finding="stop")
    trainer.add_callback(callback)
    trainer.train()
    seen = {"step": trainer.state.global_step, "knew": callback.recorder._reaction.wants_stop}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
