"""Sums of exponentials relative to a maximum, brought to another one."""

from __future__ import annotations

import torch

from ratioscope.slots import SHIFTED


def rescale(sums: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Sums of exponentials relative to ``old`` maxima, made relative to ``new`` ones; the other sums as they are.

    Args:
        sums: ``(..., len(SUMS))``, of one summary or of many.
        old: ``(..., len(MAXIMA))``.
        new: ``(..., len(MAXIMA))``.
    """
    scaled = sums.clone()
    for index in SHIFTED:
        reference, target = old[..., index.maximum], new[..., index.maximum]
        seen = reference > -torch.inf
        shift = torch.where(seen, reference - target, 0.0)
        factor = torch.where(seen, shift.exp(), 0.0)
        weight, weighted_log = sums[..., index.w], sums[..., index.wd]
        scaled[..., index.w] = weight * factor
        scaled[..., index.w2] = sums[..., index.w2] * factor.square()
        scaled[..., index.wd] = (weighted_log + shift * weight) * factor
    return scaled
