"""What the CPU's kernel reads and writes, as its compiled functions pass it around."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ratioscope.state.slots import DECILES, TURNS

Array = NDArray[Any]

REACH = 300.0
"""Log-ratios beyond this are left to the plain path: their ratios' squares would overflow."""

N_TURNS, N_TENTHS = len(TURNS), len(DECILES)

N_LANES = 4
"""Histograms that a thread counts in by turns."""


class _Sums(NamedTuple):
    """Columns of float64 of each row; w, w2 and wd are relative to the row's own largest log-ratio."""

    d: int
    abs_d: int
    d2: int
    x: int
    y: int
    xx: int
    yy: int
    xy: int
    x_first: int
    x_second: int
    y_first: int
    y_second: int
    xx_first: int
    xx_second: int
    yy_first: int
    yy_second: int
    lag_ahead: int
    lag_behind: int
    k3: int
    excess: int
    excess2: int
    w: int
    w2: int
    wd: int
    reverse_k3: int
    mult: int
    q: int
    p: int
    qq: int
    pp: int
    qp: int
    difference: int
    difference_max: int
    largest: int
    smallest: int
    weight: int
    weight2: int
    weight_max: int
    weight_min: int
    raw: int
    removed: int


Sum = _Sums(*range(len(_Sums._fields)))


class _Counts(NamedTuple):
    """Columns of int64 of each row."""

    n: int
    masked_in: int
    nan: int
    inf: int
    positive_logp: int
    equal: int
    zero_train_logp: int
    zero_rollout_logp: int
    pairs: int
    overflow: int
    outside_near: int
    outside_far: int
    low: int
    high: int
    disagreements: int
    number: int


Count = _Counts(*range(len(_Counts._fields)))


class _Found(NamedTuple):
    """Columns of float64 of a batch; those that end in ``_min`` are negated."""

    token_max: int
    token_min: int
    token_w: int
    token_w2: int
    token_wd: int
    difference_max: int
    d: int
    abs_d: int
    d2: int
    k3: int
    excess: int
    excess2: int
    w: int
    w2: int
    wd: int
    sequence_max: int
    sequence_min: int
    geometric: int
    geometric_max: int
    geometric_min: int
    abs_mean_max: int
    perplexity_train: int
    perplexity_rollout: int
    perplexity_ratio: int
    corrected_max: int
    corrected_min: int
    gradient_raw: int
    gradient_removed: int


Found = _Found(*range(len(_Found._fields)))


class _Seen(NamedTuple):
    """Columns of int64 of a batch."""

    live: int
    empty: int
    overflow: int
    over_1nat: int
    positive_n: int
    positive_modified: int
    negative_n: int
    negative_modified: int


Seen = _Seen(*range(len(_Seen._fields)))

NO_KEY = np.iinfo(np.int64).min
"""Key of no token."""


class Batch(NamedTuple):
    """What is read: some of the rows, float32 but as said."""

    train: Array
    rollout: Array
    mask: Array  # uint8
    ratio: Array  # exp(train - rollout), by torch, whose bits the trainer has as well
    applied: Array  # without a column if unknown
    token_ids: Array  # int64, without a column if unknown
    advantage: Array  # int32 of each row, the bits of its advantage; 0 if unknown
    log_ratio: Array  # zeros that log-ratios are written to, without a column if nobody wants them


class TokenBounds(NamedTuple):
    """Bounds at the level of tokens; ``acts`` is 0 without any, 1 truncates and 2 masks."""

    acts: int
    lower: np.float32
    upper: np.float32
    log_lower: np.float32
    log_upper: np.float32


class Kept(NamedTuple):
    """What one thread finds over its rows, and its buffers for one row at a time."""

    sums: Array  # float64 (rows, len(Sum))
    counts: Array  # int64 (rows, len(Count))
    histograms: Array  # int32 (N_LANES + 1, buckets): log-ratios, and at the end what the rule changes
    places: Array  # float64 (3, N_TURNS * N_TENTHS + 1): d, its absolute value, tokens; the last tokens' at the end
    keys: Array  # int64 (N_TOKENS,), of the worst tokens, unsorted
    where: Array  # int64 (3, N_TOKENS): their row, column and position
    logps: Array  # float32 (3, N_TOKENS): their log-ratio, and both sides'
    valid: Array  # uint8 (width,)
    narrow: Array  # float32 (5, width)
    wide: Array  # float64 (2, width)


class Finished(NamedTuple):
    """What follows from all rows."""

    total: Array  # float64 (len(Sum),)
    counted: Array  # int64 (len(Count),)
    found: Array  # float64 (len(Found),)
    seen: Array  # int64 (len(Seen),)
    single: Array  # float32 (3, rows): sums and means of log-ratios, means of absolute ones
    row_d: Array  # float64 (rows,), the first of these
    histograms: Array  # int64 (2, buckets), of the first two of these
    lengths: Array  # int64, as the summary's
    rows: Array  # float64 (rows, len(ROW_COLUMNS))
    worst: Array  # int64 (N_ROWS,)


class Row(NamedTuple):
    """A thread's buffers, cut to one row from its first masked-in token to its last; 0 where a token is not valid."""

    mask: Array  # uint8
    valid: Array  # uint8
    x: Array  # float32, of the engine
    y: Array  # float32, of the trainer
    d: Array  # float32
    ratio: Array  # float32, 1 where not valid
    after: Array  # float32, what a rule leaves
    excess: Array  # float64, expm1(abs(d))
    q: Array  # float64, exp(x)
