"""A loop that reports to W&B while its server hangs, for a process of its own.

python tests/support/wandb_outage.py FOLDER HANGS_S LASTS_S
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import ratioscope as rs
from ratioscope_integrations.trackers.wandb import runs
from tests.support.faults import Proxy, WandbServer


def main(folder: Path, hangs_s: float, lasts_s: float) -> None:
    """Records until the time is over, and prints what arrived before and after the end."""
    runs.INIT_TIMEOUT_S = 4.0
    server = WandbServer()
    proxy = Proxy(server.port, "hang")
    os.environ.update(WANDB_BASE_URL=proxy.url, WANDB_API_KEY="a" * 40, WANDB_SILENT="true")
    recorder = rs.Recorder(output_dir=folder, report_to=["wandb"], close_timeout=5.0)
    began, step, is_well = time.monotonic(), 0, False
    while time.monotonic() - began < lasts_s:
        step += 1
        logps = -torch.rand(2, 4) - 0.1
        recorder.observe(logps + 0.05 * torch.randn(2, 4), logps, torch.ones(2, 4))
        recorder.flush(step=step)
        time.sleep(0.2)
        if not is_well and time.monotonic() - began > hangs_s:
            is_well = True
            proxy.switch("pass")
    during = sum(len(run.history) for run in server.runs.values())
    recorder.close()
    stored = [len(run.history) for run in server.runs.values()]
    print(json.dumps({"steps": step, "during": during, "stored": stored, "closed": time.monotonic()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
