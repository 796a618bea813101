"""TRL callback on a real GRPOTrainer with a fake engine."""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.metrics.catalogue import keys
from ratioscope_integrations.trainers.trl import attach as automatic
from ratioscope_integrations.trainers.trl import enable
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.support.fake_engine import FakeEngine, length_reward, make_model, make_trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.trl

RAW = "sampling/raw_importance_sampling_ratio"
FRACTION = "sampling/frac_modified_importance_sampling_ratio"
Batch = dict[str, Any]


def attach(trainer: Any, **options: Any) -> tuple[rs.MemoryTracker, list[Batch]]:
    """Attaches the callback; returns its tracker and a growing list of the trainer's batches."""
    batches: list[Batch] = []
    original = trainer._generate_and_score_completions

    def keep(inputs: Any) -> Batch:
        output: Batch = original(inputs)
        batches.append({key: value.clone() if torch.is_tensor(value) else value for key, value in output.items()})
        return output

    trainer._generate_and_score_completions = keep
    tracker = rs.MemoryTracker()
    trainer.add_callback(RatioscopeCallback(trainer, report_to=[tracker], **options))
    return tracker, batches


def change_batches(trainer: Any, change: Callable[[Batch], None]) -> None:
    """Makes the trainer return changed batches."""
    original = trainer._generate_and_score_completions

    def changed(inputs: Any) -> Batch:
        output: Batch = original(inputs)
        copy = dict(output)
        change(copy)
        return copy

    trainer._generate_and_score_completions = changed


def token_ratios(batches: list[Batch]) -> np.ndarray:
    """Computes the raw token ratios of batches in numpy."""
    parts = []
    for batch in batches:
        mask = batch["completion_mask"].numpy().astype(bool)
        old, sampling = batch["old_per_token_logps"].numpy(), batch["sampling_per_token_logps"].numpy()
        parts.append(np.exp((old - sampling).astype(np.float64))[mask])
    return np.concatenate(parts)


def rows_with(trainer: Any, key: str) -> list[dict[str, Any]]:
    """Returns rows of the trainer's log history that have a key."""
    return [row for row in trainer.state.log_history if key in row]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns ratioscope's warnings."""
    return [record.getMessage() for record in caplog.records if record.name == "ratioscope"]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("action", ["truncate", "mask"])
def test_each_mode_is_logged_as_numpy_computes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, action: str
) -> None:
    """Logged raw extremes, mean and modified fraction equal a numpy computation from the batch."""
    trainer = make_trainer(tmp_path, monkeypatch, vllm_importance_sampling_mode=f"{level}_{action}")
    tracker, batches = attach(trainer)
    trainer.train()

    logged = rows_with(trainer, f"{RAW}/mean")
    assert [row["step"] for row in logged] == [1, 2]
    for row, batch, sent in zip(logged, batches, tracker.rows, strict=True):
        if level == "token":
            ratios = token_ratios([batch])
        else:
            d = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).numpy().astype(np.float64)
            ratios = np.exp((d * batch["completion_mask"].numpy()).sum(axis=1))
        expected = {
            f"{RAW}/min": ratios.min(),
            f"{RAW}/mean": ratios.mean(),
            f"{RAW}/max": ratios.max(),
            FRACTION: (ratios > 1.2).mean(),
        }
        for key, value in expected.items():
            assert row[key] == pytest.approx(value, rel=1e-6), key
            assert sent.scalars[key] == row[key]
        corrected = batch["importance_sampling_ratio"]
        corrected = corrected[batch["completion_mask"].bool()] if level == "token" else corrected
        assert sent.record.scalars["ratioscope/corrected/mean"] == pytest.approx(corrected.double().mean().item())
        assert sent.record.summary.count("disagreements") == 0


