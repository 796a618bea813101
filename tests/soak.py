"""Flushes for a long time, with two background trackers that live for the first half; prints what it measured.

python tests/soak.py FOLDER FLUSHES
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import ratioscope as rs

if TYPE_CHECKING:
    from collections.abc import Sequence


class Backend:
    """A background tracker that counts, until it fails or hangs for ever."""

    background = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        self.fails = False
        self.hangs = False

    def open(self, run: rs.RunContext) -> bool:
        """Is ready at once."""
        return True

    def connect(self) -> dict[str, str]:
        """Names a run."""
        return {"run_id": self.name}

    def write(self, row: rs.Row) -> None:
        """Counts a row."""
        self.write_many([row])

    def write_many(self, rows: Sequence[rs.Row]) -> None:
        """Counts rows, fails, or never returns."""
        if self.hangs:
            threading.Event().wait()
        if self.fails:
            raise ConnectionError(self.name)
        self.rows += len(rows)

    def close(self) -> None:
        """Nothing to do."""

    def where(self) -> str:
        """Says how many."""
        return f"{self.rows} rows"


def resident_mb() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _wait_for(backends: list[Backend], rows: int) -> None:
    deadline = time.monotonic() + 30
    while any(backend.rows < rows for backend in backends) and time.monotonic() < deadline:
        time.sleep(0.05)


def main(folder: Path, flushes: int) -> dict[str, Any]:
    """Runs it; memory and threads are looked at ten times in each half."""
    torch.set_num_threads(1)
    failing, hanging = Backend("failing"), Backend("hanging")
    rollout = -torch.rand(2, 8) - 0.1
    train, mask = rollout + 0.05 * torch.randn(2, 8), torch.ones(2, 8, dtype=torch.bool)
    recorder = rs.Recorder(report_to=[failing, hanging], output_dir=folder)
    memory, threads, took = [], [], []
    start = time.monotonic()
    for step in range(1, flushes + 1):
        if step == flushes // 2:
            _wait_for([failing, hanging], step - 1)
            failing.fails = hanging.hangs = True
        recorder.observe(train, rollout, mask)
        before = time.perf_counter()
        recorder.flush(step=step)
        took.append(time.perf_counter() - before)
        if step % (flushes // 20) == 0:
            memory.append(resident_mb())
            threads.append(threading.active_count())
    seconds = time.monotonic() - start
    alive = (failing.rows, hanging.rows)
    recorder.close()
    size = sum(path.stat().st_size for path in (folder / "ratioscope").iterdir())
    took.sort()
    return {
        "seconds": seconds,
        "memory": memory,
        "threads": threads,
        "delivered": alive,
        "bytes_per_record": size / flushes,
        "flush_ms": {"p50": 1e3 * took[len(took) // 2], "p99": 1e3 * took[int(0.99 * len(took))]},
        "incidents": dict(recorder.incidents.counts),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
