"""Log-probabilities of both engines, read from a generated batch or from a micro-batch of the loss.

A trainer's abilities are detected from its attributes and from the contents of its batches, never from its class or
version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ratioscope.batch.packing import Packing

if TYPE_CHECKING:
    from collections.abc import Mapping

OLD_LOGPS = "old_per_token_logps"
ROLLOUT_LOGPS = ("sampling_per_token_logps", "old_log_probs")
"""Names of the rollout's log-probabilities: in a generated batch, and in one whose rollouts come from a queue."""


@dataclass(frozen=True)
class TrlBatch:
    """One batch of a TRL trainer in the terms of :meth:`ratioscope.Recorder.observe`.

    Attributes:
        train_logps: ``(B, T)`` log-probabilities under the trainer, in nats; ``(N,)`` with a packing, as all others.
        rollout_logps: ``(B, T)`` log-probabilities under the engine that sampled.
        mask: ``(B, T)`` tokens that the policy sampled.
        advantages: ``(B,)``, or None where a completion has several.
        token_ids: ``(B, T)`` sampled tokens.
        applied: weights that the loss uses, if known.
        packing: layout of packed tensors.
        policy: policy that gave ``train_logps``: ``"old"``, before the step, or ``"current"``, in the loss.
    """

    train_logps: torch.Tensor
    rollout_logps: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor | None = None
    token_ids: torch.Tensor | None = None
    applied: torch.Tensor | None = None
    packing: Packing | None = None
    policy: str = "old"


def from_generated(
    batch: Mapping[str, Any], train_logps: torch.Tensor | None = None, *, policy: str = "old"
) -> TrlBatch | None:
    """Reads a generated batch; None if it lacks one of the two sides.

    Args:
        batch: the trainer's generated batch, or a micro-batch of it.
        train_logps: ``(B, T)`` log-probabilities under the trainer; None for those in the batch.
        policy: policy that gave the trainer's log-probabilities.
    """
    train_logps = batch.get(OLD_LOGPS) if train_logps is None else train_logps
    rollout_logps = batch.get(ROLLOUT_LOGPS[0])
    if train_logps is None or rollout_logps is None:
        return None
    mask, tool_mask, advantages = batch["completion_mask"], batch.get("tool_mask"), batch.get("advantages")
    return TrlBatch(
        train_logps=train_logps,
        rollout_logps=rollout_logps,
        mask=mask if tool_mask is None else mask * tool_mask,
        advantages=advantages if advantages is not None and advantages.dim() == 1 else None,
        token_ids=batch.get("completion_ids"),
        applied=batch.get("importance_sampling_ratio"),
        policy=policy,
    )


def completions_left_to_loss(batch: Mapping[str, Any]) -> int:
    """Counts completions of a generated batch that only the loss will score: the batch has the rollout's side alone."""
    rollout_logps = batch.get(ROLLOUT_LOGPS[0])
    return len(rollout_logps) if rollout_logps is not None and batch.get(OLD_LOGPS) is None else 0


def rollout_in_loss(inputs: Mapping[str, Any]) -> torch.Tensor | None:
    """Finds the rollout's log-probabilities among the inputs of a loss."""
    return next((inputs[name] for name in ROLLOUT_LOGPS if isinstance(inputs.get(name), torch.Tensor)), None)


def from_loss(inputs: Mapping[str, Any], rollout: torch.Tensor, scored: torch.Tensor) -> TrlBatch | None:
    """Reads a micro-batch of a loss; None if its layout is unknown.

    Args:
        inputs: the loss's inputs.
        rollout: ``(B, T)`` the rollout's log-probabilities among them.
        scored: log-probabilities that the loss computed.
    """
    if inputs.get(ROLLOUT_LOGPS[0]) is not None:
        return from_generated(inputs, scored, policy="current") if scored.shape == rollout.shape else None
    if {"token_index", "segment_id", "advantages", "shift_labels"} <= inputs.keys():
        return _from_packed(inputs, scored) if len(rollout) == 1 else None
    if {"completion_mask", "input_ids"} <= inputs.keys() and scored.dim() == 2 and len(scored) == len(rollout):
        columns = slice(1, scored.shape[1] + 1)  # prompt and completion, without the columns that only pad
        mask, ids = (inputs[name][:, columns] for name in ("completion_mask", "input_ids"))
        return TrlBatch(scored, rollout[:, columns], mask, inputs.get("advantages"), ids, policy="current")
    return None


def _from_packed(inputs: Mapping[str, Any], scored: torch.Tensor) -> TrlBatch:
    """Reads completions packed into one row, with an index from each of their tokens to the position predicting it."""
    token_index, segments, rollout, advantages = (
        inputs[name].flatten() for name in ("token_index", "segment_id", "old_log_probs", "advantages")
    )
    mask, positions = token_index >= 0, token_index.clamp(min=0)
    # Packing reads lengths, for which the host waits. The loss has just waited for numbers of its own.
    packing = Packing.of(segment_ids=segments.masked_fill(~mask, -1))
    by_completion = packing.pad("advantages", advantages)
    return TrlBatch(
        train_logps=scored.flatten()[positions],
        rollout_logps=rollout,
        mask=mask,
        advantages=by_completion[:, 0] if by_completion.shape[1] else None,
        token_ids=inputs["shift_labels"].flatten()[positions],
        packing=packing,
        policy="current",
    )
