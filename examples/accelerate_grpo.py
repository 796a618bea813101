"""GRPO loop with torch, accelerate and a colocated vLLM, recorded by ratioscope.

Offline, on CPU, in about a minute (a tiny random Qwen2 learns to answer sums):

    python examples/accelerate_grpo.py
    accelerate launch --cpu --num_processes 1 examples/accelerate_grpo.py --log-with tensorboard

In several processes, each with its own vLLM:

    torchrun --nproc_per_node 2 examples/accelerate_grpo.py

It uses a GPU if there is one, and writes only to `--output-dir`.
"""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path
from typing import Any

from tiny import keep_weights_plain, make_sums, make_tiny_model, sum_reward  # before vLLM: it prepares it

# isort: split
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM, SamplingParams
from vllm.utils.network_utils import get_open_port

import ratioscope as rs
from ratioscope.cli.main import main as ratioscope
from ratioscope_integrations.engines.vllm import Rollout, engine_settings, from_outputs, sampling_settings


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--steps", type=int, default=4, help="generations")
    add("--iterations", type=int, default=2, help="optimizer steps for each generation")
    add("--prompts", type=int, default=4, help="prompts per process and generation")
    add("--num-generations", type=int, default=8, help="completions per prompt")
    add("--max-tokens", type=int, default=32, help="tokens per completion")
    add("--learning-rate", type=float, default=1e-3)
    add("--clip-max", type=float, default=1.2, help="upper bound of the importance ratio")
    add("--log-with", default=None, help="accelerate's trackers, comma separated (default: none)")
    add("--output-dir", type=Path, default=Path("demo/accelerate"))
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)


def make_engine(folder: str, accelerator: Accelerator) -> LLM:
    """Start vLLM in this process, on the same device."""
    single = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": get_open_port()}
    for name, value in single.items():
        os.environ.setdefault(name, str(value))
    if accelerator.device.type == "cpu":
        keep_weights_plain()
    return LLM(
        folder,
        distributed_executor_backend="external_launcher",  # one engine for each process of the trainer
        logprobs_mode="processed_logprobs",  # of the distribution that was sampled from
        seed=accelerator.process_index,
        max_model_len=512,
        gpu_memory_utilization=0.3,
    )


def sync_weights(model: torch.nn.Module, llm: LLM) -> None:
    """Write the trained weights into the engine, and drop its cache of the old ones."""
    engine: Any = llm.llm_engine
    engine.model_executor.driver_worker.model_runner.model.load_weights(model.state_dict().items())
    llm.reset_prefix_cache()


def completion_logps(model: Any, prompts: list[list[int]], rollout: Rollout, pad_id: int) -> torch.Tensor:
    """Score the sampled tokens: (B, T) log-probabilities under the trainer."""
    width = max(map(len, prompts))
    rows = [prompts[request] for request in rollout.requests]
    left = torch.tensor([[pad_id] * (width - len(row)) + row for row in rows], device=rollout.mask.device)
    present = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=rollout.mask.device)
    attention = torch.cat([present, rollout.mask.long()], dim=1)
    logits = model(
        input_ids=torch.cat([left, rollout.token_ids], dim=1),
        attention_mask=attention,
        position_ids=(attention.cumsum(dim=1) - 1).clamp(min=0),
    ).logits[:, width - 1 : -1]
    return logits.float().log_softmax(dim=-1).gather(2, rollout.token_ids.unsqueeze(2)).squeeze(2)


def group_advantages(rewards: torch.Tensor, group: int) -> torch.Tensor:
    """Compare each completion with the others of its prompt."""
    grouped = rewards.view(-1, group)
    return ((grouped - grouped.mean(dim=1, keepdim=True)) / (grouped.std(dim=1, keepdim=True) + 1e-4)).flatten()


def grpo_loss(
    logps: torch.Tensor, old_logps: torch.Tensor, advantages: torch.Tensor, weights: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Clip the policy's ratio to its old version, and weigh each token by the engines' importance ratio."""
    ratio, advantages = (logps - old_logps).exp(), advantages.unsqueeze(1)
    gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -(gain * weights * mask).sum() / mask.sum().clamp(min=1)


def main(argv: list[str] | None = None) -> None:
    """Train, then print the report on the ratios."""
    args = parse_args(argv)
    log_with = args.log_with.split(",") if args.log_with else None
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), log_with=log_with, project_dir=str(args.output_dir))
    set_seed(args.seed)
    with accelerator.main_process_first():
        folder = make_tiny_model(args.output_dir / "tiny-qwen2", args.seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=args.learning_rate))
    llm = make_engine(folder, accelerator)
    sampling = SamplingParams(n=args.num_generations, temperature=1.0, max_tokens=args.max_tokens, logprobs=0)

    accelerator.init_trackers("ratioscope")
    rule = rs.Correction("token", "truncate", upper=args.clip_max)
    recorder = rs.Recorder(accelerator=accelerator, correction=rule, output_dir=args.output_dir)
    recorder.open(sections={"engine": engine_settings(llm), "sampling": sampling_settings(sampling)})
    rows, rng = make_sums(args.seed), random.Random(accelerator.process_index)

    for step in range(1, args.steps + 1):
        sync_weights(accelerator.unwrap_model(model), llm)
        batch = rng.sample(rows, args.prompts)
        prompts = [tokenizer(row["prompt"])["input_ids"] for row in batch]
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        rollout = from_outputs(outputs, pad_id=tokenizer.pad_token_id, incidents=recorder.incidents)
        rollout = rollout.to(accelerator.device)

        texts = [completion.text for output in outputs for completion in output.outputs]
        rewards = sum_reward(texts, [batch[request]["solution"] for request in rollout.requests])
        advantages = group_advantages(torch.tensor(rewards, device=accelerator.device), args.num_generations)
        with torch.no_grad():
            old_logps = completion_logps(model, prompts, rollout, tokenizer.pad_token_id)
        weights = recorder.correct(
            old_logps, rollout.rollout_logps, rollout.mask, advantages=advantages, token_ids=rollout.token_ids
        )
        for _ in range(args.iterations):
            logps = completion_logps(model, prompts, rollout, tokenizer.pad_token_id)
            loss = grpo_loss(logps, old_logps, advantages, weights, rollout.mask)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

        record = recorder.flush(step=step)  # on every process
        accelerator.log({"loss": loss.item(), "reward": sum(rewards) / len(rewards)}, step=step)
        if record is not None:
            mean, spread = (record.scalars[f"ratioscope/token/log_ratio/{key}"] for key in ("mean", "abs_mean"))
            accelerator.print(f"step {step}: loss {loss.item():+.4f}, log-ratio mean {mean:+.5f}, |.| {spread:.5f}")

    recorder.close()  # before accelerate ends its trackers' runs
    llm.llm_engine.engine_core.shutdown()  # before accelerate takes the process group away
    accelerator.end_training()
    if accelerator.is_main_process:
        ratioscope(["report", str(args.output_dir)])


if __name__ == "__main__":
    main()
