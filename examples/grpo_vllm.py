"""GRPO with TRL and a colocated vLLM, recorded by ratioscope.

Offline, on CPU, in about a minute (a tiny random Qwen2 learns to answer sums):

    python examples/grpo_vllm.py --mode token_truncate

On a GPU, with a model and a dataset from the Hugging Face hub:

    python examples/grpo_vllm.py --model Qwen/Qwen2-0.5B-Instruct --dataset trl-lib/DeepMath-103K \
        --max-completion-length 512 --steps 100

The same script runs in several processes, on CPU as on GPUs:

    torchrun --nproc_per_node 2 examples/grpo_vllm.py
    accelerate launch --multi_gpu --num_processes 2 examples/grpo_vllm.py

Everything it writes is in `--output-dir`, and runs that share it stand side by side in MLflow, W&B and TensorBoard.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tiny import keep_weights_plain, make_sums, make_tiny_model, sum_reward  # before vLLM: it prepares it

# isort: split
import torch
from datasets import Dataset, load_dataset
from rich.console import Console
from rich.table import Table
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

from ratioscope_integrations.trainers.trl import RatioscopeCallback

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
PROJECT = "ratioscope"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--mode", choices=MODES, default="token_truncate", help="level and action of the correction")
    add("--clip-max", type=float, default=1.2, help="upper bound of the ratio")
    add("--clip-min", type=float, default=None, help="lower bound of the ratio (default: none)")
    add("--report-to", action="append", help="trackers, comma separated (default: mlflow,wandb,tensorboard)")
    add("--steps", type=int, default=3, help="optimizer steps")
    add("--model", help="hub name or folder (default: a tiny random Qwen2, made on the spot)")
    add("--dataset", help="hub name or folder with `prompt` and `solution` (default: sums, made on the spot)")
    add("--output-dir", type=Path, default=Path("demo"), help="where runs and local tracker files go")
    add("--run-name", help="the run's name in the trackers (default: the mode)")
    add("--seed", type=int, default=0)
    add("--batch-size", type=int, default=16, help="completions per process and step")
    add("--num-generations", type=int, default=8, help="completions per prompt")
    add("--max-completion-length", type=int, default=48, help="tokens per completion")
    add("--learning-rate", type=float, default=1e-4)
    add("--top-p", type=float, default=1.0, help="nucleus that vLLM samples from; the trainer scores without it")
    add("--bf16", action="store_true", help="train in bfloat16 on CPU too, as vLLM samples there")
    args = parser.parse_args(argv)
    args.report_to = ",".join(args.report_to or ["mlflow,wandb,tensorboard"]).split(",")
    args.run_name = args.run_name or args.mode
    args.output_dir = args.output_dir.resolve()
    return args


def build_trainer(args: argparse.Namespace) -> GRPOTrainer:
    """Set up the trainer, with ratioscope attached."""
    set_up_trackers(args)
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        keep_weights_plain()
    config = GRPOConfig(
        output_dir=str(args.output_dir / args.run_name),
        run_name=args.run_name,
        report_to=args.report_to,
        seed=args.seed,
        max_steps=args.steps,
        learning_rate=args.learning_rate,
        per_device_train_batch_size=args.batch_size,
        num_generations=args.num_generations,
        max_completion_length=args.max_completion_length,
        top_p=args.top_p,
        logging_steps=1,
        save_strategy="no",
        # On CPU the trainer runs in float32 and vLLM in bfloat16, its default: the mismatch that the example shows.
        use_cpu=on_cpu,
        bf16=args.bf16 or not on_cpu,
        gradient_checkpointing=not on_cpu,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3,
        vllm_max_model_length=512 + args.max_completion_length,
        vllm_importance_sampling_mode=args.mode,
        vllm_importance_sampling_clip_max=args.clip_max,
        vllm_importance_sampling_clip_min=args.clip_min,
    )
    with config.main_process_first():
        model = args.model or make_tiny_model(args.output_dir / f"tiny-qwen2-{args.seed}", args.seed)
        dataset = load_dataset(args.dataset, split="train") if args.dataset else Dataset.from_list(make_sums(args.seed))
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=accuracy_reward if args.dataset else sum_reward,
        args=config,
        train_dataset=dataset,
    )
    trainer.add_callback(RatioscopeCallback(trainer))
    return trainer


def set_up_trackers(args: argparse.Namespace) -> None:
    """Keep the trackers in `--output-dir`, unless the environment says where they are."""
    args.output_dir.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_PROJECT", PROJECT)
    os.environ.setdefault("WANDB_DIR", str(args.output_dir))
    if "WANDB_API_KEY" not in os.environ:
        os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(args.output_dir / "tensorboard" / args.run_name))
    os.environ.setdefault("MLFLOW_EXPERIMENT_NAME", PROJECT)
    if "mlflow" in args.report_to and "MLFLOW_TRACKING_URI" not in os.environ:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{args.output_dir / 'mlflow.db'}"
        if int(os.environ.get("RANK", "0")) == 0:
            make_mlflow_experiment(args.output_dir / "mlflow-artifacts")


def make_mlflow_experiment(artifacts: Path) -> None:
    """Create the experiment, so that its artifacts lie beside the database and not in the working directory."""
    import mlflow

    client = mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    name = os.environ["MLFLOW_EXPERIMENT_NAME"]
    if client.get_experiment_by_name(name) is None:
        client.create_experiment(name, artifact_location=artifacts.as_uri())


def summarize(trainer: GRPOTrainer, args: argparse.Namespace, console: Console) -> None:
    """Print the ratios of the last step, and the addresses of the trackers."""
    logged = [row for row in trainer.state.log_history if "sampling/importance_sampling_ratio/mean" in row][-1]
    raw, corrected = "sampling/raw_importance_sampling_ratio", "sampling/importance_sampling_ratio"
    title = f"{args.mode}, clip_min={args.clip_min}, clip_max={args.clip_max}, step {logged['step']}"
    table = Table(title=title, min_width=len(title))
    for column in ("importance ratio", "raw", "corrected"):
        table.add_column(column, justify="right")
    for name, *keys in (
        ("min", f"{raw}/min", f"{corrected}/min"),
        ("mean", f"{raw}/mean", f"{corrected}/mean"),
        ("max", f"{raw}/max", f"{corrected}/max"),
        ("effective sample size", "ratioscope/ess/raw", "ratioscope/ess/corrected"),
        ("modified", "sampling/frac_modified_importance_sampling_ratio"),
        ("modified, too low", "ratioscope/modified/low"),
        ("modified, too high", "ratioscope/modified/high"),
        ("KL (k1)", "ratioscope/kl/k1"),
        ("KL (k3)", "ratioscope/kl/k3"),
    ):
        table.add_row(name, *(f"{logged[key]:.4g}" if key in logged else "-" for key in keys))
    console.print(table)

    if "mlflow" in args.report_to:
        uri = os.environ["MLFLOW_TRACKING_URI"]
        look = uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {uri}"
        console.print(f"MLflow       {look}", soft_wrap=True)
    if "wandb" in args.report_to and os.environ.get("WANDB_MODE") == "offline":
        folder = Path(os.environ["WANDB_DIR"]) / "wandb"
        console.print(f"W&B          {folder}  (upload: wandb sync {folder}/offline-run-*)", soft_wrap=True)
    if "tensorboard" in args.report_to:
        folder = Path(os.environ["TENSORBOARD_LOGGING_DIR"]).parent
        console.print(f"TensorBoard  tensorboard --logdir {folder}", soft_wrap=True)


def main(argv: list[str] | None = None) -> None:
    """Train, then print a summary of the ratios."""
    args = parse_args(argv)
    trainer = build_trainer(args)
    trainer.train()
    trainer.save_state()
    if trainer.is_world_process_zero():
        summarize(trainer, args, Console())


if __name__ == "__main__":
    main()
