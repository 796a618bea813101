"""Ends of processes: the journal is complete, no second run appears, and the end is bounded."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ratioscope.journal.reader import JournalReader
from ratioscope.journal.schema import FILE
from tests.support.exit_scenarios import STEPS
from tests.support.readback import read_mlflow, read_tensorboard

pytestmark = [pytest.mark.slow, pytest.mark.trackers, pytest.mark.trl]

ROOT = Path(__file__).resolve().parents[2]
TOKENS = "ratioscope/counts/tokens"
LONGEST_S = 15.0
COMPLETE = "Nothing is missing."


@dataclass
class Ended:
    """Outcome of a process that has ended.

    Attributes:
        printed: steps whose flush had returned.
        code: exit code, negative for a signal.
        errors: what it wrote to stderr.
        seconds: from its last step, or the signal, to its end.
    """

    printed: list[int]
    code: int
    errors: str
    seconds: float


def environment() -> dict[str, str]:
    """Returns the environment of a process that uses trackers, without the machine's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "WANDB_"))}
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), "WANDB_MODE": "offline"}


def deliver(folder: Path, *arguments: str) -> str:
    """Returns the output of ``ratioscope sync``, run in a new process because trackers keep threads and state."""
    command = [sys.executable, "-m", "ratioscope", "sync", str(folder / "out"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def end(scenario: str, folder: Path, *trackers: str, by: signal.Signals | None = None) -> Ended:
    """Runs a scenario to its end, sending a signal once all steps were printed."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "exit_scenarios.py"), scenario, str(folder), *trackers]
    printed: list[int] = []
    with (
        (folder / "stderr.txt").open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(), cwd=folder
        ) as process,
    ):
        assert process.stdout is not None
        since = time.monotonic()
        for line in process.stdout:
            if line.strip().isdigit():
                printed.append(int(line))
                since = time.monotonic()
                if by is not None and printed[-1] == STEPS:
                    process.send_signal(by)
                    by = None
        code = process.wait(120)
        seconds = time.monotonic() - since
    return Ended(printed, code, (folder / "stderr.txt").read_text(), seconds)


def check_journal(folder: Path, printed: list[int]) -> None:
    """Checks that the journal has all flushed records and passes SQLite's integrity check."""
    with sqlite3.connect(folder / "out" / "ratioscope" / FILE) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    with JournalReader(folder / "out") as reader:
        present = {record.step for record in reader.records(superseded=True)}
    assert printed
    assert set(printed) <= present


def mlflow_runs(folder: Path) -> list[Any]:
    """Returns the MLflow runs of the folder."""
    from mlflow import MlflowClient

    if not (folder / "out" / "mlflow.db").exists():
        return []
    client = MlflowClient(f"sqlite:///{folder / 'out' / 'mlflow.db'}")
    return list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))


def check_one_run(folder: Path) -> None:
    """Checks that each tracker has at most one run, and that this run has each record once after a delivery."""
    deliver(folder)
    (run,) = mlflow_runs(folder)
    points = read_mlflow(f"sqlite:///{folder / 'out' / 'mlflow.db'}", run.info.run_id).metrics[TOKENS]
    steps = [point.step for point in points]
    assert steps == sorted(set(steps))
    assert set(range(1, STEPS + 1)) <= set(steps)
    assert len(list((folder / "out").rglob("run-*.wandb"))) <= 1
    assert not [path for path in folder.iterdir() if path.name in ("mlruns", "mlflow.db", "wandb")]


def test_sigterm_ends_a_training(tmp_path: Path) -> None:
    """An unhandled SIGTERM leaves a complete journal, from which the tracker's one run is completed."""
    ended = end("waits_for_a_signal", tmp_path, "mlflow", by=signal.SIGTERM)
    assert (ended.code, ended.printed) == (-signal.SIGTERM, [1, 2, 3, 4]), ended.errors[-2000:]
    assert ended.seconds < LONGEST_S
    check_journal(tmp_path, ended.printed)
    check_one_run(tmp_path)


def test_an_interrupt_ends_the_runs(tmp_path: Path) -> None:
    """After Ctrl-C the opened run has every row and is ended."""
    ended = end("waits_for_a_signal", tmp_path, "mlflow", by=signal.SIGINT)
    assert ended.printed == [1, 2, 3, 4]
    assert "KeyboardInterrupt" in ended.errors
    assert ended.seconds < LONGEST_S
    check_journal(tmp_path, ended.printed)
    (run,) = mlflow_runs(tmp_path)
    assert run.info.status == "FINISHED"
    assert deliver(tmp_path) == COMPLETE
    check_one_run(tmp_path)


def test_an_exception_ends_the_runs(tmp_path: Path) -> None:
    """An exception in the user's code is raised unchanged, and recorded rows are delivered."""
    ended = end("raises", tmp_path, "mlflow", "wandb")
    assert ended.code == 1
    assert ended.errors.rstrip().endswith("RuntimeError: a fault of the user's")
    assert ended.seconds < LONGEST_S
    check_journal(tmp_path, ended.printed)
    (run,) = mlflow_runs(tmp_path)
    assert run.info.status == "FINISHED"
    check_one_run(tmp_path)


@pytest.mark.parametrize("scenario", ["vanishes", "leaves"])
def test_a_loop_that_does_not_close(tmp_path: Path, scenario: str) -> None:
    """A process that ends right after a flush, also without clean-up, loses no record."""
    ended = end(scenario, tmp_path, "mlflow")
    assert (ended.code, ended.printed) == (0, [1, 2, 3, 4]), ended.errors[-2000:]
    assert ended.seconds < LONGEST_S
    check_journal(tmp_path, ended.printed)
    deliver(tmp_path, "--to", "mlflow")
    check_one_run(tmp_path)


def test_delivered_tensorboard_rows_are_on_disk(tmp_path: Path) -> None:
    """Rows in our own event file are on disk when their flush returns, however the process then ends."""
    ended = end("vanishes", tmp_path, "tensorboard")
    assert ended.printed == [1, 2, 3, 4]
    (folder,) = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    assert [step for step, _ in read_tensorboard(folder).scalars[TOKENS]] == [1, 2, 3, 4]
    assert deliver(tmp_path) == COMPLETE


@pytest.mark.parametrize("trackers", [["mlflow"], ["wandb", "mlflow"]], ids=["mlflow", "both"])
def test_forked_workers_change_nothing(tmp_path: Path, trackers: list[str]) -> None:
    """Workers forked while a recorder is open neither write, nor open a run, nor keep the process alive."""
    ended = end("workers", tmp_path, *trackers)
    assert (ended.code, ended.printed) == (0, [1, 2, 3, 4]), ended.errors[-2000:]
    assert ended.seconds < LONGEST_S
    check_journal(tmp_path, ended.printed)
    assert deliver(tmp_path) == COMPLETE
    check_one_run(tmp_path)


def test_a_training_with_workers(tmp_path: Path) -> None:
    """A TRL training whose DataLoader forks workers is recorded like any other."""
    ended = end("trains_with_workers", tmp_path, "mlflow")
    assert ended.code == 0, ended.errors[-2000:]
    assert ended.seconds < LONGEST_S
    check_journal(tmp_path, ended.printed)
    assert deliver(tmp_path) == COMPLETE
    check_one_run(tmp_path)