def test_headline_values_are_finite_floats_in_the_saved_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every headline key is in trainer_state.json as a finite Python float."""
    trainer = make_trainer(tmp_path, monkeypatch)
    attach(trainer)
    trainer.train()
    trainer.save_state()
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    for row in state["log_history"][:2]:
        assert keys("headline") <= row.keys()
        assert all(type(row[key]) is float and math.isfinite(row[key]) for key in keys("headline"))


def test_training_is_bit_identical_with_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, weights and every metric of TRL's own are the same bits with and without the callback."""
    histories, weights = [], []
    for with_callback in (False, True):
        trainer = make_trainer(tmp_path, monkeypatch, max_steps=4, eval_rows=8, eval_strategy="steps", eval_steps=2)
        if with_callback:
            attach(trainer, detail="full")
        trainer.train()
        timing = ("runtime", "per_second", "step_time")
        histories.append(
            [{k: v for k, v in row.items() if not any(t in k for t in timing)} for row in trainer.state.log_history]
        )
        weights.append({name: value.detach().clone() for name, value in trainer.model.named_parameters()})
    for plain, watched in zip(*histories, strict=True):
        assert plain.items() <= watched.items()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_a_window_pools_its_generations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With logging_steps=3, extremes and mean are of all tokens of three generations (C45)."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=6, logging_steps=3)
    tracker, batches = attach(trainer)
    trainer.train()
    assert [row.step for row in tracker.rows] == [3, 6]
    for row, window in zip(rows_with(trainer, f"{RAW}/mean"), (batches[:3], batches[3:]), strict=True):
        ratios = token_ratios(window)
        assert row[f"{RAW}/min"] == pytest.approx(ratios.min())
        assert row[f"{RAW}/max"] == pytest.approx(ratios.max())
        assert row[f"{RAW}/mean"] == pytest.approx(ratios.mean())
    assert tracker.rows[0].record.scalars["ratioscope/counts/generations"] == 3


@pytest.mark.parametrize(("iterations", "steps"), [(1, [1, 5]), (2, [1])])
def test_steps_without_a_generation_log_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iterations: int, steps: list[int]
) -> None:
    """Eight steps with steps_per_generation=4 give two records, or one with num_iterations=2 (C44)."""
    trainer = make_trainer(
        tmp_path,
        monkeypatch,
        max_steps=8,
        steps_per_generation=4,
        num_iterations=iterations,
        per_device_train_batch_size=4,
    )
    tracker, batches = attach(trainer)
    trainer.train()
    assert [row["step"] for row in rows_with(trainer, f"{RAW}/mean")] == steps
    assert [row.step for row in tracker.rows] == steps
    assert len(batches) == len(steps)


def test_gradient_accumulation_pools_into_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of several micro-batches and one generation counts each token once."""
    trainer = make_trainer(
        tmp_path, monkeypatch, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=2
    )
    tracker, batches = attach(trainer)
    trainer.train()
    tokens = [int(batch["completion_mask"].sum()) for batch in batches]
    assert [row.record.scalars["ratioscope/counts/tokens"] for row in tracker.rows] == tokens


def test_the_last_unlogged_window_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps after the last regular log are in the final row and reach the trackers."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=3, logging_steps=2)
    tracker, batches = attach(trainer)
    trainer.train()
    assert [row.step for row in tracker.rows] == [2, 3]
    assert tracker.rows[-1].record.scalars["ratioscope/counts/tokens"] == batches[-1]["completion_mask"].sum()
    assert "train_runtime" in rows_with(trainer, f"{RAW}/mean")[-1]
    assert tracker.closed


def test_evaluation_has_a_separate_prefix_and_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation batches are logged under eval_ and never mix with training's."""
    trainer = make_trainer(
        tmp_path, monkeypatch, eval_rows=8, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=4
    )
    tracker, batches = attach(trainer)
    trainer.train()
    (row,) = rows_with(trainer, f"eval_{RAW}/mean")
    assert row[f"eval_{RAW}/mean"] == pytest.approx(token_ratios(batches[2:]).mean())
    assert [sent.split for sent in tracker.rows] == ["train", "train", "eval"]
    assert set(tracker.rows[-1].scalars) == {f"eval/{key}" for key in tracker.rows[0].scalars}


