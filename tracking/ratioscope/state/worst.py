"""The worst tokens and rows of a window, as the host sees them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

N_BEFORE = 4
N_AFTER = 2

KEYED = ("value", "n", "fingerprint", "position")
"""The columns that both tables begin with: what is worst, and what tells equals apart. No tokens: an empty slot."""

BEFORE = tuple(f"before_{back}" for back in range(N_BEFORE, 0, -1))
AFTER = tuple(f"after_{ahead}" for ahead in range(1, N_AFTER + 1))

TOKEN_COLUMNS = (
    *KEYED,
    "rank",
    "advantage",
    "row_log_ratio",
    "train_logp",
    "rollout_logp",
    *BEFORE,
    "token_id",
    *AFTER,
)
"""Columns of the table of tokens; its value is d."""

ROW_COLUMNS = (*KEYED, "rank", "advantage", "row_log_ratio")
"""Columns of the table of rows; its value is the mean absolute d."""

Context = tuple[tuple[int, ...], int, tuple[int, ...]]
"""Ids before a token, its own, and those after it."""

_MAX_LOG = math.log(1.7976931348623157e308)
_NUMBERS = {"value", "advantage", "row_log_ratio", "train_logp", "rollout_logp"}
_ABSENT = {"rank": 0.0, "advantage": math.nan} | dict.fromkeys(("token_id", *BEFORE, *AFTER), -1.0)
_TRAITS = {
    len(columns): (
        np.array([index for index, name in enumerate(columns) if name in _NUMBERS]),
        np.array([_ABSENT.get(name, 0.0) for name in columns]),
    )
    for columns in (TOKEN_COLUMNS, ROW_COLUMNS)
}
"""By number of columns: which of them are float32, and what stands for an unknown value."""


class TokenText(NamedTuple):
    """A token's text and its neighbours', as the tokenizer's ``decode`` gives them, of bounded length."""

    before: str
    text: str
    after: str


@dataclass(frozen=True)
class WorstToken:
    """One of the tokens with the largest absolute log-ratio.

    Attributes:
        log_ratio: train - rollout log-probability, in nats.
        train_logp: the trainer's.
        rollout_logp: the engine's.
        advantage: the row's; None if unknown.
        token_id: None if unknown.
        before: ids of up to four tokens before it, ending where the mask has a hole or begins.
        after: ids of up to two tokens after it.
        position: its index among the row's valid tokens.
        row_tokens: valid tokens of the row.
        row_log_ratio: sum of the row's log-ratios, in nats.
        row: fingerprint of the row's content, the same wherever it is batched.
        rank: the process that observed it.
        text: what it stands for, behind ``before``; None if unknown.
        before_text: text of ``before``; None if unknown.
        after_text: text of ``after``; None if unknown.
    """

    log_ratio: float
    train_logp: float
    rollout_logp: float
    advantage: float | None
    token_id: int | None
    before: tuple[int, ...]
    after: tuple[int, ...]
    position: int
    row_tokens: int
    row_log_ratio: float
    row: int
    rank: int
    text: str | None = None
    before_text: str | None = None
    after_text: str | None = None

    @property
    def ratio(self) -> float:
        """``exp`` of the log-ratio; infinite where float64 cannot hold it."""
        return math.exp(self.log_ratio) if self.log_ratio < _MAX_LOG else math.inf


@dataclass(frozen=True)
class WorstRow:
    """One of the rows with the largest mean absolute log-ratio.

    Attributes:
        abs_mean: mean absolute log-ratio of its tokens, in nats, rounded to float32.
        log_ratio: sum of its log-ratios, in nats.
        tokens: valid tokens.
        advantage: None if unknown.
        row: fingerprint of the row's content, as in :class:`WorstToken`.
        rank: the process that observed it.
    """

    abs_mean: float
    log_ratio: float
    tokens: int
    advantage: float | None
    row: int
    rank: int


def tokens_of(table: NDArray[np.float64], texts: Sequence[TokenText | None] = ()) -> tuple[WorstToken, ...]:
    """The tokens of a table with :data:`TOKEN_COLUMNS`, worst first.

    Args:
        table: empty slots are at its end.
        texts: one for each of the first slots.
    """
    told = chain(texts, repeat(None))
    return tuple(
        WorstToken(
            log_ratio=row["value"],
            train_logp=row["train_logp"],
            rollout_logp=row["rollout_logp"],
            advantage=_known(row["advantage"]),
            token_id=next(iter(_ids(row, ("token_id",))), None),
            before=_ids(row, BEFORE[::-1])[::-1],
            after=_ids(row, AFTER),
            position=int(row["position"]),
            row_tokens=int(row["n"]),
            row_log_ratio=row["row_log_ratio"],
            row=int(row["fingerprint"]),
            rank=int(row["rank"]),
            text=None if text is None else text.text,
            before_text=None if text is None else text.before,
            after_text=None if text is None else text.after,
        )
        for row, text in zip(_named(table, TOKEN_COLUMNS), told, strict=False)
    )


