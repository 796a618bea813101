"""Process groups of many simulated ranks: every other rank holds the same data as the caller."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch.distributed as dist

from ratioscope.recording.ranks import all_merge

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ratioscope.summary.host import HostSummary
    from ratioscope.summary.summary import RatioSummary


class Group:
    """Replaces the collectives of one rank.

    Args:
        ranks: number of simulated ranks.

    Attributes:
        collectives: number of collectives in the last merge.
        sent: bytes that the rank sent in them.
        received: bytes that the rank received.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.collectives = self.sent = self.received = 0

    def merge(self, summary: RatioSummary) -> HostSummary:
        """Merges a summary over the ranks."""
        self.collectives = self.sent = self.received = 0
        answers: dict[str, Callable[..., Any]] = {
            "is_initialized": lambda: True,
            "get_world_size": lambda *_, **__: self._ranks,
            "get_rank": lambda *_, **__: 0,
            "get_backend": lambda *_, **__: "gloo",
            "all_reduce": self._all_reduce,
            "all_gather": self._all_gather,
            "all_gather_into_tensor": self._all_gather_into_tensor,
        }
        with ExitStack() as stack:
            for name, answer in answers.items():
                stack.enter_context(mock.patch.object(dist, name, answer))
            return all_merge(summary)[0]

    def _count(self, sent: torch.Tensor, times: int) -> None:
        size = sent.numel() * sent.element_size()
        self.collectives += 1
        self.sent += size
        self.received += size * times

    def _all_reduce(self, tensor: torch.Tensor, **_: Any) -> None:
        self._count(tensor, 1)

    def _all_gather(self, parts: list[torch.Tensor], tensor: torch.Tensor, **_: Any) -> None:
        self._count(tensor, len(parts))
        for part in parts:
            part.copy_(tensor)

    def _all_gather_into_tensor(self, parts: torch.Tensor, tensor: torch.Tensor, **_: Any) -> None:
        self._count(tensor, parts.numel() // tensor.numel())
        parts.view(-1, *tensor.shape).copy_(tensor)
