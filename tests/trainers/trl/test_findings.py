"""Findings while a real GRPOTrainer trains: reported during the run, with a reaction only on request."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

import ratioscope as rs
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.support import stop_training
from tests.support.fake_engine import FakeEngine, make_trainer
from tests.support.stop_training import MAX_STEPS, fill_with_zeros

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.trl


@pytest.fixture
def _faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the engine return zeros among its log-probabilities."""
    monkeypatch.setattr(FakeEngine, "spoil", staticmethod(fill_with_zeros))


@pytest.mark.usefixtures("_faulty")
def test_a_fault_stops_the_training_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With on_finding="stop" a fault becomes an event, and the training ends early and cleanly."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=MAX_STEPS)
    tracker = rs.MemoryTracker()
    callback = RatioscopeCallback(trainer, report_to=[tracker], on_finding="stop")
    trainer.add_callback(callback)
    trainer.train()
    assert trainer.state.global_step < MAX_STEPS
    assert ("zero_filled", "error", "high") in [(event.name, event.level, event.confidence) for event in tracker.events]
    assert tracker.closed
    assert tracker.rows[-1].step == trainer.state.global_step
    assert not callback.recorder.incidents.counts


@pytest.mark.usefixtures("_faulty")
def test_training_is_bit_identical_without_on_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without on_finding a reported fault changes neither the weights nor the number of steps."""
    weights = []
    for attached in (False, True):
        trainer = make_trainer(tmp_path / str(attached), monkeypatch, max_steps=6)
        tracker = rs.MemoryTracker()
        if attached:
            trainer.add_callback(RatioscopeCallback(trainer, report_to=[tracker]))
        trainer.train()
        assert trainer.state.global_step == 6
        assert ("zero_filled" in [event.name for event in tracker.events]) is attached
        weights.append({name: value.detach().clone() for name, value in trainer.model.named_parameters()})
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_a_biased_setting_is_reported_once_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A biased setting is one event at the first batch and one line of the log, and is not repeated at the end."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=4, top_p=0.8, eval_rows=8)
    tracker = rs.MemoryTracker()
    trainer.add_callback(RatioscopeCallback(trainer, report_to=[tracker]))
    trainer.train()
    trainer.evaluate()
    appeared = [event for event in tracker.events if event.name == "sampling_settings" and event.status == "appeared"]
    assert [(event.step, event.level) for event in appeared] == [(0, "warning")]
    assert "top_p=0.8" in appeared[0].evidence
    lines = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    assert len([line for line in lines if "top_p=0.8" in line and "support_truncation" not in line]) == 1


@pytest.mark.slow
def test_both_ranks_stop_at_the_same_step(tmp_path: Path) -> None:
    """Two processes of one training end at the same step, although only rank 0 diagnoses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, stop_training.__file__, str(tmp_path)],
            env={**common, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["step"] == second["step"] < MAX_STEPS
    assert (first["knew"], second["knew"]) == (True, False)


def test_failed_observations_stop_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With on_finding="stop" a training whose observations all fail inside ratioscope makes every step."""

    def broken(*_: object, **__: object) -> None:
        msg = "no memory"
        raise RuntimeError(msg)

    monkeypatch.setattr(rs.RatioSummary, "observe", broken)
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=8)
    tracker = rs.MemoryTracker()
    callback = RatioscopeCallback(trainer, report_to=[tracker], on_finding="stop")
    trainer.add_callback(callback)
    trainer.train()
    assert trainer.state.global_step == 8
    assert callback.recorder.incidents.counts["observing a batch: RuntimeError"] == 8
    assert tracker.events == []
