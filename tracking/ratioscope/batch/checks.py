"""Checks of a batch's shapes and types."""

from __future__ import annotations

import torch


def check_batch(
    train_logps: torch.Tensor,
    rollout_logps: torch.Tensor,
    mask: torch.Tensor,
    *,
    advantages: torch.Tensor | None = None,
    token_ids: torch.Tensor | None = None,
) -> None:
    """Raises on anything that would have to be broadcast, guessed or silently cast.

    Raises:
        ValueError: if a shape is wrong.
        TypeError: if an argument is not a tensor or the log-probabilities are not floating-point.
    """
    for name, logps in (("train_logps", train_logps), ("rollout_logps", rollout_logps)):
        _check_logps(name, logps)
    if train_logps.dim() != 2:
        msg = f"got train_logps of shape {tuple(train_logps.shape)}; expected (B, T): one log-probability for each "
        msg += "sampled token. Select the sampled token by its id first."
        raise ValueError(msg)
    expected = tuple(train_logps.shape)
    others = {"rollout_logps": rollout_logps, "mask": mask} | ({} if token_ids is None else {"token_ids": token_ids})
    for name, tensor in others.items():
        if not isinstance(tensor, torch.Tensor):
            msg = f"got {name} of type {type(tensor).__name__}; expected a tensor of shape {expected}"
            raise TypeError(msg)
        if tuple(tensor.shape) != expected:
            msg = f"got {name} of shape {tuple(tensor.shape)}; expected {expected}, the shape of train_logps. "
            msg += "Nothing is broadcast: expand or slice it to that shape."
            raise ValueError(msg)
    if advantages is not None and tuple(advantages.shape) != expected[:1]:
        msg = f"got advantages of shape {tuple(advantages.shape)}; expected {expected[:1]}, one for each row"
        raise ValueError(msg)


def _check_logps(name: str, logps: torch.Tensor) -> None:
    if not isinstance(logps, torch.Tensor):
        msg = f"got {name} of type {type(logps).__name__}; expected a floating-point tensor of shape (B, T)"
        raise TypeError(msg)
    if not logps.dtype.is_floating_point:
        msg = f"got {name} of dtype {logps.dtype}; expected floating-point log-probabilities. "
        msg += "Were token ids passed in their place?"
        raise TypeError(msg)
