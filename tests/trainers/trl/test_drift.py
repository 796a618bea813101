"""The drift of the policy on a real GRPOTrainer, with a fake engine in vLLM's place."""

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

AT = "ratioscope/drift/"


def train(folder: Path, monkeypatch: pytest.MonkeyPatch, *, drift: bool, **settings: Any) -> Any:
    """A trained trainer, the tracker that saw it, and current, old and mask of each micro-batch in numpy."""
    trainer = make_trainer(folder, monkeypatch, **settings)
    seen: list[tuple[Any, Any, Any]] = []
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
            seen.append((scored[-1].numpy(), old.numpy(), inputs["completion_mask"].bool().numpy()))
        return result

    trainer._get_per_token_logps_and_entropies, trainer.compute_loss = keep, compute
    tracker = rs.MemoryTracker()
    trainer.add_callback(RatioscopeCallback(trainer, report_to=[tracker], drift=drift))
    trainer.train()
    return trainer, tracker, seen


def test_figures_are_those_of_numpy_and_nothing_else_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drift is numpy's on what the loss scored; weights and every other number are the same bits as without it."""
    settings = {"max_steps": 2, "num_iterations": 2, "logging_steps": 2, "learning_rate": 0.05, "epsilon": 0.01}
    alike = []
    for drift in (True, False):
        trainer, tracker, seen = train(tmp_path / str(drift), monkeypatch, drift=drift, **settings)
        (row,) = [row for row in tracker.rows if row.record.split == "train"]
        found = {key: value for key, value in row.record.scalars.items() if key.startswith(AT)}
        others = {key: value for key, value in row.record.scalars.items() if key not in found}
        alike.append((others, [value.detach().clone() for value in trainer.model.parameters()]))
        assert not trainer._ratioscope.recorder.incidents.counts
        if not drift:
            assert found == {}
            continue
        expected = numpy_drift(*seen, epsilon=(0.01, 0.01))
        assert found.keys() == expected.keys()
        assert expected[f"{AT}abs_mean"] > 0.0
        assert 0.0 < expected[f"{AT}outside"] < 1.0
        for key, value in expected.items():
            assert found[key] == pytest.approx(value, rel=1e-3, abs=1e-7), key
    (watched, weights), (others, untouched) = alike
    assert watched == others
    assert all(torch.equal(one, other) for one, other in zip(weights, untouched, strict=True))


def test_a_loss_that_does_not_clip_tokens_has_no_fraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sequence-level ratios the distance is recorded, and no fraction of tokens outside a range."""
    settings = {"max_steps": 1, "importance_sampling_level": "sequence", "loss_type": "grpo"}
    _, tracker, _ = train(tmp_path, monkeypatch, drift=True, **settings)
    (row,) = tracker.rows
    assert f"{AT}abs_mean" in row.record.scalars
    assert f"{AT}outside" not in row.record.scalars


def test_without_old_log_probabilities_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer that gives its loss no old log-probabilities makes one warning, and trains."""
    settings = {"max_steps": 2, "vllm_importance_sampling_correction": False}
    trainer, _, seen = train(tmp_path, monkeypatch, drift=True, **settings)
    assert trainer.state.global_step == 2
    assert not seen
    assert sum("the drift cannot be measured" in entry.getMessage() for entry in caplog.records) == 1
