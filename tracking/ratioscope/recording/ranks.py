"""Merging summaries over ranks: two collectives of fixed size and one copy to the host.

First every rank gathers what each has of maxima and of the tables of what is largest, which no reduction can merge,
and picks the largest itself. Then sums, brought to those maxima, and counts are added up.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ratioscope.state.rescale import rescale
from ratioscope.state.slots import MAXIMA, SUMS
from ratioscope.state.tables import TOP_SIZE, Top
from ratioscope.summary.host import HostSummary

if TYPE_CHECKING:
    from ratioscope.summary.summary import RatioSummary


def all_merge(
    summary: RatioSummary, *, group: dist.ProcessGroup | None = None, flag: bool = False
) -> tuple[HostSummary, bool]:
    """The summary of all ranks, on the host of every rank, and whether any of them raised its flag.

    Every rank of the group must call it, also one that has nothing: it passes an empty summary. What is sent depends
    neither on the data nor on the correction.

    Args:
        summary: this rank's.
        group: the process group; None for the default one. Without ``torch.distributed`` there is one rank.
        flag: what this rank has to say to all others beside; it travels with the maxima.
    """
    packed = summary.pack()
    said = packed.new_full((1,), float(flag))
    if world_size(group) > 1:
        device = _transport_device(packed.device, group)
        packed, said = packed.to(device), said.to(device)
        mine, rest, top = packed.split([len(MAXIMA), len(packed) - len(MAXIMA) - TOP_SIZE, TOP_SIZE])
        every = _gather(torch.cat([mine, said, Top.unpack(top).on_rank(dist.get_rank()).pack()]), group)
        maxima, said = every[:, : len(MAXIMA) + 1].amax(dim=0).split([len(MAXIMA), 1])
        largest = Top.largest(every[:, len(MAXIMA) + 1 :])
        rest = torch.cat([rescale(rest[: len(SUMS)], mine, maxima), rest[len(SUMS) :]])
        dist.all_reduce(rest, op=dist.ReduceOp.SUM, group=group)
        packed = torch.cat([maxima, rest, largest.pack()])
    host = torch.cat([packed, said]).cpu().numpy()
    return HostSummary.unpack(host[:-1], correction=summary.correction), bool(host[-1])


def _gather(mine: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """``(ranks, N)``: the ``(N,)`` of every rank, in the order of ranks."""
    every = mine.new_empty((world_size(group), len(mine)))
    dist.all_gather(list(every), mine, group=group)
    return every


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
