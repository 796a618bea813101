"""Other tools as contenders: each function takes a batch and computes the tool's logged numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.batches import RULE, Batch

Peer = Callable[[Batch], object]
BINS = 64


def trl(batch: Batch) -> dict[str, float]:
    """TRL's importance sampling correction of a generated batch, and the five numbers that it logs, in one process.

    Restated after ``GRPOTrainer._generate_and_score_completions`` of trl 1.16, the ``token_truncate`` mode; without
    ``accelerator.gather``, which does nothing in one process.
    """
    train, rollout, mask = batch.rows()
    log_ratio = torch.nan_to_num((train - rollout) * mask, nan=0.0)
    weights = torch.clamp(torch.exp(log_ratio), min=RULE.lower, max=RULE.upper)
    gap = torch.abs(train - rollout)
    gap = gap[mask & ~torch.isnan(gap)]
    kept = weights[mask]
    return {
        "sampling_logp_difference/mean": torch.mean(gap).mean().item(),
        "sampling_logp_difference/max": torch.max(gap).max().item(),
        "importance_sampling_ratio/min": _without_nan(torch.min(kept)).min().item(),
        "importance_sampling_ratio/mean": torch.mean(kept).nanmean().item(),
        "importance_sampling_ratio/max": _without_nan(torch.max(kept)).max().item(),
    }


def _without_nan(value: torch.Tensor) -> torch.Tensor:
    """Drops NaN, as TRL's nanmin and nanmax do."""
    values = value.reshape(1)
    return values[~torch.isnan(values)]


def numpy_histogram(batch: Batch) -> object:
    """Histogram of the valid log-ratios."""
    return np.histogram(_values(batch), bins=BINS)


def _values(batch: Batch) -> np.ndarray[Any, Any]:
    return (batch.train - batch.rollout)[batch.mask].float().numpy()


def _verl() -> Peer:
    from verl.trainer.ppo.rollout_corr_helper import (  # pyright: ignore[reportMissingImports]
        compute_rollout_correction_and_rejection_mask,
    )

    def verl(batch: Batch) -> object:
        train, rollout, mask = batch.rows()
        return compute_rollout_correction_and_rejection_mask(
            train, rollout, mask, rollout_is="token", rollout_is_threshold=RULE.upper
        )

    return verl


def _polgrad() -> Peer:
    from polgrad.diagnostics import importance_ess, logprob_mismatch  # pyright: ignore[reportMissingImports]

    def polgrad(batch: Batch) -> object:
        rows = batch.rows()
        return logprob_mismatch(*rows), importance_ess(*rows, level="token"), importance_ess(*rows)

    return polgrad


def _wandb() -> Peer:
    import wandb

    def histogram(batch: Batch) -> object:
        values: Any = _values(batch)  # accepts an array; the annotated type is slower
        return wandb.Histogram(values)

    return histogram


LOADERS: dict[str, Callable[[], Peer]] = {
    "TRL": lambda: trl,
    "verl": _verl,
    "polgrad": _polgrad,
    "numpy.histogram": lambda: numpy_histogram,
    "wandb.Histogram": _wandb,
}


def load() -> tuple[dict[str, Peer], dict[str, str]]:
    """Loads the installed tools; for each of the others gives the reason."""
    loaded, missing = dict[str, Peer](), dict[str, str]()
    for name, loader in LOADERS.items():
        try:
            loaded[name] = loader()
        except ImportError as error:
            missing[name] = f"not run: {error}"
    return loaded, missing
