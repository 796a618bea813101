"""Callback on variants of TRL's GRPOTrainer: position of the ratio, and messages if there is none."""

from __future__ import annotations

import inspect
import logging
import math
import queue
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from trl import GRPOTrainer
from trl.trainer import grpo_trainer

import ratioscope as rs
from ratioscope_integrations.trainers.trl import attach, enable
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from ratioscope_integrations.trainers.trl.loss import SCORING, LossReader
from tests.support.fake_engine import EOS, VOCABULARY, FakeEngine, make_model, make_trainer

if TYPE_CHECKING:
    from pathlib import Path

    from ratioscope_integrations.trainers.trl.batches import TrlBatch

pytestmark = pytest.mark.trl

RAW = "sampling/raw_importance_sampling_ratio"
FRACTION = "sampling/frac_modified_importance_sampling_ratio"


def train(trainer: Any, caplog: pytest.LogCaptureFixture) -> tuple[list[rs.Record], list[str]]:
    """Trains with the callback; returns the records and ratioscope's warnings, except those of settings."""
    tracker = rs.MemoryTracker()
    trainer.add_callback(RatioscopeCallback(trainer, report_to=[tracker]))
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        trainer.train()
    messages = [record.getMessage() for record in caplog.records if record.name == "ratioscope"]
    return [row.record for row in tracker.rows], [
        text for text in messages if "reported once" in text and "T != 1" not in text
    ]


def logged(trainer: Any, key: str = f"{RAW}/mean") -> list[float]:
    """Returns a scalar's values in the trainer's own log."""
    return [row[key] for row in trainer.state.log_history if key in row]


