"""Vectors of a summary's state from values by slot name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    Named = dict[str, torch.Tensor]


def stacked(
    names: tuple[str, ...], values: Named, default: float, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """One value for each name; the default where there is none."""
    filler = torch.full((), default, dtype=dtype, device=device)
    found = [values.get(name, filler) for name in names]
    return torch.stack([value if value.dtype == dtype else value.to(dtype) for value in found])


def joined(
    names: tuple[str, ...],
    values: Named,
    default: float,
    dtype: torch.dtype,
    device: torch.device,
    parts: Mapping[tuple[str, ...], torch.Tensor],
) -> torch.Tensor:
    """The same where runs of names are vectors already."""
    parted, at = [], 0
    for run, part in parts.items():
        start = names.index(run[0])
        if start > at:
            parted.append(stacked(names[at:start], values, default, dtype, device))
        parted.append(part)
        at = start + len(run)
    if at < len(names):
        parted.append(stacked(names[at:], values, default, dtype, device))
    return torch.cat(parted)
