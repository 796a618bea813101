"""Noise floor and drift: two further comparisons of log-probabilities, as summaries to be merged into a window.

The ratio of the correction compares trainer and engine: the same weights in two programs. The noise floor compares the
trainer with itself where only the order of its arithmetic changes. No engine can be nearer to the trainer than that, so
a mismatch is best read in multiples of it. Drift compares the policy as the loss has it with the policy as it was: two
sets of weights in one program. It is kept apart from the correction's ratio so that neither is taken for the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ratioscope.batch.observation import Logps, Mask, Observation
from ratioscope.state.slots import COUNTS, MAXIMA, SUMS
from ratioscope.summary.level_sums import extremes
from ratioscope.summary.summary import RatioSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.batch.packing import Packing
    from ratioscope.correction.rule import Rule


@torch.no_grad()
def noise_summary(
    train_logps_again: Logps,
    train_logps: Logps,
    mask: torch.Tensor | Sequence[Sequence[int]],
    *,
    correction: Rule | None = None,
) -> RatioSummary:
    """Summarises the noise floor of one batch, without a host sync.

    Args:
        train_logps_again: ``(B, T)`` log-probabilities under the trainer, computed once more in another order.
        train_logps: ``(B, T)`` the trainer's log-probabilities that the ratio is made of.
        mask: ``(B, T)`` bool or 0/1, the mask of the ratio.
        correction: the rule of the window that the summary is to be merged into.

    Raises:
        ValueError: if a shape is not exactly as stated.
        TypeError: if the log-probabilities are not floating-point.
    """
    observation = Observation.of(train_logps_again, train_logps, mask)
    d = observation.log_ratio.double()
    summary = RatioSummary.empty(correction, device=d.device)
    if not d.numel():
        return summary
    abs_d = d.abs()
    return _filled(
        summary,
        "noise/",
        maxima=extremes(abs_d.unsqueeze(0), observation.invalid),
        sums=torch.stack([d.sum(), abs_d.sum(), d.square().sum()]),
        counts=observation.valid.sum().unsqueeze(0),
    )


@torch.no_grad()
def drift_summary(
    current_logps: Logps,
    old_logps: Logps,
    mask: Mask,
    *,
    epsilon: Sequence[float] | None = None,
    packing: Packing | None = None,
    correction: Rule | None = None,
) -> RatioSummary:
    """Summarises the drift of one batch, without a host sync.

    Args:
        current_logps: ``(B, T)`` log-probabilities under the policy as the loss has it.
        old_logps: ``(B, T)`` the same under the policy as it was.
        mask: ``(B, T)`` bool or 0/1, the mask of the loss.
        epsilon: how far below and above 1 the loss clips the ratio, a pair; None where it does not.
        packing: layout of the completions, for ``(N,)`` tensors.
        correction: the rule of the window that the summary is to be merged into.

    Raises:
        ValueError: if a shape is not exactly as stated, or epsilon is no pair of numbers from 0 on.
        TypeError: if the log-probabilities are not floating-point.
    """
    bounds = _bounds(epsilon)
    observation = Observation.of(current_logps, old_logps, mask, packing=packing)
    valid, d = observation.valid, observation.log_ratio.double()
    summary = RatioSummary.empty(correction, device=d.device)
    if not d.numel():
        return summary
    n = valid.sum()
    counts = [n]
    if bounds is not None:
        ratio = observation.log_ratio.exp()  # float32, as in the loss: a ratio that equals a bound is inside
        outside = valid & ((ratio < bounds[0]) | (ratio > bounds[1]))
        counts += [n, outside.sum()]
    return _filled(
        summary,
        "drift/",
        maxima=extremes(torch.stack([d, -d]), observation.invalid),
        sums=torch.stack([d.sum(), d.abs().sum(), (d.expm1() - d).sum()]),
        counts=torch.stack(counts),
    )


def _filled(
    summary: RatioSummary, prefix: str, *, maxima: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor
) -> RatioSummary:
    """Fills the slots from the first one with this prefix on."""
    parts = ((MAXIMA, summary.maxima, maxima), (SUMS, summary.sums, sums), (COUNTS, summary.counts, counts))
    for names, state, values in parts:
        first = next(index for index, name in enumerate(names) if name.startswith(prefix))
        state[first : first + len(values)] = values
    return summary


def _bounds(epsilon: Sequence[float] | None) -> tuple[float, float] | None:
    """The smallest and the largest ratio that the loss does not clip."""
    if epsilon is None:
        return None
    if isinstance(epsilon, int | float) or len(epsilon) != 2 or not all(side >= 0 for side in epsilon):
        msg = f"got epsilon={epsilon!r}; expected None or a pair (low, high) of numbers from 0 on, such as (0.2, 0.28)"
        raise ValueError(msg)
    return 1.0 - epsilon[0], 1.0 + epsilon[1]
