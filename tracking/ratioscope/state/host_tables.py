"""Tables of the largest values on the host, as numpy arrays in the order of :mod:`ratioscope.state.tables`."""

# pyright: reportIncompatibleVariableOverride=false
# A stored table computes at first use what the base class holds as a field.

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.state import worst
from ratioscope.state.slots import N_LOG_RATIOS, N_ROWS, N_TOKENS, SPREAD
from ratioscope.state.worst import KEYED, ROW_COLUMNS, TOKEN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

_VALUE, _N, _NUMBER, _POSITION = range(len(KEYED))
_COLUMNS = itemgetter("columns")
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
        tables = (HostTables.empty(), self, *others)
        stored = [table.stored for table in tables if isinstance(table, _StoredTables)]
        known = [table for table in tables if not isinstance(table, _StoredTables)]
        # Stored tables are decoded at once: few rows of each are left, and every call has its cost.
        log_ratios = np.array([value for data in stored for value in data.get("log_ratios", ())], dtype=np.float32)
        tokens = _decoded([data.get("tokens", {}) for data in stored], TOKEN_COLUMNS)
        rows = _decoded([data.get("rows", {}) for data in stored], ROW_COLUMNS)
        descending = np.sort(np.concatenate([log_ratios, *(table.log_ratios for table in known)]))[::-1]
        return HostTables(
            log_ratios=descending[:N_LOG_RATIOS].astype(np.float64),
            tokens=_first([*(table.tokens for table in known), *tokens]),
            rows=_first([*(table.rows for table in known), *rows]),
        )

    def entering(self, total: HostTables) -> HostTables:
        """Returns tables without rows that could not enter those of a total; may keep all."""
        return self

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

    stored: Mapping[str, Any]

    def __init__(self, data: Mapping[str, Any]) -> None:
        object.__setattr__(self, "stored", data)

    @cached_property
    def log_ratios(self) -> NDArray[np.float64]:
        log_ratios = np.full(N_LOG_RATIOS, -np.inf)
        stored = self.stored.get("log_ratios", [])[:N_LOG_RATIOS]
        log_ratios[: len(stored)] = np.array(stored, dtype=np.float32)
        return log_ratios

    @cached_property
    def tokens(self) -> NDArray[np.float64]:
        return worst.from_json(self.stored.get("tokens", {}), TOKEN_COLUMNS, N_TOKENS)

    @cached_property
    def rows(self) -> NDArray[np.float64]:
        return worst.from_json(self.stored.get("rows", {}), ROW_COLUMNS, N_ROWS)

    def entering(self, total: HostTables) -> HostTables:
        log_ratios = self.stored.get("log_ratios", [])[:N_LOG_RATIOS]
        kept = {
            "log_ratios": log_ratios[: _n_from(log_ratios, float(total.log_ratios[-1]), float)],
            "tokens": _leading(self.stored.get("tokens", {}), N_TOKENS, _size(total.tokens[-1])),
            "rows": _leading(self.stored.get("rows", {}), N_ROWS, _size(total.rows[-1])),
        }
        return _StoredTables(kept)

    @property
    def largest_token(self) -> float:
        return self._largest("tokens")

    @property
    def largest_row(self) -> float:
        return self._largest("rows")

    def _largest(self, name: str) -> float:
        """Reads the value of a table's first row, which is the largest."""
        table = self.stored.get(name, {})
        if not table.get("rows"):
            return -1.0
        value = table["rows"][0][table["columns"].index(KEYED[_VALUE])]
        return abs(float(np.float32(value)))


def _decoded(tables: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[NDArray[np.float64]]:
    """Decodes the rows of stored tables, those of neighbours with the same columns at once."""
    filled = [table for table in tables if table.get("rows")]
    groups = ((names, [row for table in group for row in table["rows"]]) for names, group in groupby(filled, _COLUMNS))
    return [worst.from_json({"columns": names, "rows": rows}, columns, len(rows)) for names, rows in groups]


def _leading(table: Mapping[str, Any], size: int, least: float) -> Mapping[str, Any]:
    """Returns the first rows of a stored table, down to a value."""
    if not (rows := table.get("rows", [])[:size]):
        return {}
    value = table["columns"].index(KEYED[_VALUE])
    return {"columns": table["columns"], "rows": rows[: _n_from(rows, least, lambda row: abs(row[value]))]}


def _n_from(descending: Sequence[Any], least: float, size: Callable[[Any], float]) -> int:
    """Counts the first items of at least a size, or just below it, which rounding to float32 may bring up to it."""
    limit = least - 2.0**-20 * abs(least)
    return bisect_right(descending, -limit, key=lambda item: -size(item))


def _size(row: NDArray[np.float64]) -> float:
    """Returns the absolute value of a table's row; -1 of an empty one, which is below every value."""
    return abs(float(row[_VALUE])) if row[_N] > 0 else -1.0


def _first(tables: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Takes the first rows of several tables by the total order, as many as the first of them has."""
    table = np.concatenate(tables)
    # The bits of a float32 above 0 grow with its value; an empty slot gets -1, below every value.
    value = np.where(table[:, _N] > 0, np.abs(table[:, _VALUE]).astype(np.float32).view(np.int32), -1)
    number, position = table[:, _NUMBER].astype(np.int64), table[:, _POSITION].astype(np.int64)
    # Both steps of the order in one int64; the second one wraps to int32, as it does on a device.
    tie = ((number >> 20) - 2**31 + SPREAD * position).astype(np.int32)
    key = (value.astype(np.int64) << 32) + tie
    return table[np.argsort(-key, kind="stable")[: len(tables[0])]]
