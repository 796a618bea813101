"""Correction step: from log-probabilities to weights, and to the mask that the loss divides by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from ratioscope.batch.observation import Observation

if TYPE_CHECKING:
    from ratioscope.batch.packing import Packing
    from ratioscope.correction.rule import CorrectedBatch, Rule


@dataclass(frozen=True)
class Weighed:
    """Weights and mask for a loss.

    Attributes:
        weights: float32, detached: ``(B, T)``, or ``(B, 1)`` under bounds at the sequence level, or ``(N,)`` of a
            packed batch. 0 where dropped.
        mask: bool ``(B, T)`` or ``(N,)``, the mask without dropped tokens, for the loss to divide by.
    """

    weights: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def from_batch(cls, corrected: CorrectedBatch, packing: Packing | None, *, total: int) -> Self:
        """Reads weights and mask off a corrected batch, packed again to ``(total,)`` if it was packed."""
        weights, mask = corrected.loss_weights, corrected.loss_mask
        if packing is None:
            return cls(weights, mask)
        return cls(packing.unpad(weights, total=total), packing.unpad(mask, total=total, outside=False))


def correct(
    train_logps: torch.Tensor,
    rollout_logps: torch.Tensor,
    mask: torch.Tensor,
    *,
    correction: Rule,
    advantages: torch.Tensor | None = None,
    packing: Packing | None = None,
) -> torch.Tensor:
    """Returns importance weights of the rollout's tokens under the trainer's policy.

    Under bounds bit-identical to TRL's on the same tensors. In particular a token whose log-probability is NaN
    has a zero log-ratio, so its weight is that of a ratio of exactly 1.

    Args:
        train_logps: ``(B, T)`` log-probabilities of the sampled tokens under the trainer.
        rollout_logps: ``(B, T)`` log-probabilities of these tokens under the engine that sampled them.
        mask: ``(B, T)`` bool or 0/1: completion tokens that the policy sampled (tool results excluded).
        correction: the rule.
        advantages: ``(B,)`` advantage of each row, for a rule that decides by it.
        packing: where the rows lie, for ``(N,)`` tensors.

    Returns:
        float32 weights, detached: ``(B, T)``, or ``(B, 1)`` under bounds at the sequence level; with a packing
        always ``(N,)``, one for each token, 1 outside of all rows. Where a rule drops tokens they are 0, and the loss
        must not divide by them: see :func:`weigh`.

    Raises:
        ValueError: if the shapes differ or are not two-dimensional, or a rule decides by the advantage and got none.
        TypeError: if the log-probabilities are not floating-point tensors.
    """
    return weigh(
        train_logps, rollout_logps, mask, correction=correction, advantages=advantages, packing=packing
    ).weights


@torch.no_grad()
def weigh(
    train_logps: torch.Tensor,
    rollout_logps: torch.Tensor,
    mask: torch.Tensor,
    *,
    correction: Rule,
    advantages: torch.Tensor | None = None,
    packing: Packing | None = None,
) -> Weighed:
    """Returns the weights of :func:`correct`, with the mask ``(B, T)`` or ``(N,)`` that the loss then divides by.

    Arguments and errors are those of :func:`correct`.
    """
    corrected = apply_rule(
        train_logps, rollout_logps, mask, correction=correction, advantages=advantages, packing=packing
    )
    return Weighed.from_batch(corrected, packing, total=len(train_logps))


def apply_rule(
    train_logps: torch.Tensor,
    rollout_logps: torch.Tensor,
    mask: torch.Tensor,
    *,
    correction: Rule,
    advantages: torch.Tensor | None = None,
    token_ids: torch.Tensor | None = None,
    packing: Packing | None = None,
) -> CorrectedBatch:
    """Checks a batch once and applies a rule to it: both weights for the loss and counts can be read off the result.

    Arguments are those of :func:`correct`, and ``(B, T)`` ids of the sampled tokens, to name the worst of them.

    Raises:
        ValueError: as :func:`correct` does.
        TypeError: if the log-probabilities or the mask are no tensors: lists have no place in a loss.
    """
    for name, values in (("train_logps", train_logps), ("rollout_logps", rollout_logps), ("mask", mask)):
        if not isinstance(values, torch.Tensor):
            kind = "a tensor" if name == "mask" else "a floating-point tensor"
            msg = f"got {name} of type {type(values).__name__}; expected {kind} of shape (B, T)"
            raise TypeError(msg)
    observation = Observation.of(
        train_logps, rollout_logps, mask, advantages=advantages, token_ids=token_ids, packing=packing
    )
    return correction.correct(observation)
