"""The noise floor: how far the trainer is from itself where only the order of its arithmetic changes.

No engine could be nearer to the trainer than the trainer is to itself, so a mismatch is best read in multiples of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ratioscope.observation import Logps, Observation
from ratioscope.slots import COUNTS, MAXIMA, SUMS
from ratioscope.summary import RatioSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.correction import Correction


@torch.no_grad()
def noise_summary(
    train_logps_again: Logps,
    train_logps: Logps,
    mask: torch.Tensor | Sequence[Sequence[int]],
    *,
    correction: Correction | None = None,
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
    empty = RatioSummary.empty(correction, device=d.device)
    if not d.numel():
        return empty
    maxima, sums, counts = empty.maxima.clone(), empty.sums.clone(), empty.counts.clone()
    abs_d = d.abs()
    maxima[MAXIMA.index("noise/abs_max")] = torch.where(valid, abs_d, -torch.inf).max()
    for name, values in (("d", d), ("abs_d", abs_d), ("d2", d.square())):
        sums[SUMS.index(f"noise/{name}")] = values.sum()
    counts[COUNTS.index("noise/n")] = valid.sum()
    return replace(empty, maxima=maxima, sums=sums, counts=counts)
