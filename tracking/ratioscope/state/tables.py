"""The largest of a window, in tables of fixed size that merge: row log-ratios, worst tokens, worst rows.

Each table is sorted and holds what is largest by a total order of content: by size, then by a hash of the row's
content and the position. So a merge is associative and commutative, however rows were batched, and tokens that tie, as
in low precision many do, are chosen evenly over rows and positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ratioscope.state.slots import N_LOG_RATIOS as N_LOG_RATIOS
from ratioscope.state.slots import N_ROWS as N_ROWS
from ratioscope.state.slots import N_TOKENS as N_TOKENS
from ratioscope.state.slots import TIE_SPREAD
from ratioscope.state.worst import KEYED, N_AFTER, N_BEFORE, ROW_COLUMNS, TOKEN_COLUMNS

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation
    from ratioscope.summary.positions import Places
    from ratioscope.summary.tokens import TokenPart

_SIZES = (N_LOG_RATIOS, N_TOKENS * len(TOKEN_COLUMNS), N_ROWS * len(ROW_COLUMNS))
TOP_SIZE = sum(_SIZES)
"""Number of float64 in the three tables."""

_VALUE, _N, _FINGERPRINT, _POSITION = range(len(KEYED))
_RANK = len(KEYED)

# Odd multipliers whose products wrap; what they are is immaterial, each makes one thing count differently.
_STEP, _TRAIN, _ROLLOUT, _TOKEN, _MASK, _ADVANTAGE, _MIX = (
    0x5851F42D4C957F2D,
    0x2545F4914F6CDD1D,
    0x1B873593CC9E2D51,
    0x4CF5AD432745937F,
    0x38495AB5E6546B65,
    0x7ED558CCD1CE4E5B,
    0x1EC4CEB9FE1A85ED,
)
_BACK = (pow(_STEP, -1, 2**64) + 2**63) % 2**64 - 2**63  # the inverse of _STEP, as a signed integer
_NO_TOKEN = -(2**31)
"""Keys below this are of no valid token."""


@dataclass(frozen=True)
class Worst:
    """Where a batch's worst tokens are, in order; int64 ``(N,)`` each, N being at most ``N_TOKENS``.

    Attributes:
        row: their row.
        column: their column.
        position: their index among the row's valid tokens.
        found: bool, whether there is a token at all.
    """

    row: torch.Tensor
    column: torch.Tensor
    position: torch.Tensor
    found: torch.Tensor


@dataclass(frozen=True, eq=False)
class Top:
    """The three tables.

    Attributes:
        log_ratios: float64 ``(N_LOG_RATIOS,)``, the largest D_i, descending; minus infinity where there are fewer.
        tokens: float64 ``(N_TOKENS, len(TOKEN_COLUMNS))``, by absolute d, descending; zeros where there are fewer.
        rows: float64 ``(N_ROWS, len(ROW_COLUMNS))``, by mean absolute d, descending; zeros where there are fewer.
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

    @classmethod
    def of(cls, observation: Observation, part: TokenPart, row_d: torch.Tensor, abs_mean: torch.Tensor) -> Top:
        """The largest of one batch, without a host sync.

        Args:
            observation: the batch.
            part: its tokens, reduced.
            row_d: float64 ``(B,)`` sums of log-ratios.
            abs_mean: float64 ``(B,)`` means of absolute log-ratios.
        """
        if not observation.given[2].shape[-1]:
            return cls.empty(row_d.device)
        live = part.n > 0
        advantages = torch.full_like(row_d, torch.nan) if observation.advantages is None else observation.advantages
        zero = torch.zeros_like(part.n)
        by_row = [part.n, part.fingerprint, zero, zero, advantages, row_d]
        rows = torch.stack([column.double() for column in (abs_mean.float(), *by_row)], dim=-1)
        return cls(
            log_ratios=_largest(torch.where(live, row_d, -torch.inf)),
            tokens=_filled(_token_table(observation, part.worst, rows), N_TOKENS),
            rows=_best(torch.where(live.unsqueeze(-1), rows, 0.0), N_ROWS),
        )

    def merge(self, *others: Top) -> Top:
        """The largest of all, whose tables may be shorter than they are kept."""
        every = (self, *others)
        return Top._of_all(
            torch.cat([top.log_ratios for top in every]),
            torch.cat([top.tokens for top in every]),
            torch.cat([top.rows for top in every]),
        )

    @classmethod
    def largest(cls, packed: torch.Tensor) -> Top:
        """The largest of many, packed, ``(N, TOP_SIZE)``."""
        log_ratios, tokens, rows = packed.split(_SIZES, dim=-1)
        return cls._of_all(
            log_ratios.flatten(), tokens.reshape(-1, len(TOKEN_COLUMNS)), rows.reshape(-1, len(ROW_COLUMNS))
        )

    @classmethod
    def _of_all(cls, log_ratios: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor) -> Top:
        return cls(_largest(log_ratios), _best(tokens, N_TOKENS), _best(rows, N_ROWS))

    def on_rank(self, rank: int) -> Top:
        """The same, marked as observed by this process."""
        return replace(self, tokens=_marked(self.tokens, rank), rows=_marked(self.rows, rank))

    def to(self, device: torch.device | str) -> Top:
        """The same on another device."""
        return Top(self.log_ratios.to(device), self.tokens.to(device), self.rows.to(device))

    def pack(self) -> torch.Tensor:
        """The tables as one float64 vector of :data:`TOP_SIZE`."""
        return torch.cat([self.log_ratios, self.tokens.flatten(), self.rows.flatten()])

    @classmethod
    def unpack(cls, packed: torch.Tensor) -> Top:
        """Inverse of :meth:`pack`."""
        log_ratios, tokens, rows = packed.split(_SIZES)
        return cls(log_ratios, tokens.view(N_TOKENS, -1), rows.view(N_ROWS, -1))


