"""Parts that the examples share: a tiny random model that learns sums on a CPU, and settings that vLLM needs there."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import torch

if not torch.cuda.is_available():
    # Read once, at import. Compiling takes longer than this run and needs a C++ compiler; threads pinned to cores would
    # slow down the trainer's own.
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

if TYPE_CHECKING:
    from pathlib import Path


def keep_weights_plain() -> None:
    """Make vLLM keep its weights as they are loaded.

    Its CPU build repacks the weights of linear layers and drops the originals (seen in 0.31), but the trained weights
    are written into the originals before each generation.
    """
    from vllm.model_executor.layers import utils

    def use_torch_linear(layer: torch.nn.Module, remove_weight: bool) -> None:  # noqa: ARG001 (vLLM passes both)
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = use_torch_linear


def make_sums(seed: int, size: int = 256) -> list[dict[str, str]]:
    """Make small sums: rows with `prompt` and `solution`."""
    rng = random.Random(seed)
    pairs = [(rng.randint(0, 99), rng.randint(0, 99)) for _ in range(size)]
    return [{"prompt": f"What is {a} + {b}? ", "solution": str(a + b)} for a, b in pairs]


def sum_reward(completions: list[str], solution: list[str], **_: Any) -> list[float]:
    """Reward the answer, and digits on the way to it: a random model gets some of those by chance."""
    return [
        float(answer in text) + sum(character.isdigit() for character in text) / max(len(text), 1)
        for text, answer in zip(completions, solution, strict=True)
    ]


def make_tiny_model(folder: Path, seed: int) -> str:
    """Save a random two-layer Qwen2 with a byte-level tokenizer in `folder`, unless it is there already."""
    if (folder / "model.safetensors").exists():
        return str(folder)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        (row["prompt"] for row in make_sums(seed)),
        trainers.BpeTrainer(
            vocab_size=384,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|im_end|>")
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(folder)

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.4,  # gives peaked distributions, as a trained model has; two engines disagree on those
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)
