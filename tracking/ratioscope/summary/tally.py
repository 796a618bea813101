"""What has been reduced so far, by slot name, and the reductions that tokens and rows share."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ratioscope.numerics import dot

OVERFLOW = 88.72283905206835
"""Natural logarithm of the largest float32; the trainer's own ratio is infinite above it."""

BANDS = ((0.9, 1.1), (0.5, 2.0))
"""Ratios outside of these are counted, strictly and in float32: what is near 1, and what is not far from it."""

Named = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Tally:
    """0-d tensors by slot name; what is never set is zero, or minus infinity for a maximum."""

    maxima: Named = field(default_factory=dict)
    sums: Named = field(default_factory=dict)
    counts: Named = field(default_factory=dict)

    def extremes(self, name: str, values: torch.Tensor, valid: torch.Tensor) -> None:
        """Those of the valid values, which are all finite where they are not valid."""
        if not values.numel():
            return
        beyond = 1.0 - valid.to(values.dtype).reciprocal()  # 0, or minus infinity where not valid
        self.maxima[f"{name}/max"] = (values + beyond).max().double()
        self.maxima[f"{name}/-min"] = -(values - beyond).min().double()

    def level(self, level: str, d: torch.Tensor, abs_d: torch.Tensor, inside: torch.Tensor) -> None:
        """What tokens and rows share, but extremes, which come first; ``inside`` is 1 where valid, else 0."""
        if not d.numel():
            return
        relative = (d - self.maxima[f"{level}/max"]).clamp(max=0.0)  # above 0 only where not valid
        weight = relative.exp() * inside
        excess = d.expm1()
        self.sums.update(
            {
                f"{level}/d": d.sum(),
                f"{level}/abs_d": abs_d.sum(),
                f"{level}/d2": dot(d, d),
                f"{level}/k3": (excess - d).sum(),
                f"{level}/excess": excess.sum(),
                f"{level}/excess2": dot(excess, excess),
                f"{level}/w": weight.sum(),
                f"{level}/w2": dot(weight, weight),
                f"{level}/wd": dot(weight, relative),
            }
        )
        self.counts[f"{level}/overflow"] = (d > OVERFLOW).sum()


def largest(values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Largest valid value, minus infinity if there is none."""
    if values.numel() == 0:
        return torch.full((), -torch.inf, dtype=values.dtype, device=values.device)
    return torch.where(valid, values, -torch.inf).max()
