"""Tables of the largest values on the host, as numpy arrays in the order of :mod:`ratioscope.state.tables`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.state import worst
from ratioscope.state.slots import N_LOG_RATIOS, N_ROWS, N_TOKENS, SPREAD
from ratioscope.state.worst import KEYED, ROW_COLUMNS, TOKEN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_VALUE, _N, _NUMBER, _POSITION = range(len(KEYED))
SIZES = (N_LOG_RATIOS, N_TOKENS * len(TOKEN_COLUMNS), N_ROWS * len(ROW_COLUMNS))
"""Number of float64 in each of the three tables."""


@dataclass(frozen=True, eq=False)
class HostTables:
    """The three tables of a summary on the host; none is ever changed in place.

    Attributes:
        log_ratios: float64 ``(N_LOG_RATIOS,)``, the largest D_i, descending; padded with minus infinity.
        tokens: float64 ``(N_TOKENS, len(TOKEN_COLUMNS))``, by absolute d, descending; padded with zeros.
        rows: float64 ``(N_ROWS, len(ROW_COLUMNS))``, by mean absolute d, descending; padded with zeros.
    """

    log_ratios: NDArray[np.float64]
    tokens: NDArray[np.float64]
    rows: NDArray[np.float64]

    @classmethod
    def empty(cls) -> HostTables:
        """Returns the identity of :meth:`merge`."""
        return cls(
            log_ratios=np.full(N_LOG_RATIOS, -np.inf),
            tokens=np.zeros((N_TOKENS, len(TOKEN_COLUMNS))),
            rows=np.zeros((N_ROWS, len(ROW_COLUMNS))),
        )

    def merge(self, *others: HostTables) -> HostTables:
        """Keeps the largest of all tables."""
        log_ratios = np.concatenate([self.log_ratios, *(other.log_ratios for other in others)])
        least_token, least_row = _size(self.tokens[-1]), _size(self.rows[-1])
        return HostTables(
            log_ratios=np.sort(log_ratios)[: -N_LOG_RATIOS - 1 : -1].copy(),
            tokens=_first([self.tokens, *(other.tokens for other in others if other.largest_token >= least_token)]),
            rows=_first([self.rows, *(other.rows for other in others if other.largest_row >= least_row)]),
        )

    @property
    def largest_token(self) -> float:
        """Largest absolute log-ratio of a token in nats; -1 without a token."""
        return _size(self.tokens[0])

    @property
    def largest_row(self) -> float:
        """Largest mean absolute log-ratio of a completion in nats; -1 without a completion."""
        return _size(self.rows[0])

    def pack(self) -> NDArray[np.float64]:
        """Joins the tables to one float64 vector."""
        return np.concatenate([self.log_ratios, self.tokens.ravel(), self.rows.ravel()])

    @classmethod
    def unpack(cls, packed: NDArray[np.float64]) -> HostTables:
        """Inverse of :meth:`pack`; the tables are views of the vector."""
        log_ratios, tokens, rows = np.split(packed, np.cumsum(SIZES)[:-1])
        return cls(log_ratios, tokens.reshape(N_TOKENS, -1), rows.reshape(N_ROWS, -1))

    def to_json(self) -> dict[str, Any]:
        """Tables by name as plain JSON, without their padding."""
        return {
            "log_ratios": [worst.short(value) for value in self.log_ratios.tolist() if value != -np.inf],
            "tokens": worst.to_json(self.tokens, TOKEN_COLUMNS),
            "rows": worst.to_json(self.rows, ROW_COLUMNS),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> HostTables:
        """Inverse of :meth:`to_json`, made lazily; a table that is missing is empty."""
        return _StoredTables(data)


class _StoredTables(HostTables):
    """Tables as a journal stores them. Each is made at first use: few windows of a run hold any of its worst tokens."""

    _data: Mapping[str, Any]

    def __init__(self, data: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_data", data)

    @cached_property
    def log_ratios(self) -> NDArray[np.float64]:
        log_ratios = np.full(N_LOG_RATIOS, -np.inf)
        stored = self._data.get("log_ratios", [])[:N_LOG_RATIOS]
        log_ratios[: len(stored)] = np.array(stored, dtype=np.float32)
        return log_ratios

    @cached_property
    def tokens(self) -> NDArray[np.float64]:
        return worst.from_json(self._data.get("tokens", {}), TOKEN_COLUMNS, N_TOKENS)

    @cached_property
    def rows(self) -> NDArray[np.float64]:
        return worst.from_json(self._data.get("rows", {}), ROW_COLUMNS, N_ROWS)

    @property
    def largest_token(self) -> float:
        return self._largest("tokens")

    @property
    def largest_row(self) -> float:
        return self._largest("rows")

    def _largest(self, name: str) -> float:
        """Reads the value of a table's first row, which is the largest."""
        table = self._data.get(name, {})
        if not table.get("rows"):
            return -1.0
        value = table["rows"][0][table["columns"].index(KEYED[_VALUE])]
        return abs(float(np.float32(value)))


def _size(row: NDArray[np.float64]) -> float:
    """Returns the absolute value of a table's row; -1 of an empty one, which is below every value."""
    return abs(float(row[_VALUE])) if row[_N] > 0 else -1.0


def _first(tables: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Takes the first rows of several tables by the total order, as many as one table has."""
    table = np.concatenate(tables)
    # The bits of a float32 above 0 grow with its value; an empty slot gets -1, below every value.
    value = np.where(table[:, _N] > 0, np.abs(table[:, _VALUE]).astype(np.float32).view(np.int32), -1)
    number, position = table[:, _NUMBER].astype(np.int64), table[:, _POSITION].astype(np.int64)
    # Both steps of the order in one int64; the second one wraps to int32, as it does on a device.
    tie = ((number >> 20) - 2**31 + SPREAD * position).astype(np.int32)
    key = (value.astype(np.int64) << 32) + tie
    return table[np.argsort(-key, kind="stable")[: len(tables[0])]]
