"""Flushes for a long time, reporting to MLflow and W&B; prints its measurements as JSON.

    python tests/support/soak.py FOLDER FLUSHES

At half time it prints a line and waits for one, so that the caller can end both servers.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import ratioscope as rs

WARM = 64
"""Rows that either tracker has taken before memory is looked at: until then its packages are still being loaded."""


def resident_mb() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _delivered(record: rs.Record | None) -> dict[str, float]:
    health = {} if record is None else record.health
    return {name: health.get(f"ratioscope/delivery/{name}/delivered", 0.0) for name in ("mlflow", "wandb")}


def main(folder: Path, flushes: int) -> dict[str, Any]:
    """Runs it; memory and threads are looked at forty times."""
    torch.set_num_threads(1)
    rollout = -torch.rand(2, 8) - 0.1
    train, mask = rollout + 0.05 * torch.randn(2, 8), torch.ones(2, 8, dtype=torch.bool)
    recorder = rs.Recorder(report_to=["mlflow", "wandb"], output_dir=folder)
    memory, threads, took, alive, record = [], [], [], {}, None
    start = time.monotonic()
    for step in range(1, flushes + 1):
        if step == flushes // 2:
            alive = _delivered(record)
            print("half", flush=True)
            sys.stdin.readline()
        recorder.observe(train, rollout, mask)
        before = time.perf_counter()
        record = recorder.flush(step=step)
        took.append(time.perf_counter() - before)
        while step == flushes // 20 and min(_delivered(record).values()) < WARM:
            time.sleep(1.0)
            record = recorder.flush(step=step) if recorder.observe(train, rollout, mask) is None else None
        if step % (flushes // 40) == 0 and step >= flushes // 20:
            memory.append(resident_mb())
            threads.append(threading.active_count())
    seconds = time.monotonic() - start
    closing = time.monotonic()
    recorder.close()
    size = sum(path.stat().st_size for path in (folder / "ratioscope").iterdir())
    took.sort()
    return {
        "seconds": seconds,
        "close_s": time.monotonic() - closing,
        "memory": memory,
        "threads": threads,
        "alive": alive,
        "bytes_per_record": size / flushes,
        "flush_ms": {"p50": 1e3 * took[len(took) // 2], "p99": 1e3 * took[int(0.99 * len(took))]},
        "incidents": dict(recorder.incidents.counts),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
