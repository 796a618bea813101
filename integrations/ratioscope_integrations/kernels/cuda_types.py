"""Columns that the CUDA kernel keeps of each row, by the slots that their sums and maxima belong to."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ratioscope.histogram import N_BUCKETS
from ratioscope.lengths import LENGTH_COUNTS, N_LENGTHS
from ratioscope.slots import COUNTS, DECILES, HISTOGRAMS, LAG_SIDES, MAXIMA, SUMS, TURNS

BLOCK = 128
"""Columns that a program takes at a time, one for each of its threads."""
WARPS = BLOCK // 32
SPAN = 4 * BLOCK
"""Columns of which the worst token's key is kept, to look among them again for the worst of all."""

PLACES = (*DECILES, *TURNS, "position/last")

_MOMENTS = ("x", "y", "xx", "yy", "xy")
_LAGS = (*(f"lag/{side}{power}" for power in ("", "^2") for side in LAG_SIDES), "lag/1", "lag/-1")

# What the first kernel writes, then the second: in the order in which they do.
FIRST_SUMS = (
    "row",  # the row's own, not a slot's
    *(f"token/{name}" for name in ("d", "abs_d", "d2")),
    *(f"logp/{name}" for name in _MOMENTS),
    *_LAGS,
    *(f"sequence/{name}" for name in ("d", "abs_d", "d2", "k3", "excess", "excess2")),
    "geometric/ratio",
    *(f"perplexity/{name}" for name in ("train", "rollout", "ratio")),
    "nothing",
)
SECOND_SUMS = (
    *(f"token/{name}" for name in ("k3", "excess", "excess2", "reverse_k3", "mult_prob_error")),
    *(f"token/own_{name}" for name in ("w", "w2", "wd")),  # relative to the row's own maximum
    *(f"probability/{name}" for name in _MOMENTS),
    "probability/abs_difference",
    *(f"corrected/{name}" for name in ("w", "w2")),
    *(f"gradient/{name}" for name in ("raw", "removed")),
    "position/last/d",
    "position/last/abs_d",
)
PLACE_SUMS = tuple(f"{place}/{name}" for name in ("d", "abs_d") for place in PLACES[:-1])
ROW_SUMS = (*FIRST_SUMS, *SECOND_SUMS, *PLACE_SUMS)
SHIFTED = tuple(f"{level}/{name}" for level in ("token", "sequence") for name in ("w", "w2", "wd"))
"""Sums relative to the batch's maximum, which are made in the end and stand behind the others' totals."""

FIRST_COUNTS = (
    "token/n",
    "fingerprint",
    "masked_in",
    "nan",
    "inf",
    "positive_logp",
    "equal",
    "zero_train_logp",
    "zero_rollout_logp",
    "lag/n",
    "token/overflow",
    "sequence/n",
    "rows_empty",
    "row/over_1nat",
    "sequence/overflow",
    "nothing",
)
SECOND_COUNTS = (
    "outside/0.9_1.1",
    "outside/0.5_2",
    "corrected/n",
    "modified/low",
    "modified/high",
    "disagreements",
    *(f"{sign}_advantage/{what}" for sign in ("positive", "negative") for what in ("n", "modified")),
    "position/last/n",
)
PLACE_COUNTS = tuple(f"{place}/n" for place in PLACES[:-1])
ROW_COUNTS = (*FIRST_COUNTS, *SECOND_COUNTS, *PLACE_COUNTS)

FIRST_MAXIMA = (
    *(f"{level}/{which}" for level in ("token", "sequence", "geometric") for which in ("max", "-min")),
    "row/abs_mean_max",
    "generations",
    "nothing",
)
SECOND_MAXIMA = ("probability/abs_max", "corrected/max", "corrected/-min")
ROW_MAXIMA = (*FIRST_MAXIMA, *SECOND_MAXIMA)

TABLES = len(HISTOGRAMS) * N_BUCKETS + len(LENGTH_COUNTS) * N_LENGTHS
"""Integers of all histograms: of log-ratios, the last less that of tokens, then of lengths."""


_COPIES = 64
"""Copies of the histograms, so that rows seldom wait for each other."""


class Batch(NamedTuple):
    """What the kernels read. Where there is nothing another tensor of its type stands for it."""

    train: torch.Tensor  # float32 (B, T)
    rollout: torch.Tensor  # float32 (B, T)
    mask: torch.Tensor  # uint8 (B, T)
    ids: torch.Tensor  # int64 (B, T)
    advantages: torch.Tensor  # float32 (B,)
    has_ids: int
    has_advantages: int

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.train.shape[0]

    @property
    def width(self) -> int:
        """How many columns."""
        return self.train.shape[1]

    @property
    def strides(self) -> tuple[int, int, int]:
        """From row to row of the log-probabilities and the mask."""
        return self.train.stride(0), self.rollout.stride(0), self.mask.stride(0)


class Rows(NamedTuple):
    """What the two passes write."""

    sums: torch.Tensor  # float64 (len(ROW_SUMS), B)
    counts: torch.Tensor  # int64 (len(ROW_COUNTS), B)
    maxima: torch.Tensor  # float64 (len(ROW_MAXIMA), B)
    keys: torch.Tensor  # int64 (3, B), of the row's sum, of the row, and of its worst token
    histograms: torch.Tensor  # int64 (copies, TABLES)
    block_keys: torch.Tensor  # int64 (B, blocks), of the worst token of each SPAN of columns
    block_starts: torch.Tensor  # int32 (B, blocks), valid tokens before it

    @classmethod
    def of(cls, n_rows: int, width: int, device: torch.device) -> Rows:
        """Room for a batch of this shape."""
        n_blocks, wide, whole = -(-width // SPAN), torch.float64, torch.int64
        return cls(
            sums=torch.empty(len(ROW_SUMS), n_rows, dtype=wide, device=device),
            counts=torch.empty(len(ROW_COUNTS), n_rows, dtype=whole, device=device),
            maxima=torch.empty(len(ROW_MAXIMA), n_rows, dtype=wide, device=device),
            keys=torch.empty(3, n_rows, dtype=whole, device=device),
            histograms=torch.zeros(min(n_rows, _COPIES), TABLES, dtype=whole, device=device),
            block_keys=torch.empty(n_rows, n_blocks, dtype=whole, device=device),
            block_starts=torch.empty(n_rows, n_blocks, dtype=torch.int32, device=device),
        )


class Order(NamedTuple):
    """Where each slot's value stands among the totals, int64 by slot."""

    maxima: torch.Tensor
    sums: torch.Tensor
    counts: torch.Tensor

    @classmethod
    def on(cls, device: torch.device) -> Order:
        """For values on a device."""
        wanted = ((MAXIMA, ROW_MAXIMA), (SUMS, (*ROW_SUMS, *SHIFTED)), (COUNTS, ROW_COUNTS))
        return cls(*(torch.tensor(_places(slots, columns), device=device) for slots, columns in wanted))


def _places(slots: tuple[str, ...], columns: tuple[str, ...]) -> list[int]:
    return [columns.index(slot if slot in columns else "nothing") for slot in slots]
