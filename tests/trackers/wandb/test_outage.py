"""W&B's server hangs: for a while, after which the same training delivers its rows, or until the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.trackers]

ROOT = Path(__file__).resolve().parents[3]


def run(folder: Path, hangs_s: float, lasts_s: float) -> tuple[dict[str, Any], float]:
    """Runs the loop in a process; returns what it printed, and the seconds from the close to the end of the process."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "wandb_outage.py"), str(folder)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [*command, str(hangs_s), str(lasts_s)],
        capture_output=True,
        text=True,
        env=kept | {"PYTHONPATH": paths},
        timeout=200,
        cwd=folder,
    )
    ended = time.monotonic()
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    return result, ended - result["closed"]


def test_rows_arrive_in_the_training_that_outlives_the_outage(tmp_path: Path) -> None:
    """A server that hung while the run was opened gets every row within the same training, in one run."""
    result, seconds = run(tmp_path, 10.0, 40.0)
    assert result["during"] > 0.5 * result["steps"], result
    assert result["stored"] == [result["steps"]]
    assert seconds < 10.0


def test_the_process_ends_soon_although_the_server_hangs(tmp_path: Path) -> None:
    """With a server that never answers the process ends within some seconds of the close."""
    result, seconds = run(tmp_path, 1000.0, 25.0)
    assert result["stored"] == []
    assert seconds < 10.0
