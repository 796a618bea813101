"""Runs the accelerate example and saves the outputs of vLLM and the inputs of the loss.

python tests/support/drive_accelerate.py FOLDER [options of examples/accelerate_grpo.py]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support.drive_grpo import load_example


def main(folder: Path, argv: list[str]) -> None:
    """Wraps functions of the example, and trains."""
    example = load_example("accelerate_grpo")
    folder.mkdir(parents=True, exist_ok=True)
    rank = int(os.environ.get("RANK", "0"))
    original_outputs, original_loss, original_sync = example.from_outputs, example.grpo_loss, example.sync_weights
    batches: list[dict[str, Any]] = []

    def from_outputs(outputs: Any, **options: Any) -> Any:
        rollout = original_outputs(outputs, **options)
        completions = [completion for output in outputs for completion in output.outputs]
        batches.append(
            {
                "rollout_logps": rollout.rollout_logps.numpy(),
                "mask": rollout.mask.numpy(),
                "token_ids": rollout.token_ids.numpy(),
                "counted": sum(rollout.counts.values()),
                "lengths": np.array([len(completion.token_ids) for completion in completions]),
                "cumulative": np.array([completion.cumulative_logprob for completion in completions]),
            }
        )
        return rollout

    def grpo_loss(logps: Any, old_logps: Any, advantages: Any, weights: Any, mask: Any) -> Any:
        loss = original_loss(logps, old_logps, advantages, weights, mask)
        batches[-1].setdefault("losses", []).append(loss.item())
        batches[-1] |= {"old_logps": old_logps.cpu().numpy(), "weights": weights.cpu().numpy()}
        return loss

    def sync_weights(model: Any, llm: Any) -> None:
        original_sync(model, llm)
        (folder / "norms.txt").open("a").write(f"{sum(float(p.detach().abs().sum()) for p in model.parameters())}\n")

    example.from_outputs, example.grpo_loss, example.sync_weights = from_outputs, grpo_loss, sync_weights
    example.main(argv)
    for number, batch in enumerate(batches, 1):
        np.savez(folder / f"rank{rank}-batch{number:03d}.npz", **batch)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
