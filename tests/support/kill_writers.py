"""Forks journal writers and kills each at a random moment; prints the records that each reported as committed.

python tests/support/kill_writers.py FOLDER KILLS
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import ratioscope as rs
from ratioscope.journal.writer import Journal


def make_record(step: int) -> rs.Record:
    """Makes a record with data."""
    rollout = -torch.rand(4, 16) - 0.1
    summary = rs.summarize(rollout + 0.05 * torch.randn(4, 16), rollout, torch.ones(4, 16))
    return rs.Record(step, "train", 1.0 + step, summary.metrics(), summary.to_host())


def write_until_killed(folder: Path, channel: int, records: list[rs.Record]) -> None:
    """Appends records until it is killed, and reports each record after its commit."""
    journal = Journal(folder, config={"part": "kill"}, restored_step=0)
    for record in records:
        os.write(channel, f"{journal.append(record)}\n".encode())
    time.sleep(60)


def main(folder: Path, kills: int) -> None:
    """Runs the writers one after the other."""
    torch.set_num_threads(1)
    rng = random.Random(7)
    records = [make_record(step) for step in range(1, 400)]
    for number in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            write_until_killed(folder, writer, records)
        os.close(writer)
        time.sleep(rng.uniform(0.002, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader) as reported:
            print(number, *reported.read().split("\n")[:-1], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
