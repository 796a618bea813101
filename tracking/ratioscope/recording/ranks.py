"""Merges summaries over ranks: two collectives of fixed size and one copy to the host.

The first gathers from every rank its maxima and its tables of largest values, which no reduction can merge; each rank
picks the largest itself. The second adds up the counts, and the sums after they were rescaled to the common maxima.
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
    """Returns the summary of all ranks, on the host of every rank, and the OR of all flags.

    Every rank of the group must call it; a rank without data passes an empty summary. The size of the messages depends
    neither on the data nor on the correction.

    Args:
        summary: this rank's.
        group: the process group; None for the default one. Without ``torch.distributed`` there is one rank.
        flag: a boolean that is OR-reduced over ranks in the same collective.
    """
    packed = summary.pack()
    any_flag = packed.new_full((1,), float(flag))
    if world_size(group) > 1:
        device = _transport_device(packed.device, group)
        packed, any_flag = packed.to(device), any_flag.to(device)
        own_maxima, rest, top = packed.split([len(MAXIMA), len(packed) - len(MAXIMA) - TOP_SIZE, TOP_SIZE])
        all_ranks = _gather(torch.cat([own_maxima, any_flag, Top.unpack(top).on_rank(dist.get_rank()).pack()]), group)
        # The flag is 0 or 1, so its maximum over ranks is the OR.
        maxima, any_flag = all_ranks[:, : len(MAXIMA) + 1].amax(dim=0).split([len(MAXIMA), 1])
        largest = Top.largest(all_ranks[:, len(MAXIMA) + 1 :])
        # Sums of exponentials are relative to their rank's maximum; only relative to one maximum do they add up.
        rest = torch.cat([rescale(rest[: len(SUMS)], own_maxima, maxima), rest[len(SUMS) :]])
        dist.all_reduce(rest, op=dist.ReduceOp.SUM, group=group)
        packed = torch.cat([maxima, rest, largest.pack()])
    host = torch.cat([packed, any_flag]).cpu().numpy()
    return HostSummary.unpack(host[:-1], correction=summary.correction), bool(host[-1])


def _gather(own: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Gathers an ``(N,)`` vector of every rank into ``(ranks, N)``, in the order of ranks."""
    all_ranks = own.new_empty((world_size(group), len(own)))
    dist.all_gather(list(all_ranks), own, group=group)
    return all_ranks


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Returns the number of ranks, 1 without ``torch.distributed``."""
    return dist.get_world_size(group) if _initialized() else 1


def is_main_rank() -> bool:
    """True on rank 0 of the world, the only one that may use a tracker."""
    return dist.get_rank() == 0 if _initialized() else int(os.environ.get("RANK", "0")) == 0


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _transport_device(device: torch.device, group: dist.ProcessGroup | None) -> torch.device:
    """Returns a device on which the group can reduce; a rank without data holds its empty summary on the CPU."""
    backend = str(dist.get_backend(group))
    if "gloo" in backend or "mpi" in backend:
        return torch.device("cpu")
    return device if device.type != "cpu" else torch.device(torch.accelerator.current_accelerator() or "cuda")
