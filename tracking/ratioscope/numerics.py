"""Sums whose bits do not depend on a batch's layout, and the limits of float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FLOAT32_MAX = 3.4028234663852886e38

OVERFLOW = 88.72283905206835
"""Natural logarithm of the largest float32; the trainer's own ratio is infinite above it."""


def halves(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Splits float64 values into multiples of 2**-20 and the rest: each part sums exactly, in any order."""
    coarse = (values * 2.0**20).round() * 2.0**-20
    return coarse, values - coarse


def row_sum(values: torch.Tensor) -> torch.Tensor:
    """Returns the sum of each row, exact wherever the row's multiples of 2**-20 and the rest each are."""
    coarse, rest = halves(values)
    return coarse.sum(dim=-1) + rest.sum(dim=-1)
