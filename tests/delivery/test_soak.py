"""A long run: bounded memory, threads and journal size, with both trackers alive and then dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.faults import MlflowServer, Proxy, WandbServer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.slow, pytest.mark.trackers, pytest.mark.timeout(600)]

FLUSHES = 20_000
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Measurements of 20 000 flushes; in the second half MLflow's server refuses and W&B's never answers."""
    folder = tmp_path_factory.mktemp("soak")
    with ExitStack() as stack:
        mlflow, wandb = MlflowServer(folder), WandbServer()
        stack.callback(mlflow.kill)
        stack.callback(wandb.kill)
        to_mlflow, to_wandb = (stack.enter_context(closing(Proxy(server.port))) for server in (mlflow, wandb))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "WANDB_"))}
        kept |= {"MLFLOW_TRACKING_URI": to_mlflow.url, "WANDB_BASE_URL": to_wandb.url, "WANDB_API_KEY": "a" * 40}
        kept |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        command = [sys.executable, str(ROOT / "tests" / "support" / "soak.py"), str(folder / "out"), str(FLUSHES)]
        with (
            (folder / "stderr.txt").open("w") as errors,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=kept, cwd=folder
            ) as process,
        ):
            assert process.stdout is not None
            lines = iter(process.stdout)
            assert next((line for line in lines if line == "half\n"), None), (folder / "stderr.txt").read_text()
            to_mlflow.switch("503")
            to_wandb.switch("hang")
            rest, _ = process.communicate("\n")
        assert process.returncode == 0, (folder / "stderr.txt").read_text()[-3000:]
    measured: dict[str, Any] = json.loads(rest.splitlines()[-1])
    print({key: value for key, value in measured.items() if key not in ("memory", "threads")})
    return measured


def _memory_is_flat(measured: dict[str, Any]) -> None:
    assert max(measured["memory"]) - measured["memory"][0] < 20, measured["memory"]


def _no_thread_leaks(measured: dict[str, Any]) -> None:
    assert max(measured["threads"]) <= measured["threads"][0] + 2, measured["threads"]


def _both_were_served(measured: dict[str, Any]) -> None:
    assert min(measured["alive"].values()) > 500, measured["alive"]


def _records_are_small(measured: dict[str, Any]) -> None:
    assert measured["bytes_per_record"] < 16_000


def _failures_are_told(measured: dict[str, Any]) -> None:
    assert {kind.split()[0] for kind in measured["incidents"]} == {"mlflow", "wandb"}, measured["incidents"]


def _close_is_bounded(measured: dict[str, Any]) -> None:
    assert measured["close_s"] < 15


@pytest.mark.parametrize(
    "holds",
    [
        _memory_is_flat,
        _no_thread_leaks,
        _both_were_served,
        _records_are_small,
        _failures_are_told,
        _close_is_bounded,
    ],
    ids=lambda check: check.__name__.strip("_"),
)
def test_a_long_run_stays_in_bounds(soaked: dict[str, Any], holds: Callable[[dict[str, Any]], None]) -> None:
    """Over 20 000 flushes memory grows by less than 20 MB, no thread is added, and losses are reported."""
    holds(soaked)
