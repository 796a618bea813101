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
        _check_storage(name, tensor)
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
    if logps.dtype.itemsize < 2:
        msg = (
            f"got {name} of dtype {logps.dtype}; expected bfloat16, float16, float32 or float64. Convert with .float()."
        )
        raise TypeError(msg)
    _check_storage(name, logps)


def check_applied(applied: object) -> None:
    """Raises if the applied weights are no dense floating-point tensor.

    Raises:
        TypeError: if they are anything else.
    """
    if applied is None:
        return
    if not isinstance(applied, torch.Tensor) or not applied.dtype.is_floating_point:
        got = applied.dtype if isinstance(applied, torch.Tensor) else type(applied).__name__
        msg = f"got applied of type {got}; expected a floating-point tensor of the weights that the loss uses"
        raise TypeError(msg)
    _check_storage("applied", applied)


def _check_storage(name: str, tensor: torch.Tensor) -> None:
    """Raises on a tensor of another layout, such as a sparse one."""
    if tensor.layout is not torch.strided and not tensor.is_nested:
        msg = f"got {name} of layout {tensor.layout}; expected a dense tensor. Convert it with .to_dense()."
        raise TypeError(msg)
