"""Merging summaries over ranks: three collectives of fixed size and one copy to the host.

Maxima, then sums relative to them, then the tables of what is largest, which no reduction can merge: every rank
gathers them.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ratioscope.shifted import rescale
from ratioscope.slots import MAXIMA, SUMS
from ratioscope.summary import RatioSummary
from ratioscope.top import TOP_SIZE, Top


def all_merge(
    summary: RatioSummary, *, group: dist.ProcessGroup | None = None, flag: bool = False
) -> tuple[RatioSummary, bool]:
    """The summary of all ranks, on the CPU of every rank, and whether any of them raised its flag.

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
        reduced = torch.cat([mine, said])
        dist.all_reduce(reduced, op=dist.ReduceOp.MAX, group=group)
        maxima, said = reduced[:-1], reduced[-1:]
        rest = torch.cat([rescale(rest[: len(SUMS)], mine, maxima), rest[len(SUMS) :]])
        dist.all_reduce(rest, op=dist.ReduceOp.SUM, group=group)
        packed = torch.cat([maxima, rest, _gather(Top.unpack(top), group).pack()])
    host = torch.cat([packed, said]).cpu()
    return RatioSummary.unpack(host[:-1], correction=summary.correction), bool(host[-1])


def _gather(top: Top, group: dist.ProcessGroup | None) -> Top:
    """The largest of all ranks, each marked with its rank in the world."""
    mine = top.on_rank(dist.get_rank()).pack()
    every = [torch.empty_like(mine) for _ in range(world_size(group))]
    dist.all_gather(every, mine, group=group)
    first, *others = map(Top.unpack, every)
    return first.merge(*others)


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
