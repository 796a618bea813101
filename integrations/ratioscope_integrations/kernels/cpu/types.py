"""Inputs, buffers and results of the CPU kernel, as its compiled functions pass them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ratioscope.state.slots import DECILES, TURNS

Array = NDArray[Any]

REACH = 300.0
"""Largest absolute log-ratio, in nats; beyond it squares of ratios overflow, and the batch is declined."""

N_TURNS, N_TENTHS = len(TURNS), len(DECILES)

N_LANES = 4
"""Histograms that a thread counts in, in turn, so that equal neighbours do not wait for each other."""


class _Sums(NamedTuple):
    """Columns of float64 for each completion; w, w2 and wd are relative to its largest log-ratio."""

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
    """Columns of int64 for each completion."""

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
    """Values in float64 for a batch; those that end in ``_min`` are negated."""

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
    """Counts in int64 for a batch."""

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
"""Key of an empty slot in the table of worst tokens."""


class Batch(NamedTuple):
    """Some of a batch's completions: float32 ``(rows, width)`` unless a comment states another type."""

    train: Array
    rollout: Array
    mask: Array  # uint8
    ratio: Array  # exp(train - rollout) by torch, with the same bits as in the trainer
    applied: Array  # no columns if unknown
    token_ids: Array  # int64, no columns if unknown
    advantage: Array  # int32 (rows,), bits of the advantages; 0 if unknown
    log_ratio: Array  # zeros, log-ratios are written here; no columns if not wanted


class TokenBounds(NamedTuple):
    """Bounds at the level of tokens; ``acts`` is 0 without any, 1 truncates and 2 masks."""

    acts: int
    lower: np.float32
    upper: np.float32
    log_lower: np.float32
    log_upper: np.float32


class Kept(NamedTuple):
    """Results of one thread, and its buffers for one completion at a time."""

    sums: Array  # float64 (rows, len(Sum))
    counts: Array  # int64 (rows, len(Count))
    histograms: Array  # int32 (N_LANES + 1, buckets): log-ratios, the last one the changes by the rule
    positions: Array  # float64 (3, N_TURNS * N_TENTHS + 1): d, abs(d), tokens; the last cell is the last token's
    keys: Array  # int64 (N_TOKENS,): of the worst tokens, unsorted
    where: Array  # int64 (3, N_TOKENS): their completion, column and position
    logps: Array  # float32 (3, N_TOKENS): their log-ratio, and both log-probabilities
    valid: Array  # uint8 (width,)
    narrow: Array  # float32 (5, width)
    wide: Array  # float64 (2, width)


class Finished(NamedTuple):
    """Totals over all completions of a batch."""

    total: Array  # float64 (len(Sum),)
    counted: Array  # int64 (len(Count),)
    found: Array  # float64 (len(Found),)
    seen: Array  # int64 (len(Seen),)
    single: Array  # float32 (3, rows): sums and means of log-ratios, means of absolute ones
    row_d: Array  # float64 (rows,): the sums of single
    histograms: Array  # int64 (2, buckets): of the first two rows of single
    lengths: Array  # int64 (len(LENGTH_COUNTS), N_LENGTHS)
    rows: Array  # float64 (rows, len(ROW_COLUMNS))
    worst: Array  # int64 (N_ROWS,)


class Row(NamedTuple):
    """Buffers cut to one completion, from its first to its last masked-in token; 0 where a token is not valid."""

    mask: Array  # uint8
    valid: Array  # uint8
    x: Array  # float32, log-probabilities of the engine
    y: Array  # float32, log-probabilities of the trainer
    d: Array  # float32
    ratio: Array  # float32, 1 where not valid
    after: Array  # float32, weights after the rule
    excess: Array  # float64, expm1(abs(d))
    q: Array  # float64, exp(x)
