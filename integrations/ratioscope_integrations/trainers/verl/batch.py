"""Reading of verl's batches: a ``DataProto``, its ``TensorDict`` or a dict, padded or nested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ratioscope.batch.packing import padded

_REQUIRED = {"train_logps": "old_log_probs", "rollout_logps": "rollout_log_probs", "mask": "response_mask"}
_OPTIONAL = {"advantages": "advantages", "token_ids": "responses", "weights": "rollout_is_weights"}
_ADDED_AFTER_CORRECTION = {"advantages", "rollout_is_weights"}


@dataclass(frozen=True)
class VerlBatch:
    """Tensors of one batch, all ``(B, T)`` and padded except ``advantages``, ``(B,)``.

    Attributes:
        train_logps: log-probabilities under the policy before the update, in nats.
        rollout_logps: log-probabilities under the engine that sampled.
        mask: tokens that the policy sampled, including rejected ones if the caller gave the mask before the rejection.
        advantages: advantage of each completion; None if one has several, or if a rejection left none of its tokens.
        token_ids: sampled tokens, or None.
        weights: importance weights of verl's correction, or None.
        is_corrected: True if verl's correction, which changes the mask, has certainly run.
    """

    train_logps: torch.Tensor
    rollout_logps: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor | None
    token_ids: torch.Tensor | None
    weights: torch.Tensor | None
    is_corrected: bool


def read_batch(batch: Any, mask: torch.Tensor | None = None) -> VerlBatch | str:
    """Reads a batch.

    Args:
        batch: a ``DataProto``, a ``TensorDict`` or a dict of tensors.
        mask: ``(B, T)`` or nested ``response_mask`` as it was before verl's correction; None for the batch's own.

    Returns:
        The batch, or the reason why it has no ratio.

    Raises:
        TypeError: if the batch is something else.
    """
    tensors = getattr(batch, "batch", batch)
    if not callable(getattr(tensors, "keys", None)):
        msg = f"got a batch of type {type(batch).__name__}; expected a DataProto, a TensorDict or a dict of tensors"
        raise TypeError(msg)
    keys = set(tensors.keys())
    if absent := [key for key in _REQUIRED.values() if key not in keys]:
        return f"verl's batch has no {', '.join(absent)}. Is actor_rollout_ref.rollout.calculate_log_probs on?"
    named = {name: tensors[key] for name, key in _REQUIRED.items()}
    if named["train_logps"] is named["rollout_logps"]:
        return "verl's old_log_probs are the rollout's own, as in bypass mode: every ratio is 1"
    named |= {"mask": named["mask"] if mask is None else mask, "remaining": named["mask"]}
    optional = {name: tensors[key] if key in keys else None for name, key in _OPTIONAL.items()}
    in_mask: torch.Tensor
    train, rollout, in_mask, remaining, *rest = padded(None, **named, **_in_layout_of(named["train_logps"], optional))
    known = [value if value is not None and value.shape == train.shape else None for value in rest]
    advantages, token_ids, weights = known
    return VerlBatch(
        train_logps=train,
        rollout_logps=rollout,
        mask=in_mask,
        advantages=None if advantages is None else _by_completion(advantages, remaining, in_mask),
        token_ids=token_ids,
        weights=weights,
        is_corrected=bool(_ADDED_AFTER_CORRECTION & keys),
    )


def _in_layout_of(logps: torch.Tensor, optional: dict[str, Any]) -> dict[str, Any]:
    """Replaces optional tensors by None if they are nested and the log-probabilities are not, or the reverse."""
    return {
        name: None if value is not None and value.is_nested != logps.is_nested else value
        for name, value in optional.items()
    }


def _by_completion(advantages: torch.Tensor, remaining: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
    """Reduces ``(B, T)`` advantages to ``(B,)``; None if a completion has several, or none that is known.

    verl holds batches on the CPU, where the comparison is free. On an accelerator the host would wait for it, so there
    the advantages are left out.
    """
    if advantages.device.type != "cpu" or not advantages.numel() or remaining.shape != advantages.shape:
        return None
    inside = remaining != 0
    highest = torch.where(inside, advantages, -torch.inf).amax(dim=-1)
    lowest = torch.where(inside, advantages, torch.inf).amin(dim=-1)
    known = (lowest == highest) | ~(mask != 0).any(dim=-1)
    return torch.where(inside.any(dim=-1), highest, 0.0) if bool(known.all()) else None