def test_evaluation_without_training_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``trainer.evaluate()`` without a training logs and reports."""
    trainer = make_trainer(tmp_path, monkeypatch, eval_rows=8)
    tracker, _ = attach(trainer)
    trainer.evaluate()
    assert rows_with(trainer, f"eval_{RAW}/mean")
    assert [row.split for row in tracker.rows] == ["eval"]


def test_log_calls_make_no_collective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own log call merges no ranks, so one rank may make it alone."""
    trainer = make_trainer(tmp_path, monkeypatch)
    attach(trainer)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("ratioscope.recording.windows.all_merge", refuse)
    trainer.log({"mine": 1.0})
    assert not trainer._ratioscope.recorder.incidents.counts


def test_values_logged_by_the_trainer_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If TRL itself logs a key of ratioscope's, TRL's value is kept (C46)."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=1)
    attach(trainer)
    trainer._metrics["train"][f"{RAW}/mean"].append(42.0)
    trainer.train()
    assert rows_with(trainer, f"{RAW}/mean")[0][f"{RAW}/mean"] == 42.0


def test_tool_tokens_enter_no_statistic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens outside the tool mask enter no statistic."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=1)

    def first_column_only(batch: Batch) -> None:
        batch["tool_mask"] = torch.zeros_like(batch["completion_mask"])
        batch["tool_mask"][:, 0] = 1

    change_batches(trainer, first_column_only)
    tracker, batches = attach(trainer)
    trainer.train()
    scalars = tracker.rows[0].record.scalars
    d = (batches[0]["old_per_token_logps"] - batches[0]["sampling_per_token_logps"])[:, 0].double()
    assert scalars["ratioscope/counts/tokens"] == len(d)
    assert scalars["ratioscope/token/log_ratio/mean"] == pytest.approx(d.mean().item(), rel=1e-6)


def test_a_missing_logprob_is_counted_and_never_a_ratio_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token without a log-probability enters no statistic except the count of invalid tokens (C01)."""

    def drop_first(logps: list[list[list[float | None]]]) -> None:
        for row in logps:
            row[0][0] = None

    monkeypatch.setattr(FakeEngine, "spoil", staticmethod(drop_first))
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=1)
    tracker, batches = attach(trainer)
    trainer.train()
    scalars = tracker.rows[0].record.scalars
    assert scalars["ratioscope/counts/nan"] == 8
    assert scalars["ratioscope/counts/tokens"] == batches[0]["completion_mask"].sum() - 8
    assert scalars["ratioscope/tokens/invalid"] == pytest.approx(8 / float(batches[0]["completion_mask"].sum()))
    assert tracker.rows[0].record.summary.count("disagreements") == 0


def _without(*names: str) -> Callable[[Batch], None]:
    def change(batch: Batch) -> None:
        for name in names:
            batch.pop(name)

    return change


def _with(name: str, value: Callable[[torch.Tensor], Any]) -> Callable[[Batch], None]:
    def change(batch: Batch) -> None:
        batch[name] = value(batch[name])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _without("old_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio"),
            "no old_per_token_logps and sampling_per_token_logps",
        ),
        (_without("sampling_per_token_logps"), "returns the corrected ratio without the rollout's"),
        (_with("sampling_per_token_logps", lambda t: None), "returns the corrected ratio without the rollout's"),
        (_with("old_per_token_logps", lambda t: t[:, :-1]), "got rollout_logps of shape"),
        (_with("old_per_token_logps", lambda t: t.unsqueeze(-1)), "got train_logps of shape"),
        (_with("old_per_token_logps", lambda t: t.long()), "got train_logps of dtype torch.int64"),
        (_with("completion_mask", lambda t: t[:, :1]), "got mask of shape"),
        (_with("completion_mask", lambda t: t[:, 0]), "got mask of shape"),
        (_with("completion_ids", lambda t: t[:, :1]), "got token_ids of shape"),
        (_without("completion_mask"), "KeyError"),
    ],
)
def test_bad_batches_give_one_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Batch], None],
    message: str,
) -> None:
    """Batches that cannot be observed give one warning and no ratio, and training continues."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=3)
    tracker = rs.MemoryTracker()
    callback = RatioscopeCallback(trainer, report_to=[tracker])
    trainer.add_callback(callback)
    observe = callback._observer._observe

    def observe_changed(batch: Batch, split: str) -> None:
        copy = dict(batch)
        change(copy)
        observe(copy, split)

    monkeypatch.setattr(callback._observer, "_observe", observe_changed)
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        trainer.train()
    assert trainer.state.global_step == 3
    assert len([text for text in warned(caplog) if message in text]) == 1
    assert not rows_with(trainer, f"{RAW}/mean")
    assert sum(callback.recorder.incidents.counts.values()) >= 3


