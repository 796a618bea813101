"""Log-ratio by position: sums per tenth of the completion, per turn, and for the last token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ratioscope.state.slots import DECILES, TURNS

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation


_LANES = 8


class Positions(NamedTuple):
    """Position of each valid token in its completion.

    Attributes:
        seen: int32 ``(B, T)``, number of valid tokens up to this column, itself included.
        position: int32 ``(B, T)``, index of a valid token among those of its completion; meaningless where not valid.
        n: int32 ``(B, 1)``, valid tokens of the completion.
        last: int64 ``(B, 1)``, column of the last valid token; meaningless in a completion without one.
    """

    seen: torch.Tensor
    position: torch.Tensor
    n: torch.Tensor
    last: torch.Tensor

    @classmethod
    def from_observation(cls, observation: Observation) -> Positions:
        """Counts valid tokens along each completion of a batch with at least one column, without a host sync."""
        seen = observation.valid.cumsum(dim=-1, dtype=torch.int32).contiguous()
        n = seen[:, -1:].contiguous()
        return cls(seen=seen, position=seen - 1, n=n, last=torch.searchsorted(seen, n))


class PositionSums(NamedTuple):
    """Sums by position.

    Attributes:
        sums: float64, one for each of ``slots.PLACE_SUMS``.
        counts: int64, one for each of ``slots.PLACE_COUNTS``.
    """

    sums: torch.Tensor
    counts: torch.Tensor


def position_sums(observation: Observation, positions: Positions, terms: torch.Tensor) -> PositionSums:
    """Sums the log-ratio and its absolute value, and counts valid tokens, by position; without a host sync.

    A token at position k of n is in tenth ``floor(10 k / n)``. A turn is a run of masked-in tokens: a gap in the mask,
    such as a tool's result, ends it. The last token counts in its tenth, in its turn, and once more by itself.

    Args:
        observation: a batch of at least one column.
        positions: positions of its tokens.
        terms: float64 ``(3, B, T)``: 1, absolute log-ratio and log-ratio; each 0 where a token is not valid.
    """
    masked_in = observation.masked_in
    begins = masked_in & ~torch.nn.functional.pad(masked_in[:, :-1], (1, 0))
    turn = begins.cumsum(dim=-1, dtype=torch.int32).clamp(max=len(TURNS))
    tenth = (positions.position * len(DECILES)).div_(positions.n.clamp(min=1), rounding_mode="floor")
    # Below 0 before the first valid token of a completion, where all terms are 0.
    cell = torch.add(tenth, turn, alpha=len(DECILES)).clamp_(min=0)
    # Neighbours mostly share a cell. An addition waits for the one before it in the same place, so that neighbours add
    # to places of their own, which are summed afterwards.
    lane = torch.arange(cell.shape[-1], device=cell.device) % _LANES
    cell = torch.add(lane, cell, alpha=_LANES)
    turns = 1 + len(TURNS)  # turn 0 is in front of the first: its terms are 0
    cells = terms.new_zeros(3, len(cell), turns * len(DECILES) * _LANES)
    cells.scatter_add_(2, cell.expand(3, -1, -1), terms)
    by_turn = cells.sum(dim=1).view(3, turns, len(DECILES), _LANES).sum(dim=-1)[:, 1:]
    last = terms.gather(2, positions.last.expand(3, -1, -1)).sum(dim=1)
    sums = torch.cat([by_turn.sum(dim=1), by_turn.sum(dim=2), last], dim=1)
    return PositionSums(sums=sums[1:].flatten(), counts=sums[0].to(torch.int64))