def contexts_of(table: NDArray[np.float64]) -> list[Context | None]:
    """Ids of the tokens of a table with :data:`TOKEN_COLUMNS` and of their neighbours; None where there is no id."""
    ids = table[table[:, KEYED.index("n")] > 0, TOKEN_COLUMNS.index(BEFORE[0]) :].astype(np.int64).tolist()
    return [_context(row) for row in ids]


def texts_to_json(texts: Sequence[TokenText | None]) -> list[list[str] | None]:
    """One list a token: before, text and after; null where they are unknown."""
    return [None if text is None else list(text) for text in texts]


def texts_from_json(data: Sequence[Sequence[str] | None]) -> tuple[TokenText | None, ...]:
    """Inverse of :func:`texts_to_json`."""
    return tuple(None if text is None else TokenText(*text) for text in data)


def rows_of(table: NDArray[np.float64]) -> tuple[WorstRow, ...]:
    """The rows of a table with :data:`ROW_COLUMNS`, worst first."""
    return tuple(
        WorstRow(
            abs_mean=row["value"],
            log_ratio=row["row_log_ratio"],
            tokens=int(row["n"]),
            advantage=_known(row["advantage"]),
            row=int(row["fingerprint"]),
            rank=int(row["rank"]),
        )
        for row in _named(table, ROW_COLUMNS)
    )


def to_json(table: NDArray[np.float64], columns: Sequence[str]) -> dict[str, Any]:
    """A table as names and rows, without its empty slots; what is unknown is null."""
    kept = table[table[:, KEYED.index("n")] > 0]
    cells = [_cells(name, column) for name, column in zip(columns, kept.T, strict=True)]
    return {"columns": list(columns), "rows": [list(row) for row in zip(*cells, strict=True)]}


def from_json(data: Mapping[str, Any], columns: Sequence[str], size: int) -> NDArray[np.float64]:
    """Inverse of :func:`to_json`, ``(size, len(columns))``; unknown columns are ignored, missing ones are unknown."""
    table = np.zeros((size, len(columns)))
    rows = data.get("rows", [])[:size]
    if not rows:
        return table
    values = np.array(rows, dtype=np.float64)  # null becomes NaN
    if data["columns"] != list(columns):
        index = {name: column for column, name in enumerate(data["columns"])}
        values = np.hstack([values, np.full((len(rows), 1), np.nan)])[:, [index.get(name, -1) for name in columns]]
    float32, absent = _TRAITS[len(columns)]
    # JSON has the shortest text of each float32, which as a float64 is another number.
    values[:, float32] = values[:, float32].astype(np.float32)
    unknown = np.isnan(values)
    table[: len(rows)] = np.where(unknown, absent, values) if unknown.any() else values
    return table


def _named(table: NDArray[np.float64], columns: Sequence[str]) -> list[dict[str, float]]:
    rows = [dict(zip(columns, row, strict=True)) for row in table.tolist()]
    return [row for row in rows if row["n"]]


def _ids(row: Mapping[str, float], names: Sequence[str]) -> tuple[int, ...]:
    return _until([int(row[name]) for name in names])


def _context(ids: list[int]) -> Context | None:
    before, token, after = ids[N_BEFORE - 1 :: -1], ids[N_BEFORE], ids[N_BEFORE + 1 :]
    return None if token == -1 else (_until(before)[::-1], token, _until(after))


def _until(ids: list[int]) -> tuple[int, ...]:
    """Ids up to the first that is not there."""
    return tuple(ids[: ids.index(-1)] if -1 in ids else ids)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def short(value: float) -> float:
    """The number with the fewest digits that is this one as a float32, which everything in a table is."""
    return float(str(np.float32(value)))


def _cells(name: str, column: NDArray[np.float64]) -> list[float | int | None]:
    """A column as JSON keeps it."""
    if name in _NUMBERS:
        column = column.astype(np.float32).astype("S32").astype(np.float64)  # what ``short`` does, all at once
        return [None if math.isnan(value) else value for value in column.tolist()]
    return [None if math.isnan(value) else int(value) for value in column.tolist()]
