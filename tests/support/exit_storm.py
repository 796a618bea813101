"""Processes that end in every way with a backlog and with trackers that hang; prints what was not as expected.

python tests/support/exit_storm.py storm FOLDER PROCESSES [AT_ONCE]
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import ratioscope as rs
from ratioscope.trackers.base import Tracker

CODES = {"returns": 0, "exits": 3, "raises": 1, "terminated": -signal.SIGTERM, "leaves": 0, "handled": 5}
"""Exit code of each way to end."""
LONGEST_S = 15.0
BACKLOG = 300


class Hanging(Tracker):
    """Tracker that never returns from its first row."""

    name = "hanging"
    background = True

    def open(self, run: rs.RunContext) -> bool:
        """Accepts any run."""
        return True

    def write(self, row: rs.Row) -> None:
        """Hangs."""
        threading.Event().wait()

    def close(self) -> None:
        """Does nothing."""

    def where(self) -> str:
        """Names no place."""
        return "nowhere"


class Busy(Hanging):
    """Tracker that is busy with each row, in torch's code too."""

    name = "busy"

    def write(self, row: rs.Row) -> None:
        """Works for a while."""
        time.sleep(0.002)
        torch.ones(100_000).exp().sum().item()


def end(kind: str, folder: Path) -> None:
    """Fills a backlog and ends in the given way."""
    torch.set_num_threads(1)
    recorder = rs.Recorder(output_dir=folder, report_to=[Hanging(), Busy()], close_timeout=2.0)
    if kind == "handled":

        def close(*_: object) -> None:
            recorder.close()
            sys.exit(CODES["handled"])

        signal.signal(signal.SIGTERM, close)
    logps = -torch.rand(2, 4) - 0.1
    for step in range(BACKLOG):
        recorder.observe(logps + 0.01 * torch.randn(2, 4), logps, torch.ones(2, 4))
        recorder.flush(step=step)
    print(time.monotonic(), flush=True)
    if kind in ("terminated", "handled"):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(10**9):
            recorder.where()
    if kind == "exits":
        sys.exit(CODES["exits"])
    if kind == "raises":
        msg = "a fault of the user's"
        raise RuntimeError(msg)
    if kind == "returns":
        recorder.close()


def outcome(kind: str, folder: Path) -> str:
    """Runs one process; returns "ok", or what was not as expected."""
    command = [sys.executable, __file__, kind, str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=180)
    seconds = time.monotonic() - float(process.stdout.split()[-1])
    if process.returncode != CODES[kind]:
        return f"{kind}: exit code {process.returncode}: {process.stderr[-300:]}"
    with rs.JournalReader(folder) as reader:
        steps = [record.step for record in reader.records()]
    if steps != list(range(BACKLOG)):
        return f"{kind}: {len(steps)} records"
    return "ok" if seconds < LONGEST_S else f"{kind}: {seconds:.1f} s"


def storm(folder: Path, processes: int, at_once: int = 2) -> Counter[str]:
    """Runs processes of all kinds in turn and counts their outcomes."""
    kinds = list(CODES)
    with ThreadPoolExecutor(at_once) as pool:
        return Counter(pool.map(lambda n: outcome(kinds[n % len(kinds)], folder / str(n)), range(processes)))


if __name__ == "__main__":
    if sys.argv[1] == "storm":
        print(storm(Path(sys.argv[2]), *map(int, sys.argv[3:])))
    else:
        end(sys.argv[1], Path(sys.argv[2]))
