"""Where in a row the log-ratio is what it is: sums by tenth of the row, by turn, and of the last token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ratioscope.state.slots import DECILES, PLACE_COUNTS, PLACE_SUMS, TURNS

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation


_LANES = 8


@dataclass(frozen=True)
class Positions:
    """Position of each valid token in its completion.

    Attributes:
        seen: int32 ``(B, T)``, number of valid tokens up to and including this column: a valid token's position plus 1.
        n: int32 ``(B, 1)``, valid tokens of the row.
        last: int64 ``(B, 1)``, column of the row's last valid token; meaningless in a row without one.
    """

    seen: torch.Tensor
    n: torch.Tensor
    last: torch.Tensor

    @classmethod
    def from_observation(cls, observation: Observation) -> Positions:
        """Counts along each row, which must have at least one column, without a host sync."""
        seen = observation.valid.cumsum(dim=-1, dtype=torch.int32).contiguous()
        n = seen[:, -1:].contiguous()
        return cls(seen=seen, n=n, last=torch.searchsorted(seen, n))


def place_sums(
    observation: Observation, places: Positions, d: torch.Tensor, abs_d: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of d and of its absolute value, and counts of valid tokens, by place; without a host sync.

    A token at position k of n is in tenth ``floor(10 k / n)``. A turn is a run of masked-in tokens: a hole in the mask,
    such as a tool's result, ends it. The last token is counted in its tenth and its turn, and once more by itself.

    Args:
        observation: the batch.
        places: its places.
        d: float64 ``(B, T)`` log-ratios, 0 where not valid.
        abs_d: their absolute values.

    Returns:
        float64 as ``slots.PLACE_SUMS`` and int64 as ``slots.PLACE_COUNTS``.
    """
    masked_in = observation.masked_in
    begins = masked_in & ~torch.nn.functional.pad(masked_in[:, :-1], (1, 0))
    turn = begins.cumsum(dim=-1, dtype=torch.int32).clamp(max=len(TURNS))
    tenth = torch.div(len(DECILES) * (places.seen - 1), places.n.clamp(min=1), rounding_mode="floor")
    # Before a row's first valid token this is too small, and what is added there is 0.
    cell = (turn * len(DECILES) + tenth).clamp(min=0)
    # Neighbours are mostly in one place; in lanes of their own their additions need not wait for each other.
    lane = torch.arange(cell.shape[-1], device=cell.device) % _LANES
    cell = torch.add(lane, cell, alpha=_LANES)
    parts = (d, abs_d, observation.valid.double())
    turns = 1 + len(TURNS)  # the first is what stands before any turn: nothing
    cells = d.new_zeros(len(parts), len(d), turns * len(DECILES) * _LANES)
    for row, part in zip(cells, parts, strict=True):
        row.scatter_add_(1, cell, part)
    by_turn = cells.sum(dim=1).view(len(parts), turns, len(DECILES), _LANES).sum(dim=-1)[:, 1:]
    last = torch.stack([part.gather(1, places.last) for part in parts]).sum(dim=1)
    places_of = torch.cat([by_turn.sum(dim=1), by_turn.sum(dim=2), last], dim=1)
    return places_of[:2].flatten(), places_of[2].to(torch.int64)


def no_place_sums(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of a batch without a token."""
    sums = torch.zeros(len(PLACE_SUMS), dtype=torch.float64, device=device)
    return sums, torch.zeros(len(PLACE_COUNTS), dtype=torch.int64, device=device)
