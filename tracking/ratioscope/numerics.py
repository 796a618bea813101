"""Sums that do not depend on how a batch is laid out."""

from __future__ import annotations

import torch

FLOAT32_MAX = torch.finfo(torch.float32).max

OVERFLOW = 88.72283905206835
"""Natural logarithm of the largest float32; the trainer's own ratio is infinite above it."""


def halves(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiples of 2**-20 and the rest, float64: each is summed exactly, so that order is immaterial."""
    coarse = (values * 2.0**20).round() * 2.0**-20
    return coarse, values - coarse


def dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sum of products, without a tensor of them; never -0, to which adding nothing would be a change."""
    return torch.dot(x.reshape(-1), y.reshape(-1)) + 0.0


def row_sum(values: torch.Tensor) -> torch.Tensor:
    """Sum of each row, exact wherever the row's multiples of 2**-20 and the rest each are."""
    coarse, rest = halves(values)
    return coarse.sum(dim=-1) + rest.sum(dim=-1)
