"""The correction step: from log-probabilities to weights, and to the mask that the loss divides by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ratioscope.batch.observation import Observation, check_batch, step_log_ratio
from ratioscope.batch.packing import padded
from ratioscope.correction.stage_pipeline import normalized, through

if TYPE_CHECKING:
    from ratioscope.batch.packing import Packing
    from ratioscope.correction.rule import Correction


@dataclass(frozen=True)
class Weighed:
    """What a loss needs after a correction.

    Attributes:
        weights: float32, detached: ``(B, T)``, or ``(B, 1)`` in the short form at the sequence level, or ``(N,)`` of a
            packed batch. 0 where dropped.
        mask: bool ``(B, T)`` or ``(N,)``, the mask without what was dropped: what the loss divides by.
    """

    weights: torch.Tensor
    mask: torch.Tensor


def correct(
    train_logps: torch.Tensor,
    rollout_logps: torch.Tensor,
    mask: torch.Tensor,
    *,
    correction: Correction,
    advantages: torch.Tensor | None = None,
    packing: Packing | None = None,
) -> torch.Tensor:
    """Importance weights of the rollout's tokens under the trainer's policy: the correction step itself.

    In the short form bit-identical to TRL's on the same tensors. In particular a token whose log-probability is NaN
    has a zero log-ratio, so its weight is that of a ratio of exactly 1.

    Args:
        train_logps: ``(B, T)`` log-probabilities of the sampled tokens under the trainer.
        rollout_logps: ``(B, T)`` the same under the engine that sampled them.
        mask: ``(B, T)`` bool or 0/1: completion tokens that the policy sampled (tool results excluded).
        correction: the rule.
        advantages: ``(B,)`` advantage of each row, for a rule that goes by it.
        packing: where the rows lie, for ``(N,)`` tensors.

    Returns:
        float32 weights, detached: ``(B, T)``, or ``(B, 1)`` in the short form at the sequence level; with a packing
        always ``(N,)``, one for each token, 1 outside of all rows. Where a rule drops tokens they are 0, and the loss
        must not divide by them: see :func:`weigh`.

    Raises:
        ValueError: if the shapes differ or are not two-dimensional, or a rule goes by the advantage and got none.
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
    correction: Correction,
    advantages: torch.Tensor | None = None,
    packing: Packing | None = None,
) -> Weighed:
    """The weights of :func:`correct`, with the mask that the loss then divides by.

    Args:
        train_logps: ``(B, T)`` log-probabilities of the sampled tokens under the trainer.
        rollout_logps: ``(B, T)`` the same under the engine that sampled them.
        mask: ``(B, T)`` bool or 0/1: completion tokens that the policy sampled (tool results excluded).
        correction: the rule.
        advantages: ``(B,)`` advantage of each row, for a rule that goes by it.
        packing: where the rows lie, for ``(N,)`` tensors.

    Raises:
        ValueError: if the shapes differ or are not two-dimensional, or a rule goes by the advantage and got none.
        TypeError: if the log-probabilities are not floating-point tensors.
    """
    if packing is not None:
        total = len(train_logps)
        train_logps, rollout_logps, mask = padded(
            packing, train_logps=train_logps, rollout_logps=rollout_logps, mask=mask
        )
        done = weigh(train_logps, rollout_logps, mask, correction=correction, advantages=advantages)
        return Weighed(packing.unpad(done.weights, total=total), packing.unpad(done.mask, total=total, outside=False))
    if correction.is_general:
        observation = Observation.of(train_logps, rollout_logps, mask, advantages=advantages)
        return weighed(observation, correction)
    check_batch(train_logps, rollout_logps, mask)
    log_ratio = step_log_ratio(train_logps.detach().float(), rollout_logps.detach().float(), mask)
    return Weighed(correction.apply(correction.raw_ratio(log_ratio)), mask.detach() != 0)


def weighed(observation: Observation, correction: Correction) -> Weighed:
    """The same of a rule of stages on a batch that was checked.

    A token without a usable log-probability stays in the mask, with the weight of a ratio of exactly 1.
    """
    passed = through(observation, correction)
    unscored = observation.masked_in & ~observation.valid
    return Weighed(normalized(passed, correction, observation.valid), passed.kept | unscored)
