"""The noise floor: how far the trainer is from itself where only the order of its arithmetic changes.

No engine could be nearer to the trainer than the trainer is to itself, so a mismatch is best read in multiples of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ratioscope.batch.observation import Logps, Observation
from ratioscope.summary.aside import aside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.correction.rule import Rule
    from ratioscope.summary.summary import RatioSummary


@torch.no_grad()
def noise_summary(
    train_logps_again: Logps,
    train_logps: Logps,
    mask: torch.Tensor | Sequence[Sequence[int]],
    *,
    correction: Rule | None = None,
) -> RatioSummary:
    """A summary that holds the noise of one batch and nothing else, made without a host sync.

    Args:
        train_logps_again: ``(B, T)`` log-probabilities under the trainer, computed once more in another order.
        train_logps: ``(B, T)`` the trainer's log-probabilities that the ratio is made of.
        mask: ``(B, T)`` bool or 0/1, the mask of the ratio.
        correction: the rule of the window that it is to be merged into.

    Raises:
        ValueError: if a shape is not exactly as stated.
        TypeError: if the log-probabilities are not floating-point.
    """
    observation = Observation.of(train_logps_again, train_logps, mask)
    valid, d = observation.valid, observation.log_ratio.double()
    if not d.numel():
        return aside(correction, d.device)
    abs_d = d.abs()
    return aside(
        correction,
        d.device,
        maxima={"noise/abs_max": torch.where(valid, abs_d, -torch.inf).max()},
        sums={"noise/d": d.sum(), "noise/abs_d": abs_d.sum(), "noise/d2": d.square().sum()},
        counts={"noise/n": valid.sum()},
    )
