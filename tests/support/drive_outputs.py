"""Generates with a real vLLM and saves the converted outputs beside vLLM's own values.

python tests/support/drive_outputs.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support.drive_grpo import load_example

MAX_TOKENS = 24


def entries(completion: Any) -> list[dict[int, Any]]:
    """Returns vLLM's entries of each position."""
    return [completion.logprobs[position] for position in range(len(completion.logprobs))]


def main(folder: Path) -> None:
    """Generates on one engine with several settings of log-probabilities."""
    tiny = load_example("tiny")
    tiny.keep_weights_plain()
    from vllm import LLM, SamplingParams

    from ratioscope_integrations.engines.vllm import engine_settings, from_outputs, sampling_settings

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    llm = LLM(tiny.make_tiny_model(folder / "model", 0), max_model_len=256, seed=1)
    prompts = [{"prompt_token_ids": llm.get_tokenizer().encode(row["prompt"])} for row in tiny.make_sums(0, 6)]
    runs = []
    for logprobs in (0, 1, 5):
        for flat in (False, True):
            params = SamplingParams(
                n=2,
                temperature=1.0,
                max_tokens=MAX_TOKENS,
                logprobs=logprobs,
                flat_logprobs=flat,
                stop_token_ids=list(range(20, 40)),
                seed=3,
            )
            outputs = llm.generate(prompts, params, use_tqdm=False)
            rollout = from_outputs(outputs, pad_id=2)
            completions = [completion for output in outputs for completion in output.outputs]
            positions = [position for completion in completions for position in entries(completion)]
            runs.append(
                {
                    "logprobs": logprobs,
                    "container": type(completions[0].logprobs).__name__,
                    "tokens": [list(completion.token_ids) for completion in completions],
                    "cumulative": [completion.cumulative_logprob for completion in completions],
                    "stopped": [completion.stop_reason for completion in completions],
                    "finished": [completion.finish_reason for completion in completions],
                    "not_the_top": sum(next(iter(position.values())).rank > 1 for position in positions),
                    "rows": rollout.token_ids.tolist(),
                    "mask": rollout.mask.tolist(),
                    "logps": rollout.rollout_logps.nan_to_num(99.0).tolist(),
                    "requests": rollout.requests,
                    "counts": dict(rollout.counts),
                }
            )
    settings = {"engine": engine_settings(llm), "sampling": sampling_settings(params)}
    (folder / "outputs.json").write_text(json.dumps({"runs": runs, "settings": settings}, default=str))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
