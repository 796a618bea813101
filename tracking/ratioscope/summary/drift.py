"""Drift: how far the trainer's policy has moved since it scored a batch, or generated it.

The ratio of the correction is old - rollout: the same weights in two engines. The loss's own ratio is current - old:
two sets of weights in one engine. This is the latter, kept apart so that neither is taken for the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ratioscope.batch.observation import Logps, Mask, Observation
from ratioscope.summary.aside import aside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.batch.packing import Packing
    from ratioscope.correction.rule import Rule
    from ratioscope.summary.summary import RatioSummary


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
    """A summary that holds the drift of one batch and nothing else, made without a host sync.

    Args:
        current_logps: ``(B, T)`` log-probabilities under the policy as the loss has it.
        old_logps: ``(B, T)`` the same under the policy as it was.
        mask: ``(B, T)`` bool or 0/1, the mask of the loss.
        epsilon: how far below and above 1 the loss clips the ratio, a pair; None where it does not.
        packing: where the rows lie, for ``(N,)`` tensors.
        correction: the rule of the window that it is to be merged into.

    Raises:
        ValueError: if a shape is not exactly as stated, or epsilon is no pair of numbers from 0 on.
        TypeError: if the log-probabilities are not floating-point.
    """
    bounds = _bounds(epsilon)
    observation = Observation.of(current_logps, old_logps, mask, packing=packing)
    valid, d = observation.valid, observation.log_ratio.double()
    if not d.numel():
        return aside(correction, d.device)
    counts = {"drift/n": valid.sum()}
    if bounds is not None:
        ratio = observation.log_ratio.exp()  # float32, as the loss has it: what equals a bound is inside
        outside = valid & ((ratio < bounds[0]) | (ratio > bounds[1]))
        counts |= {"drift/clippable": counts["drift/n"], "drift/outside": outside.sum()}
    sides = (("max", d), ("-min", -d))
    return aside(
        correction,
        d.device,
        maxima={f"drift/{side}": torch.where(valid, values, -torch.inf).max() for side, values in sides},
        sums={"drift/d": d.sum(), "drift/abs_d": d.abs().sum(), "drift/k3": (d.expm1() - d).sum()},
        counts=counts,
    )


def _bounds(epsilon: Sequence[float] | None) -> tuple[float, float] | None:
    """The smallest and the largest ratio inside of the clip range."""
    if epsilon is None:
        return None
    if isinstance(epsilon, int | float) or len(epsilon) != 2 or not all(side >= 0 for side in epsilon):
        msg = f"got epsilon={epsilon!r}; expected None or a pair (low, high) of numbers from 0 on, such as (0.2, 0.28)"
        raise ValueError(msg)
    return 1.0 - epsilon[0], 1.0 + epsilon[1]