def expected(pairs: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Computes raw token statistics of log-probability pairs with their masks, in numpy."""
    parts = [np.exp((a - b).double().numpy())[mask.bool().numpy()] for a, b, mask in pairs]
    ratios = np.concatenate(parts)
    return {f"{RAW}/min": ratios.min(), f"{RAW}/mean": ratios.mean(), f"{RAW}/max": ratios.max()}


class InTheLoss(GRPOTrainer):  # type: ignore[misc]
    """Trainer that scores and corrects in the loss and not at generation, as in huggingface/trl#5413."""

    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    passes = 0

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        batch = super()._generate_and_score_completions(inputs)
        return {k: v for k, v in batch.items() if k not in ("old_per_token_logps", "importance_sampling_ratio")}

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if result[0].requires_grad:
            self.passes += 1
            self.last = result[0].detach().clone()
        return result

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        given = {**inputs, "importance_sampling_ratio": torch.ones(len(inputs["completion_ids"]), 1)}
        loss = super()._compute_loss(model, given)
        self.seen.append((self.last, inputs["sampling_per_token_logps"].clone(), inputs["completion_mask"].clone()))
        return loss


def test_a_ratio_left_to_the_loss_is_read_once_per_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without old log-probabilities in the batch, the loss's scoring at the first iteration is used (C06)."""
    trainer: Any = make_trainer(
        tmp_path,
        monkeypatch,
        trainer_class=InTheLoss,
        max_steps=8,
        logging_steps=4,
        num_iterations=2,
        steps_per_generation=2,
        per_device_train_batch_size=4,
    )
    trainer.seen = []
    records, warnings = train(trainer, caplog)

    assert warnings == []
    assert trainer.passes == len(trainer.seen) == 8, "no forward pass but the loss's own"
    assert len(records) == 2
    for n, record in enumerate(records):
        first = trainer.seen[4 * n : 4 * n + 2]  # a generation makes two micro-batches, and each is used twice
        assert {key: record.scalars[key] for key in expected(first)} == pytest.approx(expected(first), rel=1e-6)
        assert record.summary.count("token/n") == sum(int(mask.sum()) for _, _, mask in first)
    ratios = np.exp(np.concatenate([(a - b).double().numpy()[m.bool().numpy()] for a, b, m in trainer.seen[:2]]))
    assert records[0].scalars[FRACTION] == pytest.approx((ratios > 1.2).mean())
    assert logged(trainer) == [record.scalars[f"{RAW}/mean"] for record in records]


def test_a_ratio_left_to_the_loss_is_read_in_evaluation_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An evaluation between steps of one generation has its own window and takes nothing from the training's."""
    options = {"steps_per_generation": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    options |= {"eval_rows": 4, "eval_strategy": "steps", "eval_steps": 1}
    trainer: Any = make_trainer(tmp_path, monkeypatch, trainer_class=InTheLoss, **options)
    trainer.seen = []
    records, warnings = train(trainer, caplog)
    assert warnings == []
    assert [record.split for record in records].count("eval") == 2
    assert len(logged(trainer)) == 2
    assert len(logged(trainer, f"eval_{RAW}/mean")) == 2


def test_training_is_bit_identical_when_the_loss_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights are the same bits with the ratio read in the loss and without the callback."""
    weights = []
    for watched in (False, True):
        trainer: Any = make_trainer(tmp_path, monkeypatch, trainer_class=InTheLoss)
        trainer.seen = []
        if watched:
            train(trainer, caplog)
        else:
            trainer.train()
        weights.append([value.detach().clone() for value in trainer.model.parameters()])
    assert all(torch.equal(plain, observed) for plain, observed in zip(*weights, strict=True))


def test_without_correction_the_ratio_is_read_in_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the correction off and no old log-probabilities, raw ratios are recorded as not applied."""
    trainer = make_trainer(tmp_path, monkeypatch, vllm_importance_sampling_correction=False)
    records, warnings = train(trainer, caplog)
    assert len(warnings) == 1
    assert "no correction applied: the ratio is the current policy's to the rollout's" in warnings[0]
    assert len(logged(trainer)) == 2
    assert not [key for key in records[0].scalars if "corrected" in key or "modified" in key]


def test_a_loss_of_unknown_layout_gives_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss whose scoring has another name gives one warning and no ratio, and training continues."""

    class Unknown(InTheLoss):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            self.__dict__[SCORING] = lambda *args, **kwargs: GRPOTrainer.__dict__[SCORING](self, *args, **kwargs)
            given = {**inputs, "importance_sampling_ratio": torch.ones(len(inputs["completion_ids"]), 1)}
            return GRPOTrainer._compute_loss(self, model, given)

    trainer = make_trainer(tmp_path, monkeypatch, trainer_class=Unknown, max_steps=3)
    _, warnings = train(trainer, caplog)
    assert trainer.state.global_step == 3
    assert len(warnings) == 1
    assert "the loss of Unknown has an unknown layout" in warnings[0]
    assert logged(trainer) == []


def test_a_queue_without_rollout_log_probabilities_gives_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer with a rollout queue and no ratio, as in distillation, gives one warning."""
    args = SimpleNamespace(report_to=[], output_dir=str(tmp_path))
    model = torch.nn.Linear(1, 1)
    trainer: Any = SimpleNamespace(
        rollout_queue=None, args=args, model=model, callback_handler=SimpleNamespace(callbacks=[])
    )
    trainer.compute_loss = lambda model, inputs: model(inputs["x"]).sum()
    trainer.evaluation_loop = trainer.log = trainer.train = lambda: None
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        RatioscopeCallback(trainer, report_to=[rs.MemoryTracker()])
        for _ in range(2):
            trainer.compute_loss(model, {"x": torch.ones(1, 1)})
    (warning,) = [text for text in caplog.messages if "reported once" in text]
    assert "SimpleNamespace computes no vLLM importance ratio; there is nothing to record" in warning


def test_gmpo_computes_and_does_not_apply_the_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """GMPO's raw ratios are recorded, and one warning says that its loss does not use them (C42)."""
    gmpo = pytest.importorskip("trl.experimental.gmpo")
    trainer = make_trainer(
        tmp_path, monkeypatch, trainer_class=gmpo.GMPOTrainer, config_class=gmpo.GMPOConfig, loss_type="grpo"
    )
    records, warnings = train(trainer, caplog)
    assert len(logged(trainer)) == 2
    assert records[0].summary.count("disagreements") == 0
    assert len(warnings) == 1
    assert "the loss of GMPOTrainer reads no importance ratio: the correction is computed, not applied" in warnings[0]


@pytest.mark.parametrize("calls_parent", [True, False])
def test_a_subclass_whose_loss_uses_the_ratio_gives_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, calls_parent: bool
) -> None:
    """A subclass whose loss calls TRL's own, or names the ratio itself, gives no warning."""

    class CallsParent(GRPOTrainer):  # type: ignore[misc]
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            return super()._compute_loss(model, inputs)

    class Names(GRPOTrainer):  # type: ignore[misc]
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            weights = inputs["importance_sampling_ratio"]
            return GRPOTrainer.__dict__["_compute_loss"](self, model, {**inputs, "importance_sampling_ratio": weights})

    trainer = make_trainer(tmp_path, monkeypatch, trainer_class=CallsParent if calls_parent else Names, max_steps=1)
    records, warnings = train(trainer, caplog)
    assert warnings == []
    assert len(records) == 1


@pytest.mark.parametrize(
    ("mode", "follows_config"), [("token_truncate", True), ("sequence_truncate", True), ("token_mask", False)]
)
def test_a_subclass_with_another_rule_has_no_corrected_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str, follows_config: bool
) -> None:
    """Ratios by the config's rule are accepted in either shape; other ratios withhold corrected statistics (C42)."""

    class Clamps(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            if not follows_config:
                d = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]) * batch["completion_mask"]
                batch["importance_sampling_ratio"] = d.exp().clamp(max=1.2)
            return batch

    trainer = make_trainer(tmp_path, monkeypatch, trainer_class=Clamps, vllm_importance_sampling_mode=mode, max_steps=1)
    records, _ = train(trainer, caplog)
    assert len(logged(trainer)) == 1
    assert (records[0].summary.count("disagreements") == 0) == follows_config
    assert ("ratioscope/corrected/mean" in records[0].scalars) == follows_config


