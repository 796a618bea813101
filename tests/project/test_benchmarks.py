"""Tests of the benchmarks: their measurements are right, and the committed ratios hold."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import guard, memory, peers, table
from benchmarks.__main__ import main
from benchmarks.batches import RULE, Case
from benchmarks.harness import WARM_UP, Row, exponent, interleave
from ratioscope.summary import kernels

ROOT = Path(__file__).resolve().parents[2]


def test_contenders_take_turns_and_warming_up_does_not_count() -> None:
    """Contenders are called equally often and in turns, and a slow first call does not change the median."""
    calls: list[str] = []

    def first_is_slow() -> None:
        if "a" not in calls:
            time.sleep(0.2)
        calls.append("a")

    times = interleave({"a": first_is_slow, "b": lambda: calls.append("b")}, seconds=0.0, least=4, most=4)
    assert calls[2 * WARM_UP :] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert len(calls) == 2 * (WARM_UP + 4)
    assert times["a"] < 100.0


def test_exponents() -> None:
    """The fit recovers the exponent of a power law, and 0 for a constant."""
    sizes = [10.0, 100.0, 1000.0]
    assert exponent(sizes, [3.0 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [7.0] * 3) == pytest.approx(0.0, abs=1e-12)


def test_memory_is_measured_at_the_peak() -> None:
    """Memory that torch and numpy hold at the peak counts; memory that was freed before does not."""
    size = 2**20

    def work() -> None:
        for _ in range(3):
            torch.ones(size, dtype=torch.uint8)

    assert memory.peak(work) == pytest.approx(size, rel=0.01)
    assert memory.peak(lambda: np.ones(size, np.uint8)) == pytest.approx(size, rel=0.01)


def test_the_trl_block_gives_the_numbers_of_trl() -> None:
    """The block that stands for TRL gives the numbers of a plain computation."""
    batch = Case(8, 32).make()
    d, mask = (batch.train.double() - batch.rollout.double()).numpy(), batch.mask.numpy()
    ratio, gap = np.minimum(np.exp(d), RULE.upper or np.inf)[mask], np.abs(d)[mask]
    expected = [gap.mean(), gap.max(), ratio.min(), ratio.mean(), ratio.max()]
    assert list(peers.trl(batch).values()) == pytest.approx(expected, rel=1e-5)


def test_a_file_keeps_rows_of_other_parts(tmp_path: Path) -> None:
    """A file keeps the rows of parts that were not run again."""
    file = tmp_path / "bench.json"
    old, other = Row("a", "x", "y", 1.0), Row("b", "x", "y", None, note="not run")
    new = Row("a", "x", "y", 2.0, ratios={"TRL": 0.5}, targets={"TRL": 0.4, "verl": 1.0})
    table.write([old, other], file)
    table.write([new], file)
    assert table.read(file) == [other, new]
    assert table.verdict(new) == "TRL <= 0.4: NOT met; verl <= 1: not measured"


def test_the_guard_names_ratios_that_grew_by_more_than_half() -> None:
    """A ratio of 1.5 times the reference passes, a larger one fails, and one without a reference is not compared."""
    assert guard.worse({"a": 1.5, "b": 1.51, "c": 9.0}, {"a": 1.0, "b": 1.0}) == ["b"]


@pytest.mark.slow
def test_ratios_hold(tmp_path: Path) -> None:
    """No ratio of the short form exceeds the committed one by more than half in each of three tries.

    Runs in a process of its own, like the committed measurement: times depend on the memory that was allocated before.
    """
    file = tmp_path / "bench.json"
    environment = {name: value for name, value in os.environ.items() if name != kernels.SWITCH}
    command = [sys.executable, "-m", "benchmarks", "guard", "--output", str(file)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    now = {row.name: row.ratios["reference"] for row in table.read(file) if row.subject == "guard"}
    assert {name for name in guard.expected() if not name.endswith("/ verl")} <= set(now)
    assert {name: ratio for name, ratio in now.items() if ratio > guard.FACTOR} == {}
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.distributed
def test_the_other_parts_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The parts for flush and memory print their table."""
    assert main(["flush", "memory", "--short", "--output", str(tmp_path / "bench.json")]) == 0
    shown = capsys.readouterr().out
    assert "4 gloo processes" in shown
    assert "1024 simulated ranks" in shown
