"""verl's batch as a recorder takes it: a ``DataProto``, its ``TensorDict`` or a dict, padded or nested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ratioscope.batch.packing import padded

OLD, ROLLOUT, MASK = "old_log_probs", "rollout_log_probs", "response_mask"
ADVANTAGES, TOKENS, WEIGHTS = "advantages", "responses", "rollout_is_weights"


@dataclass(frozen=True)
class Sides:
    """What a batch holds, all ``(B, T)`` and padded but ``advantages``, ``(B,)``.

    Attributes:
        train: log-probabilities under the policy before the update.
        rollout: the same under the engine that sampled.
        mask: the tokens that the policy sampled, those that a rejection took away included if the caller gave them.
        advantages: of each row; None where they differ within a row, or a rejection left nothing of one.
        token_ids: of the sampled tokens, or None.
        weights: what verl's correction made of the ratios, or None.
        corrected: whether verl's correction, which changes the mask, has certainly run.
    """

    train: torch.Tensor
    rollout: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor | None
    token_ids: torch.Tensor | None
    weights: torch.Tensor | None
    corrected: bool


def sides_of(batch: Any, mask: torch.Tensor | None = None) -> Sides | str:
    """Reads a batch.

    Args:
        batch: a ``DataProto``, a ``TensorDict`` or a dict of tensors.
        mask: ``(B, T)`` or nested ``response_mask`` as it was before verl's correction; None for the batch's own.

    Returns:
        The sides, or why there is nothing to compare.

    Raises:
        TypeError: if the batch is something else.
    """
    tensors = getattr(batch, "batch", batch)
    if not callable(getattr(tensors, "keys", None)):
        msg = f"got a batch of type {type(batch).__name__}; expected a DataProto, a TensorDict or a dict of tensors"
        raise TypeError(msg)
    keys = set(tensors.keys())
    if absent := [name for name in (OLD, ROLLOUT, MASK) if name not in keys]:
        return f"verl's batch has no {', '.join(absent)}. Is actor_rollout_ref.rollout.calculate_log_probs on?"
    if tensors[OLD] is tensors[ROLLOUT]:
        return "verl's old_log_probs are the rollout's own, as in bypass mode: every ratio is 1"
    left = tensors[MASK]
    named = {
        "train_logps": tensors[OLD],
        "rollout_logps": tensors[ROLLOUT],
        "mask": left if mask is None else mask,
        "left": left,
    }
    more = {name: tensors[key] for name, key in _MORE.items() if key in keys}
    train, rollout, given, left, *rest = _rows(named | {name: more.get(name) for name in _MORE})
    advantages, token_ids, weights = (it if it is not None and it.shape == train.shape else None for it in rest)
    return Sides(
        train=train,
        rollout=rollout,
        mask=given,
        advantages=None if advantages is None else _of_rows(advantages, left, given),
        token_ids=token_ids,
        weights=weights,
        corrected=bool({ADVANTAGES, WEIGHTS} & keys),
    )


_MORE = {"advantages": ADVANTAGES, "token_ids": TOKENS, "weights": WEIGHTS}


def _rows(named: dict[str, Any]) -> tuple[Any, ...]:
    """The tensors as ``(B, T)``; optional ones that are laid out otherwise are left out."""
    nested = named["train_logps"].is_nested
    alike = {
        name: None if name in _MORE and value is not None and value.is_nested != nested else value
        for name, value in named.items()
    }
    return tuple(padded(None, **alike))


def _of_rows(advantages: torch.Tensor, left: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
    """``(B,)`` of ``(B, T)`` advantages that are one number a row; None if they are not, or a row's is not known.

    verl holds batches on the CPU, where looking costs nothing; on an accelerator it would wait, and is left.
    """
    if advantages.device.type != "cpu" or not advantages.numel() or left.shape != advantages.shape:
        return None
    inside = left != 0
    highest = torch.where(inside, advantages, -torch.inf).amax(dim=-1)
    lowest = torch.where(inside, advantages, torch.inf).amin(dim=-1)
    known = (lowest == highest) | ~(mask != 0).any(dim=-1)
    return torch.where(inside.any(dim=-1), highest, 0.0) if bool(known.all()) else None
