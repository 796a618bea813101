"""Where in a row the log-ratio is what it is: sums by tenth of the row, by turn, and of the last token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ratioscope.slots import DECILES, PLACE_COUNTS, PLACE_SUMS, TURNS

if TYPE_CHECKING:
    from ratioscope.observation import Observation


@dataclass(frozen=True)
class Places:
    """Where each valid token stands in its row.

    Attributes:
        position: int64 ``(B, T)``, the token's index among the row's valid tokens; meaningless where not valid.
        n: int64 ``(B, 1)``, valid tokens of the row.
        last: int64 ``(B, 1)``, column of the row's last valid token; meaningless in a row without one.
    """

    position: torch.Tensor
    n: torch.Tensor
    last: torch.Tensor

    @classmethod
    def of(cls, observation: Observation) -> Places:
        """Counts along each row, which must have at least one column, without a host sync."""
        seen = observation.valid.cumsum(dim=-1).contiguous()
        n = seen[:, -1:].contiguous()
        return cls(position=seen - 1, n=n, last=torch.searchsorted(seen, n))


def place_sums(observation: Observation, places: Places, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of d and of its absolute value, and counts of valid tokens, by place; without a host sync.

    A token at position k of n is in tenth ``floor(10 k / n)``. A turn is a run of masked-in tokens: a hole in the mask,
    such as a tool's result, ends it. The last token is counted in its tenth and its turn, and once more by itself.

    Args:
        observation: the batch.
        places: its places.
        d: float64 ``(B, T)`` log-ratios, 0 where not valid.

    Returns:
        float64 as ``slots.PLACE_SUMS`` and int64 as ``slots.PLACE_COUNTS``.
    """
    masked_in = observation.masked_in
    begins = masked_in & ~torch.nn.functional.pad(masked_in[:, :-1], (1, 0))
    turn = begins.cumsum(dim=-1).clamp(1, len(TURNS)) - 1
    tenth = 10 * places.position.clamp(min=0) // places.n.clamp(min=1)
    cell = turn * len(DECILES) + tenth
    cells = len(TURNS) * len(DECILES)
    rows = len(d)

    def summed(values: torch.Tensor) -> torch.Tensor:
        by_row = torch.zeros(rows, cells, dtype=values.dtype, device=values.device)
        table = by_row.scatter_add_(1, cell, values).sum(dim=0).view(len(TURNS), len(DECILES))
        last = values.gather(1, places.last).sum(dim=0)
        return torch.cat([table.sum(dim=0), table.sum(dim=1), last])

    return torch.cat([summed(d), summed(d.abs())]), summed(observation.valid.to(torch.int64))


def no_place_sums(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of a batch without a token."""
    sums = torch.zeros(len(PLACE_SUMS), dtype=torch.float64, device=device)
    return sums, torch.zeros(len(PLACE_COUNTS), dtype=torch.int64, device=device)
