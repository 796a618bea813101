"""Trainings and loops that end badly, each for a process of its own.

    python tests/support/exit_scenarios.py SCENARIO FOLDER [TRACKER...]

Prints each step whose flush has returned.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import TrainerCallback

import ratioscope as rs
from ratioscope.journal.schema import FILE
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.support.fake_engine import make_trainer

STEPS = 4


class PrintsSteps(TrainerCallback):
    """Prints each step that was logged, and calls a function after the fourth."""

    def __init__(self, then: Any = None) -> None:
        self.then = then

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Prints the step before, whose log has returned by now."""
        if state.global_step:
            print(state.global_step, flush=True)
        if state.global_step == STEPS and self.then is not None:
            self.then()


def train(folder: Path, trackers: list[str], then: Any = None, **settings: Any) -> None:
    """A relayed training of ten steps."""
    trainer = make_trainer(folder / "out", max_steps=10, **settings)
    trainer.add_callback(RatioscopeCallback(trainer, report_to=trackers, relay=True))
    trainer.add_callback(PrintsSteps(then))
    trainer.train()


def waits_for_a_signal(folder: Path, trackers: list[str]) -> None:
    """A training that waits after four steps for a signal."""
    train(folder, trackers, lambda: time.sleep(60))


def raises(folder: Path, trackers: list[str]) -> None:
    """A training that ends with an exception of the user's code."""

    def fail() -> None:
        msg = "a fault of the user's"
        raise RuntimeError(msg)

    train(folder, trackers, fail)


def vanishes(folder: Path, trackers: list[str]) -> None:
    """A loop that ends its process right after a flush, without any clean-up."""
    recorder = rs.Recorder(report_to=trackers, output_dir=folder / "out")
    for step in range(1, STEPS + 1):
        _flush(recorder, step)
    os._exit(0)


def leaves(folder: Path, trackers: list[str]) -> None:
    """A loop that ends without closing its recorder."""
    recorder = rs.Recorder(report_to=trackers, output_dir=folder / "out")
    for step in range(1, STEPS + 1):
        _flush(recorder, step)


def _wait_for_delivery(folder: Path, trackers: int) -> None:
    """Until each tracker's thread has delivered something."""
    deadline, served = time.monotonic() + 60.0, 0
    with closing(sqlite3.connect(folder / "out" / "ratioscope" / FILE)) as connection:
        while served < trackers and time.monotonic() < deadline:
            time.sleep(0.2)
            (served,) = connection.execute("SELECT COUNT(DISTINCT target) FROM delivery").fetchone()


def workers(folder: Path, trackers: list[str]) -> None:
    """A loop that forks the workers of a DataLoader while its recorder is open."""
    recorder = rs.Recorder(report_to=trackers, output_dir=folder / "out")
    _flush(recorder, 1)
    _wait_for_delivery(folder, len(trackers))
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for step, _ in zip(range(2, STEPS + 1), loader, strict=False):
        _flush(recorder, step)
    child = os.fork()
    if child == 0:  # a child that leaves in the usual way runs what was registered for the exit
        sys.exit(0)
    os.waitpid(child, 0)
    recorder.close()


def trains_with_workers(folder: Path, trackers: list[str]) -> None:
    """A TRL training whose DataLoader has two workers."""
    train(folder, trackers, dataloader_num_workers=2, dataloader_persistent_workers=False)


class Numbers(Dataset[torch.Tensor]):
    """A few numbers."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


def _flush(recorder: rs.Recorder, step: int) -> None:
    rollout = -torch.rand(4, 16) - 0.1
    recorder.observe(rollout + 0.05 * torch.randn(4, 16), rollout, torch.ones(4, 16))
    assert recorder.flush(step=step) is not None
    print(step, flush=True)


SCENARIOS = {
    each.__name__: each for each in (waits_for_a_signal, raises, vanishes, leaves, workers, trains_with_workers)
}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]), sys.argv[3:])
