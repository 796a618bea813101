"""Mergeable tables of fixed size: largest log-ratios of completions, worst tokens and worst completions.

A table holds the first rows by a total order, so merging is associative and commutative, and independent of how
completions were batched or padded. The order is descending by

1. the absolute value as float32, compared by its bits;
2. among equals, a 32-bit integer: the upper 32 of the 52 bits of the completion's number (the column
   ``fingerprint``) minus 2**31, plus the position times :data:`ratioscope.state.slots.SPREAD`, wrapped to int32.

Many tokens tie in low precision. Step 2 takes those that are kept from all completions and positions alike, while
an order by the number and then by the position would take them from a single completion. The log-ratios of completions
are ordered by value alone: equal ones are interchangeable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ratioscope.state.slots import N_LOG_RATIOS, N_ROWS, N_TOKENS, SPREAD
from ratioscope.state.worst import KEYED, ROW_COLUMNS, TOKEN_COLUMNS

_SIZES = (N_LOG_RATIOS, N_TOKENS * len(TOKEN_COLUMNS), N_ROWS * len(ROW_COLUMNS))
TOP_SIZE = sum(_SIZES)
"""Number of float64 in the three tables."""

_VALUE, _N, _NUMBER, _POSITION = range(len(KEYED))
_RANK = len(KEYED)

NO_ROW = -(2**31)
"""Keys below this belong to no valid token or completion."""


@dataclass(frozen=True, eq=False)
class Top:
    """The three tables.

    Attributes:
        log_ratios: float64 ``(N_LOG_RATIOS,)``, the largest D_i, descending; padded with minus infinity.
        tokens: float64 ``(N_TOKENS, len(TOKEN_COLUMNS))``, by absolute d, descending; padded with zeros.
        rows: float64 ``(N_ROWS, len(ROW_COLUMNS))``, by mean absolute d, descending; padded with zeros.
    """

    log_ratios: torch.Tensor
    tokens: torch.Tensor
    rows: torch.Tensor

    @classmethod
    def empty(cls, device: torch.device | str = "cpu") -> Top:
        """The identity of :meth:`merge`."""
        options: dict[str, Any] = {"dtype": torch.float64, "device": device}
        return cls(
            log_ratios=torch.full((N_LOG_RATIOS,), -torch.inf, **options),
            tokens=torch.zeros((N_TOKENS, len(TOKEN_COLUMNS)), **options),
            rows=torch.zeros((N_ROWS, len(ROW_COLUMNS)), **options),
        )

    def merge(self, *others: Top) -> Top:
        """Merges tables; each input may hold fewer rows than the fixed size."""
        tops = (self, *others)
        return Top._from_rows(
            torch.cat([top.log_ratios for top in tops]),
            torch.cat([top.tokens for top in tops]),
            torch.cat([top.rows for top in tops]),
        )

    @classmethod
    def largest(cls, packed: torch.Tensor) -> Top:
        """Merges many packed tables, ``(N, TOP_SIZE)``, at once."""
        log_ratios, tokens, rows = packed.split(_SIZES, dim=-1)
        return cls._from_rows(
            log_ratios.flatten(), tokens.reshape(-1, len(TOKEN_COLUMNS)), rows.reshape(-1, len(ROW_COLUMNS))
        )

    @classmethod
    def _from_rows(cls, log_ratios: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor) -> Top:
        return cls(largest_values(log_ratios), first_rows(tokens, N_TOKENS), first_rows(rows, N_ROWS))

    def on_rank(self, rank: int) -> Top:
        """Copies the tables with ``rank`` as the process that observed their rows."""
        return replace(self, tokens=_with_rank(self.tokens, rank), rows=_with_rank(self.rows, rank))

    def to(self, device: torch.device | str) -> Top:
        """Copies the tables to a device."""
        return Top(self.log_ratios.to(device), self.tokens.to(device), self.rows.to(device))

    def pack(self) -> torch.Tensor:
        """The tables as one float64 vector of :data:`TOP_SIZE`."""
        return torch.cat([self.log_ratios, self.tokens.flatten(), self.rows.flatten()])

    @classmethod
    def unpack(cls, packed: torch.Tensor) -> Top:
        """Inverse of :meth:`pack`."""
        log_ratios, tokens, rows = packed.split(_SIZES)
        return cls(log_ratios, tokens.view(N_TOKENS, -1), rows.view(N_ROWS, -1))


def largest_values(values: torch.Tensor) -> torch.Tensor:
    """The ``N_LOG_RATIOS`` largest values, descending, padded with minus infinity."""
    largest = values.topk(min(N_LOG_RATIOS, len(values))).values
    missing = N_LOG_RATIOS - len(largest)
    return torch.nn.functional.pad(largest, (0, missing), value=-torch.inf) if missing else largest


def first_rows(table: torch.Tensor, size: int) -> torch.Tensor:
    """The first ``size`` rows of a table by the total order, padded with zeros; rows without tokens are empty."""
    number, position = table[:, _NUMBER].to(torch.int64), table[:, _POSITION].to(torch.int32)
    bits = table[:, _VALUE].float().view(torch.int32)
    key = order_key(bits, torch.add(tie_order(number), position, alpha=SPREAD), table[:, _N] == 0)
    return rows_by_key(table, key, size)


def rows_by_key(table: torch.Tensor, key: torch.Tensor, size: int) -> torch.Tensor:
    """The ``size`` rows with the largest keys, padded with zeros."""
    return padded_rows(table.index_select(0, key.topk(min(size, len(key))).indices), size)


def padded_rows(table: torch.Tensor, size: int) -> torch.Tensor:
    """A table with rows of zeros at its end, up to ``size`` rows."""
    missing = size - len(table)
    return torch.nn.functional.pad(table, (0, 0, 0, missing)) if missing else table


def tie_order(number: torch.Tensor) -> torch.Tensor:
    """Order among equals at position 0, int32, of completions' numbers; add the position times SPREAD, which wraps."""
    return ((number >> 20) - 2**31).to(torch.int32)


def order_key(bits: torch.Tensor, tie: torch.Tensor, invalid: torch.Tensor) -> torch.Tensor:
    """The total order of this module as int64: the first row has the largest key, an invalid one less than NO_ROW.

    Args:
        bits: int32 of any shape, the bits of float32 values.
        tie: int32 of the shape, the order among equals.
        invalid: bool of the shape.
    """
    # Bits of non-negative floats have the order of the floats, and -1 is below all of them.
    size = (bits & 0x7FFFFFFF).masked_fill_(invalid, -1)
    return torch.add(tie, size.to(torch.int64), alpha=2**32)


def _with_rank(table: torch.Tensor, rank: int) -> torch.Tensor:
    column = torch.arange(table.shape[-1], device=table.device) == _RANK
    return torch.where(column & (table[:, _N : _N + 1] > 0), float(rank), table)