def patched_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces TRL's trainer by one of rewritten source that is no subclass of it, as Unsloth does."""
    source = inspect.getsource(grpo_trainer).replace("class GRPOTrainer(", "class UnslothGRPOTrainer(")
    module = ModuleType("trl.trainer.unsloth_compiled")
    module.__dict__.update(__package__="trl.trainer", __file__=grpo_trainer.__file__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, str(grpo_trainer.__file__), "exec"), module.__dict__)
    patched: Any = module.__dict__["UnslothGRPOTrainer"]
    scoring = vars(patched)[SCORING]
    setattr(patched, SCORING, torch.compile(scoring, backend="eager", dynamic=True))
    module.__dict__["VLLMGeneration"] = FakeEngine
    monkeypatch.setattr(grpo_trainer, "GRPOTrainer", patched)
    assert not issubclass(patched, GRPOTrainer)
    return patched


def test_a_patched_trainer_of_another_class_is_observed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer of another class with compiled scoring is observed, and its numbers equal TRL's own."""
    trainer = make_trainer(tmp_path, monkeypatch, trainer_class=patched_class(monkeypatch))
    records, warnings = train(trainer, caplog)
    assert warnings == []
    assert len(records) == 2
    for record, theirs in zip(records, logged(trainer, "sampling/importance_sampling_ratio/mean"), strict=True):
        assert record.summary.count("disagreements") == 0
        assert record.scalars["ratioscope/corrected/mean"] == pytest.approx(theirs, rel=1e-5)


def test_a_patched_trainer_attaches_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After enable(), a class that later replaces TRL's attaches when it first trains."""
    from transformers import Trainer

    integrations = attach.integration_utils
    monkeypatch.setattr(integrations, "INTEGRATION_TO_CALLBACK", dict(integrations.INTEGRATION_TO_CALLBACK))
    for kind, name in ((GRPOTrainer, "__init__"), (Trainer, "train"), (Trainer, "evaluate"), (Trainer, "predict")):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    enable()
    trainer_class = patched_class(monkeypatch)
    trainer = make_trainer(tmp_path, monkeypatch, trainer_class=trainer_class, report_to=["ratioscope"])
    trainer.train()
    assert len(logged(trainer)) == 2


def rollouts(model: Any) -> MagicMock:
    """Makes a rollout worker for AsyncGRPO with all samples ready, whose log-probabilities are near the model's."""
    worker = MagicMock(rollout_buffer=queue.Queue(), metrics_queue=queue.Queue())
    random = torch.Generator().manual_seed(5)
    for n in range(32):
        prompt = [2 + n // 4, 3, 4]
        length = int(torch.randint(2, 8, (1,), generator=random))
        tokens = [*prompt, *torch.randint(2, VOCABULARY, (length,), generator=random).tolist(), EOS]
        with torch.no_grad():
            scores = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        logps = scores.gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)
        logps = (logps + 0.2 * torch.randn(len(logps), generator=random)).clamp(max=0)
        mask = np.array([0] * len(prompt) + [1] * (length + 1))
        worker.rollout_buffer.put(
            SimpleNamespace(
                input_ids=np.array(tokens),
                completion_mask=mask,
                old_log_probs=np.array([0.0, *logps.tolist()], dtype=np.float32) * mask.astype(np.float32),
                advantage=(-1.0) ** n,
                model_version=1,
                group_id=n // 4,
                metrics={"reward": float(n)},
                enqueued_at=None,
            )
        )
    return worker


