"""Runs the example and saves every generated batch as numpy, for tests to compute from.

python tests/support/drive_grpo.py BATCHES_FOLDER [options of examples/grpo_vllm.py]
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

KEPT = (
    "old_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
    "completion_mask",
    "advantages",
)


def load_example(name: str = "grpo_vllm") -> Any:
    """Imports an example as a module."""
    path = Path(__file__).resolve().parents[2] / "examples" / f"{name}.py"
    sys.path.insert(0, str(path.parent))  # as where it is run: the examples share a module
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: Path, argv: list[str]) -> None:
    """Builds the example's trainer, makes it save its batches, and trains."""
    example = load_example()
    args = example.parse_args(argv)
    trainer = example.build_trainer(args)
    folder.mkdir(parents=True, exist_ok=True)
    rank = int(os.environ.get("RANK", "0"))
    original = trainer._generate_and_score_completions
    count = 0

    def save(inputs: Any) -> Any:
        nonlocal count
        batch = original(inputs)
        count += 1
        np.savez(folder / f"rank{rank}-batch{count:03d}.npz", **{key: batch[key].cpu().numpy() for key in KEPT})
        return batch

    trainer._generate_and_score_completions = save
    trainer.train()
    trainer.save_state()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
