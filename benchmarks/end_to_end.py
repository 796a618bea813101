"""Cost of a whole run: a training step of the demo, the import, the journal, and the commands on a long run."""

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
"""Smallest ratio that counts: a clearly faster step with ratioscope than without means that the machine was busy."""


def run(*, short: bool) -> Iterator[Row]:
    """Measures all parts; without vLLM the step is listed as not run."""
    yield from imports(seconds=5.0 if short else 15.0)
    yield from commands(RECORDS // 10 if short else RECORDS)
    yield from step(STEPS_SHORT if short else STEPS)


def imports(*, seconds: float) -> Iterator[Row]:
    """Import of ratioscope against import of torch, in new processes, less the time of an empty process."""
    programs = {"ratioscope": "import ratioscope", "torch": "import torch", "nothing": "pass"}
    runs = {name: _program(sys.executable, "-c", program) for name, program in programs.items()}
    times = interleave(runs, seconds=seconds, least=3)
    took = {name: times[name] - times["nothing"] for name in ("ratioscope", "torch")}
    over = {"torch": took["ratioscope"] / took["torch"]}
    yield Row("end to end", "import", "ratioscope", took["ratioscope"], ratios=over)
    yield Row("end to end", "import", "torch", took["torch"])


def commands(records: int) -> Iterator[Row]:
    """Bytes of a journal, and the time of report and diagnose on it, against importing torch."""
    case = f"{records} records"
    with tempfile.TemporaryDirectory() as folder:
        path = _record(Path(folder), records)
        yield Row("end to end", case, "journal, per record", path.stat().st_size / records, "bytes")
        page = str(Path(folder) / "report.html")
        cli = (sys.executable, "-m", "ratioscope")
        runs = {
            "report to a page": _program(*cli, "report", folder, "-o", page),
            "diagnose": _program(*cli, "diagnose", folder, exit_codes=(0, 1)),
            "torch": _program(sys.executable, "-c", "import torch"),
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


def _program(*command: str, exit_codes: tuple[int, ...] = (0,)) -> Callable[[], None]:
    """Makes a function that runs a program to its end and checks its exit code."""

    def run_program() -> None:
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode not in exit_codes:
            raise subprocess.CalledProcessError(done.returncode, command)

    return run_program


def step(steps: int) -> Iterator[Row]:
    """A GRPO step of the demo with the callback and three trackers, against the step without them."""
    case = f"GRPO step of the vLLM demo, {steps} steps"
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.step", str(result), str(steps), folder]
        done = subprocess.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
        if not result.exists():
            reason = (done.stderr.strip().splitlines() or ["no error output"])[-1]
            yield Row("end to end", case, "with ratioscope", None, note=f"not run: {reason}")
            return
        medians = json.loads(result.read_text())
    ratio, inside = medians["with"] / medians["without"], medians["inside"]
    yield Row(
        "end to end",
        case,
        "with ratioscope, all of its trackers",
        medians["with"],
        ratios={"without": ratio},
        targets={"without": STEP_TARGET} if ratio >= BELIEVABLE else {},
        note="" if ratio >= BELIEVABLE else "the machine was too busy to measure",
    )
    yield Row("end to end", case, "without", medians["without"])
    over = {"a step without": inside / medians["without"]}
    yield Row("end to end", case, "on the training thread", inside, ratios=over, targets={"a step without": 0.005})
    for name, value in medians["parts"].items():
        if name != "whole":
            over, note = {"a step without": value / medians["without"]}, f"at work for {medians['worked'][name]:.2f} ms"
            yield Row("end to end", case, f"of that, {name}", value, ratios=over, note=note)
    over = {"a step without": medians["background"] / medians["without"]}
    yield Row("end to end", case, "processor time of its threads, per step", medians["background"], ratios=over)
