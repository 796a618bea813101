"""A long run: memory, threads and the journal's size stay in bounds, with trackers alive and then dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

FLUSHES = 20_000
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What 20 000 flushes measured."""
    folder = tmp_path_factory.mktemp("soak")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, str(ROOT / "tests" / "soak.py"), str(folder), str(FLUSHES)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def _print_size(measured: dict[str, Any]) -> None:
    print(f"{measured['bytes_per_record']:.0f} bytes per record, {measured['seconds']:.0f} s, {measured['flush_ms']}")


def _memory_is_flat(measured: dict[str, Any]) -> None:
    half = measured["memory"][len(measured["memory"]) // 2 - 1 :]
    assert max(half) - half[0] < 20, measured["memory"]


def _threads_are_constant(measured: dict[str, Any]) -> None:
    assert len(set(measured["threads"])) == 1, measured["threads"]


def _both_were_served(measured: dict[str, Any]) -> None:
    assert measured["delivered"] == [FLUSHES // 2 - 1] * 2


def _records_are_small(measured: dict[str, Any]) -> None:
    assert measured["bytes_per_record"] < 16_000


def _failures_are_told(measured: dict[str, Any]) -> None:
    assert {"failing is incomplete", "hanging did not finish"} <= set(measured["incidents"])
    assert not [kind for kind in measured["incidents"] if kind.startswith(("journal", "writing"))]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "holds",
    [_print_size, _memory_is_flat, _threads_are_constant, _both_were_served, _records_are_small, _failures_are_told],
    ids=lambda check: check.__name__.strip("_"),
)
def test_a_long_run_stays_in_bounds(soaked: dict[str, Any], holds: Callable[[dict[str, Any]], None]) -> None:
    """Over 20 000 flushes memory grows by less than 20 MB, no thread is added, and what is lost is told."""
    holds(soaked)
