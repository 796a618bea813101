"""The worst tokens and rows of a whole run, bounded in memory, and a table of them for trackers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ratioscope.runs.history import Cadence
from ratioscope.state import worst
from ratioscope.state.worst import WorstRow, WorstToken
from ratioscope.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ratioscope.record import Record

MAX_TOKENS, MAX_ROWS = 32, 8
"""Tokens and rows that are kept of a run."""

COLUMNS = (
    "worst_of",
    "split",
    "step",
    "log_ratio",
    "ratio",
    "token",
    "before",
    "after",
    "token_id",
    "position",
    "row",
    "row_tokens",
    "train_logp",
    "rollout_logp",
    "advantage",
    "rank",
)
"""Columns of the table that trackers receive."""


class TokenAt(NamedTuple):
    """One of the worst tokens, and the step and split of its window."""

    step: int
    split: str
    token: WorstToken


class RowAt(NamedTuple):
    """One of the worst rows, and the step and split of its window."""

    step: int
    split: str
    row: WorstRow


class LastWindow(NamedTuple):
    """The worst of the training's last window."""

    step: int
    tokens: tuple[WorstToken, ...]
    rows: tuple[WorstRow, ...]


@dataclass
class WorstOfRun:
    """The worst of all windows, and of the training's last one.

    Attributes:
        tokens: those with the largest absolute log-ratio, worst first, of equals the oldest.
        rows: those with the largest mean absolute log-ratio, worst first, of equals the oldest.
    """

    tokens: list[TokenAt] = field(default_factory=list)
    rows: list[RowAt] = field(default_factory=list)
    _last: Callable[[], LastWindow] | None = field(default=None, repr=False)

    @property
    def last(self) -> LastWindow | None:
        """The training's last window with a token; None before there was one."""
        return None if self._last is None else self._last()

    def add(self, record: Record) -> None:
        """Adds a window."""
        top, floor, row_floor = record.summary.top, self._floor(), self._row_floor()
        # Most windows hold none of the run's worst, and their tables are never made.
        if top.largest_token > floor:
            beating = int((np.abs(top.tokens[:, 0]) > floor).sum())
            self._merge_tokens(record.step, record.split, worst.tokens_of(top.tokens[:beating], record.texts))
        if top.largest_row > row_floor:
            beating = int((top.rows[:, 0] > row_floor).sum())
            self._merge_rows(record.step, record.split, worst.rows_of(top.rows[:beating]))
        if record.split == "train" and top.largest_token >= 0.0:
            self._last = lambda: LastWindow(record.step, record.worst_tokens, record.worst_rows)

    def forget_from(self, step: int) -> None:
        """Drops what is known from a step on; what it had displaced does not come back."""
        self.tokens = [one for one in self.tokens if one.step < step]
        self.rows = [one for one in self.rows if one.step < step]

    def to_json(self) -> dict[str, Any]:
        """Plain lists and values, by name."""
        last = self.last
        return {
            "tokens": [[step, split, vars(token)] for step, split, token in self.tokens],
            "rows": [[step, split, vars(row)] for step, split, row in self.rows],
            "last": last and [last.step, [vars(token) for token in last.tokens], [vars(row) for row in last.rows]],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorstOfRun:
        """Inverse of :meth:`to_json`; unknown names are ignored."""
        found = cls(
            [TokenAt(step, split, _token(token)) for step, split, token in data.get("tokens", ())],
            [RowAt(step, split, _row(row)) for step, split, row in data.get("rows", ())],
        )
        if last := data.get("last"):
            step, tokens, rows = last
            window = LastWindow(step, tuple(map(_token, tokens)), tuple(map(_row, rows)))
            found._last = lambda: window
        return found

    def _floor(self) -> float:
        return abs(self.tokens[-1].token.log_ratio) if len(self.tokens) == MAX_TOKENS else -1.0

    def _row_floor(self) -> float:
        return self.rows[-1].row.abs_mean if len(self.rows) == MAX_ROWS else -1.0

    def _merge_tokens(self, step: int, split: str, tokens: Iterable[WorstToken]) -> None:
        every = [*self.tokens, *(TokenAt(step, split, token) for token in tokens)]
        self.tokens = sorted(every, key=lambda one: -abs(one.token.log_ratio))[:MAX_TOKENS]

    def _merge_rows(self, step: int, split: str, rows: Iterable[WorstRow]) -> None:
        every = [*self.rows, *(RowAt(step, split, row) for row in rows)]
        self.rows = sorted(every, key=lambda one: -one.row.abs_mean)[:MAX_ROWS]


class WorstTables:
    """Tables of the worst tokens for a tracker that gets one with some of its rows, as :class:`Cadence` says."""

    def __init__(self) -> None:
        self._run = WorstOfRun()
        self._cadence = Cadence()

    def due(self, record: Record) -> list[list[str | int | float | None]]:
        """Takes a window in; rows as of :func:`table_rows` if a table is to go with it, else none."""
        self._run.add(record)
        return table_rows(self._run) if record.split == "train" and self._cadence.due() else []


def table_rows(run: WorstOfRun) -> list[list[str | int | float | None]]:
    """Rows with :data:`COLUMNS`, at most 64: the worst tokens of the run, then those of the training's last window.

    Texts are as :func:`ratioscope.text.visible` writes them; where they are unknown, ids stand for them.
    """
    last = run.last
    rows = [_table_row("run", *one) for one in run.tokens]
    return rows + ([_table_row("last window", last.step, "train", token) for token in last.tokens] if last else [])


def parts_of(token: WorstToken) -> tuple[str, str, str]:
    """Returns the text before, of and after a token; ids stand for unknown text."""
    own = () if token.token_id is None else (token.token_id,)
    every = ((token.before, token.before_text), (own, token.text), (token.after, token.after_text))
    before, text, after = (visible(text) if text else " ".join(f"⟨{one}⟩" for one in ids) for ids, text in every)
    return before, text, after


def row_name(fingerprint: int) -> str:
    """A row's fingerprint as people compare it: 13 hexadecimal digits."""
    return f"{fingerprint:013x}"


def _table_row(worst_of: str, step: int, split: str, token: WorstToken) -> list[str | int | float | None]:
    before, text, after = parts_of(token)
    ratio = token.ratio if math.isfinite(token.ratio) else None
    place = [token.token_id, token.position, row_name(token.row), token.row_tokens]
    numbers = [token.train_logp, token.rollout_logp, token.advantage, token.rank]
    return [worst_of, split, step, token.log_ratio, ratio, text, before, after, *place, *numbers]


def _token(data: Mapping[str, Any]) -> WorstToken:
    known = {one.name: data[one.name] for one in fields(WorstToken) if one.name in data}
    return WorstToken(**{**known, "before": tuple(data["before"]), "after": tuple(data["after"])})


def _row(data: Mapping[str, Any]) -> WorstRow:
    return WorstRow(**{one.name: data[one.name] for one in fields(WorstRow)})
