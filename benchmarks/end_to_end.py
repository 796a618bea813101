"""What a run as a whole pays: a step of the real demo, importing, the journal, and the commands on a long run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import ratioscope as rs
from benchmarks.batches import RULE
from benchmarks.harness import Row, interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECORDS, ROWS, WIDTH = 10_000, 16, 64
STEPS, STEPS_SHORT = 120, 40
STEP_TARGET = 1.005
BELIEVABLE = 0.98
"""Below, a step with more to do would have been faster than one without: the machine was busy, and nothing is known."""


def run(*, short: bool) -> Iterator[Row]:
    """All of it; the step needs vLLM, and is named as not run where it is missing."""
    yield from imports(seconds=5.0 if short else 15.0)
    yield from commands(RECORDS // 10 if short else RECORDS)
    yield from step(STEPS_SHORT if short else STEPS)


def imports(*, seconds: float) -> Iterator[Row]:
    """Importing ratioscope against importing torch, each in a new process, an empty process taken off."""
    programs = {"ratioscope": "import ratioscope", "torch": "import torch", "nothing": "pass"}
    runs = {name: _ends(sys.executable, "-c", program) for name, program in programs.items()}
    times = interleave(runs, seconds=seconds, least=3)
    took = {name: times[name] - times["nothing"] for name in ("ratioscope", "torch")}
    over = {"torch": took["ratioscope"] / took["torch"]}
    yield Row("end to end", "import", "ratioscope", took["ratioscope"], ratios=over)
    yield Row("end to end", "import", "torch", took["torch"])


def commands(records: int) -> Iterator[Row]:
    """Bytes of the journal, and report and diagnose on all of it, against importing torch."""
    case = f"{records} records"
    with tempfile.TemporaryDirectory() as folder:
        path = _record(Path(folder), records)
        yield Row("end to end", case, "journal, of each record", path.stat().st_size / records, "bytes")
        page = str(Path(folder) / "report.html")
        cli = (sys.executable, "-m", "ratioscope")
        runs = {
            "report to a page": _ends(*cli, "report", folder, "-o", page),
            "diagnose": _ends(*cli, "diagnose", folder, fine=(0, 1)),
            "torch": _ends(sys.executable, "-c", "import torch"),
        }
        times = interleave(runs, seconds=0.0, least=3, most=3)
    for name in ("report to a page", "diagnose"):
        yield Row("end to end", case, name, times[name], ratios={"importing torch": times[name] / times["torch"]})


def _record(folder: Path, records: int) -> Path:
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(ROWS, WIDTH, dtype=torch.bool)
    with rs.Recorder(correction=RULE, output_dir=folder) as recorder:
        for number in range(1, records + 1):
            rollout = -1.0 - torch.rand(ROWS, WIDTH, generator=generator)
            recorder.observe(rollout + 0.02 * torch.randn(ROWS, WIDTH, generator=generator), rollout, mask)
            recorder.flush(step=number)
        path = recorder.journal_path
    assert path is not None
    return path


def _ends(*command: str, fine: tuple[int, ...] = (0,)) -> Callable[[], None]:
    """What runs a program to its end."""

    def to_its_end() -> None:
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode not in fine:
            raise subprocess.CalledProcessError(done.returncode, command)

    return to_its_end


def step(steps: int) -> Iterator[Row]:
    """A GRPO step of the demo with the callback and three trackers, against the same step without."""
    case = f"GRPO step of the vLLM demo, {steps} steps"
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.step", str(result), str(steps), folder]
        done = subprocess.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
        if not result.exists():
            why = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
            yield Row("end to end", case, "with ratioscope", None, note=f"not run: {why}")
            return
        got = json.loads(result.read_text())
    ratio, inside = got["with"] / got["without"], got["inside"]
    yield Row(
        "end to end",
        case,
        "with ratioscope, all of its trackers",
        got["with"],
        ratios={"without": ratio},
        targets={"without": STEP_TARGET} if ratio >= BELIEVABLE else {},
        note="" if ratio >= BELIEVABLE else "the machine was too busy to tell",
    )
    yield Row("end to end", case, "without", got["without"])
    over = {"a step without": inside / got["without"]}
    yield Row("end to end", case, "on the training thread", inside, ratios=over, targets={"a step without": 0.005})
    for name, value in got["parts"].items():
        if name != "whole":
            over, note = {"a step without": value / got["without"]}, f"at work for {got['worked'][name]:.2f} ms"
            yield Row("end to end", case, f"of that, {name}", value, ratios=over, note=note)
    over = {"a step without": got["background"] / got["without"]}
    yield Row("end to end", case, "processor time of its threads, each step", got["background"], ratios=over)
