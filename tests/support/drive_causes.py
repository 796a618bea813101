"""Trains with a real vLLM, once for each fault, in one process: runs of one dtype share an engine.

python tests/support/drive_causes.py FOLDER [RUN ...]

A run is DTYPE-FAULT, such as bfloat16-top_p: the engine's dtype (the trainer has float32) and the fault. It leaves
its journal in FOLDER/RUN and every generated batch, as numpy, in FOLDER/batches/RUN.
"""

from __future__ import annotations

import functools
import json
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tests.support.drive_grpo import load_example

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT = ("old_per_token_logps", "sampling_per_token_logps", "completion_mask", "completion_ids")
OPTIONS = ("--steps", "8", "--batch-size", "32", "--max-completion-length", "48", "--learning-rate", "3e-3")
TOP_P = 0.8


def sample_top_p(trainer: Any) -> None:
    """Makes the engine sample from the nucleus of 0.8."""
    trainer.vllm_generation.top_p = TOP_P


def sample_top_k(trainer: Any) -> None:
    """Makes the engine sample from 20 tokens."""
    trainer.vllm_generation.top_k = 20


def sample_colder(trainer: Any) -> None:
    """Makes the engine sample at 0.7 while the trainer scores at 1, through ``generation_kwargs``."""
    trainer.vllm_generation.generation_kwargs = {"temperature": 0.7}


def never_sync(trainer: Any) -> None:
    """Drops every weight update but the first: another run may have left its weights in the engine."""
    original = trainer.vllm_generation.sync_weights
    calls = iter([original])
    trainer.vllm_generation.sync_weights = lambda: next(calls, lambda: None)()


def shift(trainer: Any) -> None:
    """Gives each token the log-probability of the next one."""
    change_logprobs(trainer, lambda row: [*row[1:], row[-1]])


def fill_with_zeros(trainer: Any) -> None:
    """Gives every fifth token or so a log-probability of 0."""
    rng = random.Random(0)
    change_logprobs(trainer, lambda row: [[0.0] if rng.random() < 0.2 else logprob for logprob in row])


def change_logprobs(trainer: Any, change: Callable[[list[list[float]]], list[list[float]]]) -> None:
    """Changes the engine's log-probabilities of each completion before the trainer receives them."""
    original = trainer.vllm_generation.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        prompts, completions, logprobs, ids = original(*args, **kwargs)
        return prompts, completions, [change(row) for row in logprobs], ids

    trainer.vllm_generation.generate = generate


FAULTS: dict[str, Callable[[Any], None]] = {
    "none": lambda trainer: None,
    "top_p": sample_top_p,
    "top_k": sample_top_k,
    "temperature": sample_colder,
    "never_synced": never_sync,
    "shifted": shift,
    "zero_filled": fill_with_zeros,
}
RUNS = [f"{dtype}-{fault}" for dtype in ("float32", "bfloat16") for fault in FAULTS]


@torch.no_grad()
def full_distribution(trainer: Any, batch: Any) -> dict[str, Any]:
    """Computes ``(B, T)`` nucleus mass and sampled log-probabilities from the trainer's own logits."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    length = batch["completion_ids"].shape[1]
    logits = trainer.model(input_ids=ids, attention_mask=mask).logits[:, -length - 1 : -1]
    logps = (logits.double() / trainer.temperature).log_softmax(dim=-1)
    largest_first = logps.exp().sort(dim=-1, descending=True).values
    before = largest_first.cumsum(dim=-1) - largest_first
    mass = torch.where(before < TOP_P, largest_first, 0.0).sum(dim=-1)
    own = logps.gather(2, batch["completion_ids"].unsqueeze(2)).squeeze(2)
    return {"nucleus_mass": mass.numpy(), "full_logps": own.numpy()}


def watch(trainer: Any, folder: Path) -> None:
    """Saves every generated batch."""
    folder.mkdir(parents=True, exist_ok=True)
    original = trainer._generate_and_score_completions

    def save(inputs: Any) -> Any:
        batch = original(inputs)
        saved = {key: batch[key].numpy() for key in KEPT} | full_distribution(trainer, batch)
        np.savez(folder / f"{len(list(folder.iterdir())):03}.npz", **saved)
        return batch

    trainer._generate_and_score_completions = save


def main(folder: Path, runs: list[str]) -> None:
    """Trains the named runs, or all."""
    example = load_example()
    from trl.generation import vllm_generation

    start = functools.cache(vllm_generation.LLM)
    seconds = {}
    for run in runs or RUNS:
        began = time.monotonic()
        dtype, _, fault = run.partition("-")
        vllm_generation.LLM = functools.partial(start, dtype=dtype)
        options = [*OPTIONS, "--report-to", "none", "--output-dir", str(folder), "--run-name", run]
        trainer = example.build_trainer(example.parse_args(options))
        FAULTS[fault](trainer)
        watch(trainer, folder / "batches" / run)
        trainer.train()
        seconds[run] = round(time.monotonic() - began, 1)
    (folder / "seconds.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
