"""Drift of the policy on a real GRPOTrainer with a fake engine."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.support.fake_engine import make_trainer
from tests.support.reference import drift as numpy_drift

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.trl

PREFIX = "ratioscope/drift/"


def train(folder: Path, monkeypatch: pytest.MonkeyPatch, *, drift: bool, **settings: Any) -> Any:
    """Trains; returns trainer, tracker, and current, old and mask of each micro-batch in numpy."""
    trainer = make_trainer(folder, monkeypatch, **settings)
    micro_batches: list[tuple[Any, Any, Any]] = []
    scored: list[torch.Tensor] = []
    scoring, loss = trainer._get_per_token_logps_and_entropies, trainer.compute_loss

    @functools.wraps(scoring)
    def keep(*args: Any, **options: Any) -> Any:
        result = scoring(*args, **options)
        scored.append(result[0].detach().clone())
        return result

    def compute(model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        result = loss(model, inputs, *args, **options)
        old = inputs.get("old_per_token_logps")
        if old is not None:
            micro_batches.append((scored[-1].numpy(), old.numpy(), inputs["completion_mask"].bool().numpy()))
        return result

    trainer._get_per_token_logps_and_entropies, trainer.compute_loss = keep, compute
    tracker = rs.MemoryTracker()
    trainer.add_callback(RatioscopeCallback(trainer, report_to=[tracker], drift=drift))
    trainer.train()
    return trainer, tracker, micro_batches


def test_drift_equals_numpy_and_nothing_else_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drift equals numpy's on the loss's log-probabilities; weights and other numbers are bit-identical without it."""
    settings = {"max_steps": 2, "num_iterations": 2, "logging_steps": 2, "learning_rate": 0.05, "epsilon": 0.01}
    results = []
    for drift in (True, False):
        trainer, tracker, micro_batches = train(tmp_path / str(drift), monkeypatch, drift=drift, **settings)
        (row,) = [row for row in tracker.rows if row.record.split == "train"]
        drifts = {key: value for key, value in row.record.scalars.items() if key.startswith(PREFIX)}
        others = {key: value for key, value in row.record.scalars.items() if key not in drifts}
        results.append((others, [value.detach().clone() for value in trainer.model.parameters()]))
        assert not trainer._ratioscope.recorder.incidents.counts
        if not drift:
            assert drifts == {}
            continue
        expected = numpy_drift(*micro_batches, epsilon=(0.01, 0.01))
        assert drifts.keys() == expected.keys()
        assert expected[f"{PREFIX}abs_mean"] > 0.0
        assert 0.0 < expected[f"{PREFIX}outside"] < 1.0
        for key, value in expected.items():
            assert drifts[key] == pytest.approx(value, rel=1e-3, abs=1e-7), key
    (watched, weights), (others, untouched) = results
    assert watched == others
    assert all(torch.equal(first, second) for first, second in zip(weights, untouched, strict=True))


def test_a_loss_without_token_clipping_has_no_outside_fraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sequence-level ratios the mean drift is recorded, and no fraction of tokens outside the clip range."""
    settings = {"max_steps": 1, "importance_sampling_level": "sequence", "loss_type": "grpo"}
    _, tracker, _ = train(tmp_path, monkeypatch, drift=True, **settings)
    (row,) = tracker.rows
    assert f"{PREFIX}abs_mean" in row.record.scalars
    assert f"{PREFIX}outside" not in row.record.scalars


def test_missing_old_log_probabilities_give_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer whose loss gets no old log-probabilities gives one warning, and trains."""
    settings = {"max_steps": 2, "vllm_importance_sampling_correction": False}
    trainer, _, micro_batches = train(tmp_path, monkeypatch, drift=True, **settings)
    assert trainer.state.global_step == 2
    assert not micro_batches
    assert sum("the drift cannot be measured" in entry.getMessage() for entry in caplog.records) == 1
