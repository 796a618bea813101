"""Log-ratio by position: sums per tenth of the completion, per turn, and for the last token."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from ratioscope.state.slots import DECILES, PLACE_COUNTS, PLACE_SUMS, TURNS

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation


_LANES = 8
_TENTHS = len(DECILES)
_TURNS = 2 + len(TURNS)
"""Turns that cells are made for: one for tokens before a completion's first valid one, then turn 0, in front of the
first."""


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
        seen = observation.valid.cumsum(dim=-1, dtype=torch.int32)
        n, last = seen.max(dim=-1, keepdim=True)  # the first column with the largest number
        return cls(seen=seen, position=seen - 1, n=n, last=last)


POSITION_NAMES = PLACE_COUNTS + PLACE_SUMS
"""Slots of :func:`position_sums`."""


def position_sums(observation: Observation, positions: Positions, terms: torch.Tensor) -> torch.Tensor:
    """Sums the log-ratio and its absolute value, and counts valid tokens, by position; without a host sync.

    A token at position k of n is in tenth ``floor(10 k / n)``. A turn is a run of masked-in tokens: a gap in the mask,
    such as a tool's result, ends it. The last token counts in its tenth, in its turn, and once more by itself.

    Args:
        observation: a batch of at least one column.
        positions: positions of its tokens.
        terms: float64 ``(3, B, T)``: 1, absolute log-ratio and log-ratio; each 0 where a token is not valid.

    Returns:
        float64, one for each of :data:`POSITION_NAMES`.
    """
    masked_in = observation.masked_in
    begins = masked_in > torch.nn.functional.pad(masked_in, (1, -1))  # and the one before is not
    turn = begins.cumsum(dim=-1, dtype=torch.int32).clamp_(max=len(TURNS))
    tenth = torch.rsub(positions.seen, -_TENTHS, alpha=-_TENTHS)  # ten times the position, which is seen - 1
    tenth.div_(positions.n.clamp(min=1), rounding_mode="floor")
    lanes = _lanes(masked_in.shape[-1], masked_in.device)
    cell = torch.add(lanes, turn, alpha=_TENTHS * _LANES).add_(tenth, alpha=_LANES)
    cells = terms.new_zeros(3, len(cell), _TURNS * _TENTHS * _LANES)
    cells.scatter_add_(2, cell.expand(3, -1, -1), terms)
    by_place = cells.sum(dim=1) @ _cells_to_places(cells.device)
    last = terms.gather(2, positions.last.expand(3, -1, -1)).sum(dim=1)
    return torch.cat([by_place, last], dim=1).flatten()


@lru_cache(maxsize=64)
def _lanes(width: int, device: torch.device) -> torch.Tensor:
    """Int64 ``(width,)``, what a column adds to its tokens' cells: the lane, and a turn of its own in front.

    Neighbours mostly share a cell. An addition waits for the one before it in the same place, so that neighbours add to
    lanes of their own, which are summed afterwards. Before the first valid token the tenth is below 0, at least -10.
    """
    return torch.arange(width, device=device) % _LANES + _TENTHS * _LANES


@lru_cache(maxsize=64)
def _cells_to_places(device: torch.device) -> torch.Tensor:
    """Float64 ``(cells, places)``: 1 where a cell belongs to a tenth or a turn. Terms before the first turn are 0."""
    cell = torch.arange(_TURNS * _TENTHS * _LANES, device=device).unsqueeze(-1) // _LANES
    tenths = cell % _TENTHS == torch.arange(_TENTHS, device=device)
    turns = cell // _TENTHS == torch.arange(2, _TURNS, device=device)
    return torch.cat([tenths & (cell >= 2 * _TENTHS), turns], dim=1).double()
