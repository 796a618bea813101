"""A TRL training that reports to one of the further trackers itself, with ours attached to its run.

    python tests/layers/tracker_training.py TRACKER FOLDER

Writes the mean ratios of the trainer's log to ``logged.json`` in the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from transformers.integrations import integration_utils

from ratioscope_integrations.trainers.trl import reading
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.layers.tracker_readers import tracker
from tests.support.fake_engine import make_trainer

MEAN = "sampling/raw_importance_sampling_ratio/mean"


def main(name: str, folder: Path) -> None:
    """Trains two steps."""
    reading.names = lambda: [name]  # also where the package's metadata does not know it yet
    assert name in integration_utils.INTEGRATION_TO_CALLBACK
    if name == "swanlab":  # its reporter asks for a live run, which from SwanLab 0.8 on raises where there is none
        import swanlab

        swanlab.init(project="ratioscope")
    trainer: Any = make_trainer(folder / "out", report_to=[name], run_name="conformance")
    trainer.add_callback(RatioscopeCallback(trainer, report_to=[tracker(name)()]))
    trainer.train()
    logged = [row[MEAN] for row in trainer.state.log_history if MEAN in row]
    (folder / "logged.json").write_text(json.dumps(logged))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
