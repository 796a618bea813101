"""Callback on a GRPOTrainer of other versions of TRL, with a fake engine.

More detailed tests of the newest version are in `tests/trainers/trl/test_callback.py`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers.integrations import integration_utils

import ratioscope as rs
from ratioscope_integrations.trainers.trl import RatioscopeCallback, enable
from tests.layers.fake_llm import FakeLLM
from tests.support.fake_engine import make_trainer

if TYPE_CHECKING:
    from pathlib import Path

# An old TRL imports an installed trackio, which needs a newer huggingface_hub than this layer has.
integration_utils.is_trackio_available = lambda: False
from trl.trainer import grpo_trainer  # noqa: E402

pytestmark = pytest.mark.trl

RAW = "sampling/raw_importance_sampling_ratio"
FRACTION = "sampling/frac_modified_importance_sampling_ratio"
TRLS = "sampling/importance_sampling_ratio"
CAP = 1.2


def trainer_of_this_version(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    """Makes a trainer with a fake engine, at the import path of the installed TRL version."""
    if not hasattr(grpo_trainer, "VLLMGeneration"):
        for name in ("LLM", "SamplingParams", "StructuredOutputsParams", "GuidedDecodingParams"):
            monkeypatch.setattr(grpo_trainer, name, FakeLLM, raising=False)
        monkeypatch.setattr(grpo_trainer, "vllm", rs, raising=False)
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.setenv(name, "0")  # TRL sets them; the test restores them
            monkeypatch.delenv(name)
    trainer: Any = make_trainer(folder, monkeypatch, **settings)
    if isinstance(getattr(trainer, "llm", None), FakeLLM):
        trainer.llm.serve(trainer)
    return trainer


def watch(trainer: Any) -> tuple[rs.MemoryTracker, list[dict[str, Any]], RatioscopeCallback]:
    """Attaches the callback; returns its tracker, a growing list of the batches, and the callback."""
    batches: list[dict[str, Any]] = []
    original = trainer._generate_and_score_completions

    def keep(inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = original(inputs)
        batches.append({key: value.clone() if torch.is_tensor(value) else value for key, value in output.items()})
        return output

    trainer._generate_and_score_completions = keep
    tracker = rs.MemoryTracker()
    callback = RatioscopeCallback(trainer, report_to=[tracker])
    trainer.add_callback(callback)
    return tracker, batches, callback


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_each_mode_is_logged_as_numpy_computes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """Logged raw extremes, mean and modified fraction equal numpy's; the rule gives TRL's own ratio bit for bit."""
    trainer = trainer_of_this_version(tmp_path, monkeypatch, vllm_importance_sampling_mode=mode)
    tracker, batches, callback = watch(trainer)
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        trainer.train()

    logged = [row for row in trainer.state.log_history if f"{RAW}/mean" in row]
    assert [row["step"] for row in logged] == [1, 2]
    rule = callback.recorder.correction
    assert rule is not None
    assert (f"{rule.level}_{rule.action}", rule.upper) == (mode, CAP)
    for row, batch, sent in zip(logged, batches, tracker.rows, strict=True):
        mask = batch["completion_mask"].numpy().astype(bool)
        d = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).numpy().astype(np.float64) * mask
        ratios = np.exp(d)[mask] if rule.level == "token" else np.exp(d.sum(axis=1))
        expected = {
            f"{RAW}/min": ratios.min(),
            f"{RAW}/mean": ratios.mean(),
            f"{RAW}/max": ratios.max(),
            FRACTION: (ratios > CAP).mean(),
        }
        assert {key: row[key] for key in expected} == pytest.approx(expected, rel=1e-6)
        assert 0 < row[FRACTION] < 1
        own = rs.correct(
            batch["old_per_token_logps"],
            batch["sampling_per_token_logps"],
            batch["completion_mask"],
            correction=rule,
        )
        theirs = batch["importance_sampling_ratio"]
        kept = batch["completion_mask"].bool() if rule.level == "token" else torch.ones_like(theirs, dtype=torch.bool)
        assert own.shape == theirs.shape
        assert torch.equal(own[kept], theirs[kept])
        assert sent.record.summary.count("disagreements") == 0
        assert sent.record.scalars["ratioscope/corrected/mean"] == pytest.approx(row[f"{TRLS}/mean"], rel=1e-5)
    assert [text for text in caplog.messages if "no tracker" not in text and "logprobs_mode" not in text] == []


def test_training_is_bit_identical_with_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, weights and every metric of TRL's own are the same bits with and without the callback."""
    histories, weights = [], []
    for attached in (False, True):
        trainer = trainer_of_this_version(
            tmp_path, monkeypatch, max_steps=3, eval_rows=8, eval_strategy="steps", eval_steps=2
        )
        if attached:
            watch(trainer)
        trainer.train()
        timing = ("runtime", "per_second", "step_time")
        histories.append(
            [{k: v for k, v in row.items() if not any(t in k for t in timing)} for row in trainer.state.log_history]
        )
        weights.append({name: value.detach().clone() for name, value in trainer.model.named_parameters()})
    for plain, watched in zip(*histories, strict=True):
        assert plain.items() <= watched.items()
    assert any(f"eval_{RAW}/mean" in row for row in histories[1])
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_report_to_attaches_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After enable(), "ratioscope" in report_to attaches the callback and its scalars reach the trainer's log."""
    monkeypatch.setattr(integration_utils, "INTEGRATION_TO_CALLBACK", dict(integration_utils.INTEGRATION_TO_CALLBACK))
    monkeypatch.setattr(grpo_trainer.GRPOTrainer, "__init__", grpo_trainer.GRPOTrainer.__init__)
    enable()
    trainer = trainer_of_this_version(tmp_path, monkeypatch, report_to=["ratioscope"], max_steps=1)
    trainer.train()
    assert any(f"{RAW}/mean" in row for row in trainer.state.log_history)
