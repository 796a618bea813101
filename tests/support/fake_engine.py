"""Fake of TRL's vLLM client, with which a real GRPOTrainer trains in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trl import GRPOTrainer

VOCABULARY = 32
EOS = 1


class FakeEngine:
    """Fake of ``trl.generation.vllm_generation.VLLMGeneration``.

    The log-probabilities are the policy's own plus noise; ``spoil`` may change them.
    """

    noise = 0.2
    spoil: Callable[[list[list[list[float | None]]]], None] | None = None

    def __init__(self, model: Any, accelerator: Any, **options: Any) -> None:
        self.model = model
        self.length = options["max_completion_length"]
        self.random = torch.Generator().manual_seed(11 + accelerator.process_index)

    def sync_weights(self) -> None:
        """Does nothing: the weights are the trainer's."""

    def generate(self, prompts: list[list[int]], **_: Any) -> tuple[Any, ...]:
        """Generates random completions of random lengths, each ended by EOS."""
        ids, logps = [], []
        for prompt in prompts:
            n = int(torch.randint(2, self.length, (1,), generator=self.random))
            completion = [*torch.randint(2, VOCABULARY, (n - 1,), generator=self.random).tolist(), EOS]
            ids.append(completion)
            logps.append(self._score(prompt, completion))
        if type(self).spoil is not None:
            type(self).spoil(logps)
        return None, ids, logps, None

    @torch.no_grad()
    def _score(self, prompt: list[int], completion: list[int]) -> list[list[float | None]]:
        tokens = torch.tensor([prompt + completion])
        model = getattr(self.model, "module", self.model)
        logps = model(tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        chosen = logps.gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)
        noise = self.noise * torch.randn(len(completion), generator=self.random)
        return [[min(0.0, value)] for value in (chosen + noise).tolist()]


def make_trainer(
    folder: Path,
    monkeypatch: Any = None,
    *,
    eval_rows: int = 0,
    trainer_class: Any = None,
    config_class: Any = None,
    **settings: Any,
) -> GRPOTrainer:
    """Makes a real GRPOTrainer, or a trainer of another class, with a tiny model and the fake engine."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import grpo_trainer

    trainer_class = trainer_class or GRPOTrainer
    if monkeypatch is None:
        grpo_trainer.VLLMGeneration = FakeEngine
    else:
        if hasattr(grpo_trainer, "VLLMGeneration"):
            monkeypatch.setattr(grpo_trainer, "VLLMGeneration", FakeEngine)
        monkeypatch.setattr(grpo_trainer, "is_vllm_available", lambda *_, **__: True, raising=False)
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 12,
        "learning_rate": 1e-2,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 1.2,
        "disable_tqdm": True,
        "seed": 3,
    }
    config_class = config_class or GRPOConfig
    known = config_class.__dataclass_fields__
    renamed = {"vllm_importance_sampling_clip_max": "vllm_importance_sampling_cap"}
    wanted = {
        name if name in known else renamed.get(name, name): value for name, value in {**defaults, **settings}.items()
    }
    config = config_class(**wanted)
    prompts = [{"prompt": " ".join(f"t{i % 7}" for i in range(n, n + 4))} for n in range(32)]
    model, tokenizer = make_model()
    trainer = trainer_class(
        model=model,
        processing_class=tokenizer,
        reward_funcs=length_reward,
        args=config,
        train_dataset=Dataset.from_list(prompts),
        eval_dataset=Dataset.from_list(prompts[:eval_rows]) if eval_rows else None,
    )
    return cast("GRPOTrainer", trainer)


def length_reward(completions: list[str], **_: Any) -> list[float]:
    """Rewards the length of the text, so that advantages differ."""
    return [len(text) / 10.0 for text in completions]


def make_model() -> tuple[Any, Any]:
    """Makes a seeded one-layer Qwen2 and its tokenizer of :data:`VOCABULARY` words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = {"<pad>": 0, "<eos>": EOS} | {f"t{i}": i + 2 for i in range(VOCABULARY - 2)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=EOS,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config), fast
