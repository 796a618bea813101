"""Constant tensors, made once for each device: an operation on a GPU is a launch, and so is making a constant."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype, dims: int = 1) -> torch.Tensor:
    """Returns a vector on a device; never write to it, as all callers share it.

    Args:
        values: the N entries.
        device: where the tensor is.
        dtype: type of its entries.
        dims: number of dimensions; the shape is ``(N, 1, ...)``, so that it broadcasts over a stack of columns.
    """
    import torch  # slow to import, and reading a journal needs none of it

    # Without waiting for the device, which must not happen while a batch is observed.
    vector = torch.tensor(values, dtype=dtype, device="cpu").to(device, non_blocking=True)
    return vector.view(-1, *[1] * (dims - 1))