def test_correction_off_is_observed_and_not_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the correction off, raw ratios are recorded if TRL has both sides, and no corrected ones (C02)."""
    trainer = make_trainer(
        tmp_path,
        monkeypatch,
        vllm_importance_sampling_correction=False,
        per_device_train_batch_size=4,
        steps_per_generation=2,
    )
    tracker, _ = attach(trainer)
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        trainer.train()
    assert len([text for text in warned(caplog) if "observed, not applied" in text]) == 1
    scalars = tracker.rows[0].record.scalars
    assert f"{RAW}/mean" in scalars
    assert not [key for key in scalars if "corrected" in key or "modified" in key]


def test_without_vllm_there_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """use_vllm=False gives one clear message and no ratio of 1.0 (C42)."""
    trainer = make_trainer(tmp_path, monkeypatch, use_vllm=False)
    attach(trainer)
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        trainer.train()
    assert len([text for text in warned(caplog) if "use_vllm=False" in text]) == 1
    assert not rows_with(trainer, f"{RAW}/mean")


def test_rloo_gets_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """RLOOTrainer, which has no importance ratio, gets one clear message and trains (C42)."""
    from datasets import Dataset
    from trl import RLOOConfig, RLOOTrainer

    model, tokenizer = make_model()
    config = RLOOConfig(
        output_dir=str(tmp_path),
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=2,
        logging_steps=1,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=6,
        beta=0.0,  # no reference model, which would be loaded by name
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = RLOOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=length_reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "t1 t2"}] * 16),
    )
    trainer.add_callback(RatioscopeCallback(trainer))
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        trainer.train()
    assert len([text for text in warned(caplog) if "RLOOTrainer computes no vLLM importance ratio" in text]) == 1
    assert not rows_with(trainer, f"{RAW}/mean")


def test_weights_of_another_rule_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If TRL's weights differ from the configured rule's, corrected statistics are withheld."""
    trainer = make_trainer(tmp_path, monkeypatch)
    tracker, _ = attach(trainer)
    trainer.vllm_importance_sampling_clip_max = 1.1
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        trainer.train()
    assert len([text for text in warned(caplog) if "corrected statistics withheld" in text]) == 1
    record = tracker.rows[0].record
    assert record.events
    assert not [key for key in record.scalars if "corrected" in key]
    assert f"{RAW}/mean" in record.scalars


def test_overflowing_ratios_are_counted_and_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ratio beyond float32 is counted, and every value sent is finite (C03)."""

    def explode(logps: list[list[list[float | None]]]) -> None:
        logps[0][0][0] = -2000.0

    monkeypatch.setattr(FakeEngine, "spoil", staticmethod(explode))
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=1, vllm_importance_sampling_mode="sequence_mask")
    tracker, _ = attach(trainer, detail="full")
    trainer.train()
    scalars = tracker.rows[0].scalars
    assert scalars["ratioscope/counts/overflow"] == 1
    assert scalars["ratioscope/sequence/log_ratio/max"] > 1900
    assert f"{RAW}/max" not in scalars
    assert all(math.isfinite(value) for value in scalars.values())
    assert tracker.rows[0].histograms["ratioscope/hist/sequence_log_ratio"].total == 8


def test_a_second_callback_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Attaching twice counts each token once."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=1)
    tracker, batches = attach(trainer)
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        trainer.add_callback(RatioscopeCallback(trainer, report_to=[rs.MemoryTracker()]))
    trainer.train()
    assert any("already has a RatioscopeCallback" in text for text in warned(caplog))
    assert tracker.rows[0].record.scalars["ratioscope/counts/tokens"] == batches[0]["completion_mask"].sum()
    assert len(tracker.rows) == 1


def test_an_unknown_tracker_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo in report_to raises an error before training, with the nearest name (C57)."""
    trainer = make_trainer(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="Did you mean 'wandb'"):
        RatioscopeCallback(trainer, report_to="wanbd")


