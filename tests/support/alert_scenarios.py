"""A run with a biased setting and an engine that fills in zeros, reported to every tracker.

python tests/support/alert_scenarios.py own|users FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import ratioscope as rs
from tests.support.synthetic import Spec, records
from tests.support.synthetic_faults import zero

CONFIG = {"sampling": {"top_p": 0.8, "temperature": 1.0}}
WINDOWS = 4


def write(recorder: rs.Recorder) -> None:
    """Writes the windows."""
    for record in records(Spec(windows=WINDOWS, rows=8, after=zero(0.5)), np.random.default_rng(3)):
        recorder.write(record)


def own(folder: Path) -> None:
    """Each tracker opens a run of its own."""
    trackers = ["wandb", "mlflow", "tensorboard", "trackio"]
    with rs.Recorder(report_to=trackers, output_dir=folder / "run", config=CONFIG, close_timeout=120) as recorder:
        write(recorder)
    assert not recorder.incidents.counts, recorder.incidents.counts


def users(folder: Path) -> None:
    """W&B and trackio have a run of the user's, which goes on."""
    import trackio
    import wandb

    theirs = wandb.init(project="user", dir=folder)
    trackio.init(project="user", name="mine")
    with rs.Recorder(report_to=["wandb", "trackio"], config=CONFIG, close_timeout=120) as recorder:
        write(recorder)
    assert not recorder.incidents.counts, recorder.incidents.counts
    trackio.finish()
    theirs.finish()


if __name__ == "__main__":
    {"own": own, "users": users}[sys.argv[1]](Path(sys.argv[2]))
