"""Merging summaries over ranks: two collectives of fixed size and one copy to the host."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ratioscope.slots import MAXIMA, SUMS
from ratioscope.summary import RatioSummary, rescale


def all_merge(summary: RatioSummary, *, group: dist.ProcessGroup | None = None) -> RatioSummary:
    """The summary of all ranks, on the CPU of every rank.

    Every rank of the group must call it, also one that has nothing: it passes an empty summary. What is sent depends
    neither on the data nor on the correction.

    Args:
        summary: this rank's.
        group: the process group; None for the default one. Without ``torch.distributed`` there is one rank.
    """
    packed = summary.pack()
    if world_size(group) > 1:
        packed = packed.to(_transport_device(packed.device, group))
        mine, rest = packed[: len(MAXIMA)], packed[len(MAXIMA) :].clone()
        maxima = mine.clone()
        dist.all_reduce(maxima, op=dist.ReduceOp.MAX, group=group)
        rest[: len(SUMS)] = rescale(rest[: len(SUMS)], mine, maxima)
        dist.all_reduce(rest, op=dist.ReduceOp.SUM, group=group)
        packed = torch.cat([maxima, rest])
    return RatioSummary.unpack(packed.cpu(), correction=summary.correction)


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Number of ranks, 1 without ``torch.distributed``."""
    return dist.get_world_size(group) if _initialized() else 1


def is_main_rank() -> bool:
    """True on the world's rank 0, which alone may touch a tracker."""
    return dist.get_rank() == 0 if _initialized() else int(os.environ.get("RANK", "0")) == 0


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _transport_device(device: torch.device, group: dist.ProcessGroup | None) -> torch.device:
    """Where the group can reduce: a rank that observed nothing holds its empty summary on the CPU."""
    backend = str(dist.get_backend(group))
    if "gloo" in backend or "mpi" in backend:
        return torch.device("cpu")
    return device if device.type != "cpu" else torch.device(torch.accelerator.current_accelerator() or "cuda")
