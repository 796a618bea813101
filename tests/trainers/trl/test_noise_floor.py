"""Noise floor on a real GRPOTrainer with a fake engine."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate import DistributedType

import ratioscope as rs
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from ratioscope_integrations.trainers.trl.loss import SCORING
from tests.support.fake_engine import make_trainer
from tests.support.reference import noise_floor as numpy_floor

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.trl

FLOOR = "ratioscope/noise_floor/"


class Calls:
    """Arguments and results of a trainer's scoring."""

    def __init__(self, trainer: Any) -> None:
        self.made: list[tuple[dict[str, Any], torch.Tensor]] = []
        original = getattr(trainer, SCORING)

        @functools.wraps(original)
        def keep(model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **options: Any) -> Any:
            result = original(model, input_ids, attention_mask, logits_to_keep, **options)
            if not torch.is_grad_enabled():
                given = {"ids": input_ids, "attended": attention_mask, "kept": logits_to_keep, **options}
                self.made.append((given, result[0].clone()))
            return result

        setattr(trainer, SCORING, keep)


def train(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    noise_floor: bool | int,
    batches: list[dict[str, torch.Tensor]] | None = None,
    **settings: Any,
) -> Any:
    """Trains; returns trainer, tracker and scorings."""
    trainer = make_trainer(folder, monkeypatch, **settings)
    trainer.model.config.attention_dropout = 0.1  # in training mode every pass draws
    for layer in trainer.model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    calls, tracker = Calls(trainer), rs.MemoryTracker()
    original = trainer._generate_and_score_completions

    def keep(inputs: Any) -> Any:
        batch = original(inputs)
        if batches is not None:
            batches.append(batch)
        return batch

    trainer._generate_and_score_completions = keep
    trainer.add_callback(RatioscopeCallback(trainer, report_to=[tracker], noise_floor=noise_floor))
    trainer.train()
    return trainer, tracker, calls.made


def test_training_is_bit_identical_with_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, losses and the state of the random numbers are the same bits with a noise floor, dropout included."""
    results = []
    for noise_floor in (False, 1):
        trainer, _, calls = train(tmp_path, monkeypatch, noise_floor=noise_floor, max_steps=3)
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        weights = [value.detach().clone() for value in trainer.model.parameters()]
        results.append((losses, weights, torch.get_rng_state(), len(calls)))
    (losses, weights, state, once), (watched_losses, watched, watched_state, twice) = results
    assert (once, twice) == (3, 6)
    assert losses == watched_losses
    assert torch.equal(state, watched_state)
    assert all(torch.equal(first, second) for first, second in zip(weights, watched, strict=True))


def test_noise_floor_equals_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor equals numpy's on both scorings of every second batch, and its multiple uses the window's mismatch."""
    batches: list[dict[str, torch.Tensor]] = []
    trainer, tracker, calls = train(tmp_path, monkeypatch, noise_floor=2, max_steps=3, batches=batches)
    assert [given["batch_size"] for given, _ in calls] == [8, 4, 8, 8, 4]
    measured = {1: (calls[0], calls[1]), 3: (calls[3], calls[4])}
    for row in tracker.rows:
        scalars = row.record.scalars
        if row.record.step not in measured:
            assert not [key for key in scalars if key.startswith(FLOOR)]
            continue
        (given, once), (_, again) = measured[row.record.step]
        kept = given["kept"]
        mask = given["attended"][:, -kept:].bool().numpy()
        batch = batches[row.record.step - 1]
        mismatch = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).abs().double().numpy()[mask]
        expected = numpy_floor((again[:, :kept].numpy(), once.numpy(), mask), abs_d=mismatch)
        assert expected[f"{FLOOR}abs_mean"] > 0.0
        for key, value in expected.items():
            assert scalars[key] == pytest.approx(value, rel=1e-6), key
    assert not trainer._ratioscope.recorder.incidents.counts


def test_the_run_config_has_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``recorder.noise_floor`` is the number of generations per measurement: ten for True, absent for False."""
    for noise_floor, expected in ((True, 10), (3, 3), (False, None)):
        _, tracker, _ = train(tmp_path, monkeypatch, noise_floor=noise_floor, max_steps=1)
        assert tracker.run.config["recorder"].get("noise_floor") == expected


def test_only_the_order_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout the second scoring differs from the first by rounding, if at all."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=1)
    calls = Calls(trainer)
    trainer.add_callback(RatioscopeCallback(trainer, report_to="none", noise_floor=1))
    trainer.train()
    (given, once), (_, again) = calls.made
    kept = given["kept"]
    mask = given["attended"][:, -kept:].bool()
    assert (again[:, :kept] - once)[mask].abs().max() < 1e-5


def test_one_row_at_a_time_is_only_padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that scores single rows gets wider rows and the same number of passes."""
    _, tracker, calls = train(
        tmp_path, monkeypatch, noise_floor=1, max_steps=1, per_device_train_batch_size=1, gradient_accumulation_steps=4
    )
    (first, _), (second, _) = calls
    assert (first["batch_size"], second["batch_size"]) == (1, 1)
    assert second["ids"].shape[1] == first["ids"].shape[1] + 16
    assert second["kept"] == first["kept"] + 16
    assert f"{FLOOR}abs_mean" in tracker.rows[0].record.scalars


def test_a_failure_gives_one_warning_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second scoring that raises gives one warning; training, ratios and later measurements continue."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=2)
    original, chunks = getattr(trainer, SCORING), []

    @functools.wraps(original)
    def scoring(*args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            chunks.append(options["batch_size"])
        if options.get("batch_size") == 4:
            msg = "out of memory"
            raise RuntimeError(msg)
        return original(*args, **options)

    setattr(trainer, SCORING, scoring)
    tracker = rs.MemoryTracker()
    callback = RatioscopeCallback(trainer, report_to=[tracker], noise_floor=1)
    trainer.add_callback(callback)
    trainer.train()
    assert chunks == [8, 4, 8, 4]
    assert callback.recorder.incidents.counts["measuring the noise floor: RuntimeError"] == 2
    assert sum("noise floor" in entry.getMessage() for entry in caplog.records) == 1
    assert [row.record.scalars["ratioscope/counts/generations"] for row in tracker.rows] == [1.0, 1.0]


def test_a_failure_in_a_sharded_model_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a pass is a collective, its exception is raised: other ranks would wait for this one."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=1)
    original = getattr(trainer, SCORING)

    @functools.wraps(original)
    def scoring(*args: Any, **options: Any) -> Any:
        if options.get("batch_size") == 4:
            msg = "out of memory"
            raise RuntimeError(msg)
        result = original(*args, **options)
        monkeypatch.setattr(type(trainer.accelerator), "distributed_type", DistributedType.FSDP)
        return result

    setattr(trainer, SCORING, scoring)
    trainer.add_callback(RatioscopeCallback(trainer, report_to="none", noise_floor=1))
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()


def test_a_trainer_with_another_scoring_gives_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer whose scoring has other arguments is not measured, and gives one warning."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=1)
    original = getattr(trainer, SCORING)
    setattr(trainer, SCORING, lambda *args, **options: original(*args, **options))
    trainer.add_callback(RatioscopeCallback(trainer, report_to="none", noise_floor=True))
    trainer.train()
    assert sum("the noise floor cannot be measured" in entry.getMessage() for entry in caplog.records) == 1
