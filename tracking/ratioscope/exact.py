"""Sums that do not depend on how a batch is laid out."""

from __future__ import annotations

import torch

FLOAT32_MAX = torch.finfo(torch.float32).max


def halves(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiples of 2**-20 and the rest, float64: each is summed exactly, so that order is immaterial."""
    coarse = (values * 2.0**20).round() * 2.0**-20
    return coarse, values - coarse


def row_sum(values: torch.Tensor) -> torch.Tensor:
    """Sum of each row, exact wherever the row's multiples of 2**-20 and the rest each are."""
    coarse, rest = halves(values)
    return coarse.sum(dim=-1) + rest.sum(dim=-1)