def test_a_failing_tracker_never_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A tracker that raises on every call gives one warning, and training ends normally."""

    class Broken(rs.MemoryTracker):
        def write(self, row: rs.Row) -> None:
            raise ConnectionResetError(row.step)

    trainer = make_trainer(tmp_path, monkeypatch, max_steps=3)
    trainer.add_callback(RatioscopeCallback(trainer, report_to=[Broken()]))
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        trainer.train()
    assert trainer.state.global_step == 3
    assert len([text for text in warned(caplog) if "ConnectionResetError" in text]) == 1


def test_report_to_ratioscope_attaches_the_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After enable(), "ratioscope" in report_to attaches one callback, also if enabled twice."""
    from trl import GRPOTrainer

    monkeypatch.setattr(GRPOTrainer, "__init__", GRPOTrainer.__init__)
    monkeypatch.setattr(
        automatic.integration_utils,
        "INTEGRATION_TO_CALLBACK",
        dict(automatic.integration_utils.INTEGRATION_TO_CALLBACK),
    )
    enable()
    enable()
    trainer = make_trainer(tmp_path, monkeypatch, report_to=["ratioscope"])
    trainer.train()
    callbacks = [
        c for c in trainer.callback_handler.callbacks if type(c).__module__.startswith("ratioscope_integrations")
    ]
    assert [type(c) for c in callbacks] == [RatioscopeCallback]
    assert len(rows_with(trainer, f"{RAW}/mean")) == 2


def test_without_ratioscope_in_report_to_enable_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After enable(), a trainer without ratioscope in report_to has no callback of ratioscope."""
    from trl import GRPOTrainer

    monkeypatch.setattr(GRPOTrainer, "__init__", GRPOTrainer.__init__)
    monkeypatch.setattr(
        automatic.integration_utils,
        "INTEGRATION_TO_CALLBACK",
        dict(automatic.integration_utils.INTEGRATION_TO_CALLBACK),
    )
    enable()
    trainer = make_trainer(tmp_path, monkeypatch)
    assert not [
        c for c in trainer.callback_handler.callbacks if type(c).__module__.startswith("ratioscope_integrations")
    ]


def test_the_run_config_is_effective_and_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker receives the effective rule and sampling settings, and no secret (C14, C23)."""
    secret = "hf_" + "a1" * 17
    trainer = make_trainer(
        tmp_path, monkeypatch, max_steps=1, generation_kwargs={"temperature": 0.7, "api_key": secret}, hub_token=secret
    )
    tracker, _ = attach(trainer, config={"note": "mine", "wandb_api_key": secret})
    trainer.train()
    assert tracker.run is not None
    config = tracker.run.config
    assert config["correction"]["mode"] == "token_truncate"
    assert config["correction"]["sources"]["upper"] == "vllm_importance_sampling_clip_max"
    assert config["sampling"]["temperature"] == 0.7
    assert config["user"]["note"] == "mine"
    assert config["engine"]["quantization"] == "unknown"
    assert config["trainer"]["rollout_logps_dtype"] == "float32"
    assert secret not in json.dumps(config)


@pytest.mark.parametrize("token_texts", [True, False])
def test_worst_tokens_have_the_tokenizers_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token_texts: bool
) -> None:
    """The trainer's tokenizer decodes the worst tokens, also in the journal; token_texts=False keeps ids only."""
    trainer = make_trainer(tmp_path, monkeypatch)
    tracker, _ = attach(trainer, token_texts=token_texts)
    trainer.train()
    with rs.JournalReader(tmp_path) as reader:
        (first, *_) = reader.records()
    assert first.worst_tokens == tracker.rows[0].record.worst_tokens
    decode = trainer.processing_class.decode
    for worst in first.worst_tokens:
        assert worst.token_id is not None
        assert (worst.text or "").strip() == (decode([worst.token_id]) if token_texts else "")