def _largest(values: torch.Tensor) -> torch.Tensor:
    found = values.topk(min(N_LOG_RATIOS, len(values))).values
    missing = N_LOG_RATIOS - len(found)
    return torch.nn.functional.pad(found, (0, missing), value=-torch.inf) if missing else found


def _best(table: torch.Tensor, size: int) -> torch.Tensor:
    """The best rows of a table, in order; at most ``size``, and zeros in place of what is missing."""
    fingerprint, position = table[:, _FINGERPRINT].to(torch.int64), table[:, _POSITION].to(torch.int32)
    key = _key(table[:, _VALUE].float(), fingerprint, position, table[:, _N] > 0)
    best = key.topk(min(size, len(key))).indices
    return _filled(table.index_select(0, best), size)


def _filled(table: torch.Tensor, size: int) -> torch.Tensor:
    missing = size - len(table)
    return torch.nn.functional.pad(table, (0, 0, 0, missing)) if missing else table


def _key(value: torch.Tensor, fingerprint: torch.Tensor, position: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """The total order as int64: the bits of the absolute float32 value, then 32 of a hash."""
    hashed = torch.add(((fingerprint >> 20) - 2**31).to(torch.int32), position, alpha=TIE_SPREAD)
    size = torch.where(valid, value.abs().view(torch.int32), -1)
    return torch.add(hashed, size.to(torch.int64), alpha=2**32)


def fingerprints(observation: Observation) -> torch.Tensor:
    """int64 ``(B,)`` below 2**52: a hash of each row's content and order, whatever padding and batch it stands in.

    The polynomial of the row's tokens in ``_STEP``, modulo 2**64, divided by the power of the row's first column.
    Integers wrap and add exactly, so it is the same on every device.
    """
    masked_in = observation.masked_in
    if not masked_in.shape[-1]:
        return torch.zeros(len(masked_in), dtype=torch.int64, device=masked_in.device)
    powers, inverse = powers_of(masked_in.shape[-1], masked_in.device)
    row = ((masked_in.to(torch.uint8) + observation.valid) * powers).sum(dim=-1) * _MASK
    row = row + (observation.train.view(torch.int32) * powers).sum(dim=-1) * _TRAIN
    row = row + (observation.rollout.view(torch.int32) * powers).sum(dim=-1) * _ROLLOUT
    if observation.token_ids is not None:
        row = row + (torch.where(masked_in, observation.token_ids, 0) * powers).sum(dim=-1) * _TOKEN
    row = row * inverse.index_select(0, masked_in.to(torch.uint8).argmax(dim=-1))
    row = row + of_advantages(observation)
    row = (row ^ (row >> 29)) * _MIX
    return (row >> 12) & (2**52 - 1)


MULTIPLIERS = (_MASK, _TRAIN, _ROLLOUT, _TOKEN, _MIX, TIE_SPREAD)
"""Of fingerprints and keys, for a kernel that makes them itself."""


def powers_of(width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 ``(width,)``: the first powers of the step of a fingerprint, and of its inverse."""
    step, back = (
        torch.full((width,), base, dtype=torch.int64, device=device).cumprod(dim=0) for base in (_STEP, _BACK)
    )
    return step, back


def of_advantages(observation: Observation) -> torch.Tensor:
    """int64 ``(B,)``: what the rows' advantages add to their fingerprints."""
    if observation.advantages is None:
        return torch.zeros(len(observation.given[2]), dtype=torch.int64, device=observation.given[2].device)
    return observation.advantages.view(torch.int32).to(torch.int64) * _ADVANTAGE


def worst_tokens(observation: Observation, places: Places, fingerprint: torch.Tensor) -> Worst:
    """Where the worst tokens of a batch of at least one column are."""
    width = observation.valid.shape[-1]
    keys = _key(observation.log_ratio, fingerprint.unsqueeze(-1), places.position, observation.valid).flatten()
    found, where = keys.topk(min(N_TOKENS, len(keys)))
    position = places.position.flatten().index_select(0, where).to(torch.int64)
    return Worst(row=where // width, column=where % width, position=position, found=found >= _NO_TOKEN)


def _token_table(observation: Observation, worst: Worst, rows: torch.Tensor) -> torch.Tensor:
    train, rollout = (logps.take(worst.row * logps.shape[-1] + worst.column).float() for logps in observation.given[:2])
    by_row = rows.index_select(0, worst.row)
    columns = [
        (train - rollout).double().unsqueeze(-1),
        by_row[:, _N:_POSITION],
        worst.position.double().unsqueeze(-1),
        by_row[:, _RANK:],
        train.double().unsqueeze(-1),
        rollout.double().unsqueeze(-1),
        _ids(observation, worst.row, worst.column),
    ]
    return torch.where(worst.found.unsqueeze(-1), torch.cat(columns, dim=-1), 0.0)


def _ids(observation: Observation, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Ids of these tokens and their neighbours, in order; -1 where the mask has none."""
    around = torch.arange(-N_BEFORE, N_AFTER + 1, device=row.device)
    if observation.token_ids is None:
        return torch.full((len(row), len(around)), -1.0, dtype=torch.float64, device=row.device)
    width = observation.token_ids.shape[-1]
    columns = column.unsqueeze(-1) + around
    at = row.unsqueeze(-1) * width + columns.clamp(0, width - 1)
    masked_in = (observation.given[2].take(at) != 0) & (columns >= 0) & (columns < width)
    return torch.where(masked_in, observation.token_ids.take(at), -1).double()


def _marked(table: torch.Tensor, rank: int) -> torch.Tensor:
    column = torch.arange(table.shape[-1], device=table.device) == _RANK
    return torch.where(column & (table[:, _N : _N + 1] > 0), float(rank), table)