def test_padded_rows_whose_model_returns_log_probabilities() -> None:
    """Rows of prompt and completion, as in AsyncGRPO before packing, are read without padding columns."""

    class Model(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"log_probs": torch.full((2, input_ids.shape[1] - 1), -0.5), "entropy": torch.zeros(2, 3)}

    trainer = SimpleNamespace(
        compute_loss=lambda model, inputs: model(inputs["input_ids"][:, :5])["log_probs"].sum(), model=Model()
    )
    batches: list[TrlBatch | None] = []
    recorder = rs.Recorder(report_to="none")
    reader = LossReader(trainer, lambda batch, *_: batches.append(batch), incidents=recorder.incidents)
    reader.expect(math.inf, "train")
    mask = torch.tensor([[0, 0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0]])
    inputs = {
        "input_ids": torch.arange(14).view(2, 7),
        "completion_mask": mask,
        "old_log_probs": -torch.arange(14.0).view(2, 7),
        "advantages": torch.tensor([1.0, -1.0]),
    }
    trainer.compute_loss(trainer.model, inputs)
    (batch,) = batches
    assert batch is not None
    assert (batch.policy, batch.train_logps.shape) == ("current", (2, 4))
    assert batch.rollout_logps.tolist() == [[-1, -2, -3, -4], [-8, -9, -10, -11]]
    assert torch.equal(batch.mask, mask[:, 1:5])
    assert batch.token_ids is not None
    assert batch.token_ids.tolist() == [[1, 2, 3, 4], [8, 9, 10, 11]]


def varlen_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_q: Any, cu_k: Any, *_: Any, **options: Any
) -> torch.Tensor:
    """Computes AsyncGRPO's attention over packed rows on the CPU; its own kernel needs a GPU."""
    parts = []
    for n in range(len(cu_q) - 1):
        q, k, v = (
            tensor[bounds[n] : bounds[n + 1]].transpose(0, 1)
            for tensor, bounds in ((query, cu_q), (key, cu_k), (value, cu_k))
        )
        ahead = k.shape[1] - q.shape[1]
        allowed = torch.ones(q.shape[1], k.shape[1]).tril(ahead).bool()
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, scale=options["softmax_scale"]
        )
        parts.append(out.transpose(0, 1))
    return torch.cat(parts)


def test_async_grpo_is_observed_in_its_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """AsyncGRPO gives the current policy's ratio to the rollout's, labelled as uncorrected, beside TRL's staleness."""
    asynchronous = pytest.importorskip("trl.experimental.async_grpo")
    packing = pytest.importorskip("trl.experimental.async_grpo.packing")
    monkeypatch.setattr(asynchronous.async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=varlen_attention))
    model, tokenizer = make_model()
    model.save_pretrained(tmp_path / "model")
    args = asynchronous.AsyncGRPOConfig(
        output_dir=str(tmp_path / "out"),
        report_to="none",
        use_cpu=True,
        bf16=False,
        dtype="float32",
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        learning_rate=1e-2,
        token_budget=0,
        max_staleness=100,
        disable_tqdm=True,
    )
    from datasets import Dataset

    trainer = asynchronous.AsyncGRPOTrainer(
        model=str(tmp_path / "model"),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "t1"}] * 8),
        processing_class=tokenizer,
        rollout_worker=rollouts(model),
        weight_transfer=MagicMock(),
    )
    records, warnings = train(trainer, caplog)

    assert len(warnings) == 1
    assert (
        "no correction applied: the ratio is the current policy's to the rollout's, with the rollout's" in warnings[0]
    )
    rows = [row for row in trainer.state.log_history if f"{RAW}/mean" in row]
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row, record in zip(rows, records, strict=True):
        assert row[f"{RAW}/mean"] == pytest.approx(row["ratio"], rel=1e-6)
        assert record.scalars["ratioscope/kl/k3"] == pytest.approx(row["kl"], rel=1e-4)
        assert row["sample/staleness_max"] >= row["sample/staleness_mean"] >= 0
        assert record.summary.count("sequence/n") == 4
        assert not [key for key in record.scalars if "corrected" in key or "modified" in key]
    assert rows[-1]["sample/staleness_max"] > 0
