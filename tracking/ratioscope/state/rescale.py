"""Sums of exponentials relative to a maximum, brought to another one."""

from __future__ import annotations

import torch

from ratioscope.state.slots import LEVELS, MAXIMA, SUMS


def rescale(sums: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Sums of exponentials relative to ``old`` maxima, made relative to ``new`` ones; the other sums as they are.

    Args:
        sums: ``(..., len(SUMS))``, of one summary or of many.
        old: ``(..., len(MAXIMA))``.
        new: ``(..., len(MAXIMA))``.
    """
    scaled = sums.clone()
    reference, target = (_of_levels(maxima, MAXIMA, "max") for maxima in (old, new))
    w, w2, wd = (_of_levels(sums, SUMS, name) for name in ("w", "w2", "wd"))
    seen = reference > -torch.inf
    shift = torch.where(seen, reference - target, 0.0)
    factor = torch.where(seen, shift.exp(), 0.0)
    _of_levels(scaled, SUMS, "w").copy_(w * factor)
    _of_levels(scaled, SUMS, "w2").copy_(w2 * factor.square())
    _of_levels(scaled, SUMS, "wd").copy_((wd + shift * w) * factor)
    return scaled


def _of_levels(values: torch.Tensor, names: tuple[str, ...], name: str) -> torch.Tensor:
    """A view of the slots that each level has under this name, which are evenly spaced."""
    first, last = (names.index(f"{level}/{name}") for level in LEVELS)
    return values[..., first : last + 1 : last - first]
