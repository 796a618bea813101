"""Flush of a window: time of each stage, in one process, in several, and with up to 1024 simulated ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import ratioscope as rs
from benchmarks import simulated
from benchmarks.batches import RULE, Case
from benchmarks.harness import Row, interleave
from benchmarks.stages import Stages
from ratioscope.alerts.watch import Watch
from ratioscope.delivery.fanout import Fanout
from ratioscope.journal.writer import Journal
from ratioscope.recording import windows
from ratioscope.summary.host import PACKED_SIZE, HostSummary
from ratioscope.summary.summary import RatioSummary

if TYPE_CHECKING:
    from collections.abc import Iterator

METHODS = {
    "pack": (RatioSummary, "pack"),
    "unpack": (HostSummary, "unpack"),
    "pack, merge over ranks and unpack": (windows, "all_merge"),
    "record: every statistic": (HostSummary, "metrics"),
    "journal commit": (Journal, "append"),
    "enqueue for trackers": (Fanout, "write"),
    "hand to the diagnosis": (Watch, "add"),
}
WHOLE, ENQUEUE = "whole", "enqueue for trackers"
SKIP = 5
PROCESSES, PROCESSES_SHORT = (1, 2, 3, 4), (1, 2, 4)
RANKS = (1, 4, 16, 64, 256, 1024)


class Idle(rs.MemoryTracker):
    """Background tracker that discards its rows."""

    name = "idle"
    background = True

    def write(self, row: object) -> None:
        """Discards a row."""


def in_one_process(case: Case, *, flushes: int, tracker: bool = False) -> dict[str, float]:
    """Median milliseconds of each stage of real flushes, journal and diagnosis included."""
    batch = case.make()
    stages = Stages(METHODS)
    with tempfile.TemporaryDirectory() as folder:
        recorder = rs.Recorder(correction=RULE, output_dir=Path(folder), report_to=[Idle()] if tracker else None)
        with stages.watching(), recorder:
            for step in range(1, SKIP + flushes + 1):
                recorder.observe(batch.train, batch.rollout, batch.mask, token_ids=batch.token_ids)
                stages.flush(partial(recorder.flush, step=step))
    return stages.medians(skip=SKIP)


def in_processes(processes: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of merging over real gloo processes, and of one bare all-reduce of as many bytes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.ranks", str(Path(folder) / "meet"), str(processes), str(rounds)]
        ranks = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE if rank == 0 else None, text=True)
            for rank in range(processes)
        ]
        output, _ = ranks[0].communicate(timeout=300)
        failed = [rank.wait(timeout=60) for rank in ranks]
        if any(failed):
            msg = f"one of {processes} ranks failed"
            raise RuntimeError(msg)
    medians: dict[str, float] = json.loads(output)
    return medians


def run(*, short: bool) -> Iterator[Row]:
    """Measures stages in one process with and without a tracker, merges over real processes and simulated ranks."""
    flushes = 40 if short else 200
    small = Case(16, 256)
    for tracker in (False, True):
        kind = "one process, one idle tracker" if tracker else "one process, no tracker"
        for name, value in in_one_process(small, flushes=flushes, tracker=tracker).items():
            targets = {}
            if name == WHOLE and not tracker:
                targets = {"value": 3.0}
            elif name == ENQUEUE and tracker:
                targets = {"value": 0.2}
            yield Row("flush", kind, name, value, targets=targets)
    for processes in PROCESSES_SHORT if short else PROCESSES:
        times = in_processes(processes, 40 if short else 200)
        merge, reduce = times["merge"], times["all_reduce"]
        ratios = {"one all-reduce of as many bytes": merge / reduce} if processes > 1 else {}
        yield Row("flush", f"{processes} gloo processes", "pack, merge over ranks and unpack", merge, ratios=ratios)
    yield from in_simulated_ranks(seconds=1.0 if short else 3.0)


def in_simulated_ranks(*, seconds: float) -> Iterator[Row]:
    """Bytes sent and received, and computing time, of one of up to 1024 ranks, without the network."""
    batch = Case(16, 256).make()
    summary = rs.summarize(batch.train, batch.rollout, batch.mask, correction=RULE, token_ids=batch.token_ids)
    groups = {ranks: simulated.Group(ranks) for ranks in RANKS}
    merges = {str(ranks): partial(group.merge, summary) for ranks, group in groups.items()}
    times = interleave(merges, seconds=seconds)
    for ranks, group in groups.items():
        case = f"{ranks} simulated ranks"
        over = {"one rank": times[str(ranks)] / times["1"]}
        yield Row("flush", case, "merge without the network", times[str(ranks)], ratios=over)
        yield Row("flush", case, "sent by a rank", float(group.sent), "bytes", note=f"{group.collectives} collectives")
        yield Row("flush", case, "received by a rank", float(group.received), "bytes")
    yield Row("flush", "any", "packed summary", float(8 * PACKED_SIZE), "bytes", note="for any batch")
