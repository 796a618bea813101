"""State of a batch, from the CPU kernel's results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ratioscope.state.histogram import N_BUCKETS
from ratioscope.state.length_histogram import LENGTH_COUNTS, N_LENGTHS
from ratioscope.state.slots import (
    COUNTS,
    HISTOGRAMS,
    MAXIMA,
    N_LOG_RATIOS,
    N_ROWS,
    N_TOKENS,
    PLACE_COUNTS,
    PLACE_SUMS,
    SUMS,
)
from ratioscope.state.tables import Top
from ratioscope.state.worst import N_AFTER, N_BEFORE, ROW_COLUMNS, TOKEN_COLUMNS
from ratioscope.summary.kernels import BatchState, KernelResult
from ratioscope_integrations.kernels.cpu.finish import finish
from ratioscope_integrations.kernels.cpu.types import (
    N_TENTHS,
    N_TURNS,
    NO_KEY,
    Array,
    Count,
    Finished,
    Found,
    Kept,
    Seen,
    Sum,
    TokenBounds,
)

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation


def _columns(names: tuple[str, ...], fields: tuple[str, ...], by_slot: dict[str, str]) -> tuple[Array, Array]:
    """Indices of slots, and of the columns that they are copied from."""
    slots, columns = [names.index(slot) for slot in by_slot], [fields.index(field) for field in by_slot.values()]
    return np.array(slots), np.array(columns)


_TOTALS = _columns(
    SUMS,
    Sum._fields,
    {f"token/{name}": name for name in ("d", "abs_d", "d2", "k3", "excess", "excess2", "reverse_k3")}
    | {"token/mult_prob_error": "mult", "probability/abs_difference": "difference"}
    | {f"logp/{name}": name for name in ("x", "y", "xx", "yy", "xy")}
    | {"probability/x": "q", "probability/y": "p"}
    | {"probability/xx": "qq", "probability/yy": "pp", "probability/xy": "qp"}
    | {
        f"lag/{side}/{which}{power}": f"{letter * times}_{which}"
        for side, letter in (("train", "y"), ("rollout", "x"))
        for which in ("first", "second")
        for power, times in (("", 1), ("^2", 2))
    }
    | {"lag/1": "lag_ahead", "lag/-1": "lag_behind"}
    | {"corrected/w": "weight", "corrected/w2": "weight2"},
)
_FOUND = _columns(
    SUMS,
    Found._fields,
    {f"sequence/{name}": name for name in ("d", "abs_d", "d2", "k3", "excess", "excess2", "w", "w2", "wd")}
    | {f"token/{name}": f"token_{name}" for name in ("w", "w2", "wd")}
    | {"geometric/ratio": "geometric"}
    | {f"perplexity/{name}": f"perplexity_{name}" for name in ("train", "rollout", "ratio")}
    | {f"gradient/{name}": f"gradient_{name}" for name in ("raw", "removed")},
)
_EXTREMES = _columns(
    MAXIMA,
    Found._fields,
    {f"{level}/max": f"{level}_max" for level in ("token", "sequence", "geometric")}
    | {f"{level}/-min": f"{level}_min" for level in ("token", "sequence", "geometric")}
    | {"probability/abs_max": "difference_max", "row/abs_mean_max": "abs_mean_max"},
)
_COUNTED = _columns(
    COUNTS,
    Count._fields,
    {name: name for name in Count._fields if name in COUNTS}
    | {"token/n": "n", "token/overflow": "overflow", "lag/n": "pairs"}
    | {"outside/0.9_1.1": "outside_near", "outside/0.5_2": "outside_far"}
    | {"modified/low": "low", "modified/high": "high"},
)
_SEEN = _columns(
    COUNTS,
    Seen._fields,
    {"sequence/n": "live", "rows_empty": "empty", "sequence/overflow": "overflow", "row/over_1nat": "over_1nat"}
    | {f"{side}_advantage/{what}": f"{side}_{what}" for side in ("positive", "negative") for what in ("n", "modified")},
)
_RULED = _columns(MAXIMA, Found._fields, {"corrected/max": "corrected_max", "corrected/-min": "corrected_min"})
_RULED_N = COUNTS.index("corrected/n")
_GENERATIONS, _MULT_PROB_ERROR = MAXIMA.index("generations"), SUMS.index("token/mult_prob_error")
_PLACE_SUMS = slice(SUMS.index(PLACE_SUMS[0]), SUMS.index(PLACE_SUMS[-1]) + 1)
_PLACE_COUNTS = slice(COUNTS.index(PLACE_COUNTS[0]), COUNTS.index(PLACE_COUNTS[-1]) + 1)
_TOKENS, _SEQUENCES, _GEOMETRIC, _WEIGHTS = (
    HISTOGRAMS.index(f"{name}_log_ratio") for name in ("token", "sequence", "geometric", "corrected")
)
_AROUND = np.arange(-N_BEFORE, N_AFTER + 1)


def reduced(observation: Observation, rule: TokenBounds, kept: list[Kept]) -> KernelResult:
    """State of a batch.

    Args:
        observation: the batch.
        rule: bounds by token, if there are any.
        kept: result of each thread; all of them share ``sums`` and ``counts``.
    """
    rows, counts = kept[0].sums, kept[0].counts
    given, acts = observation.advantages, rule.acts > 0
    advantages = np.empty(0, np.float32) if given is None else given.contiguous().numpy()
    finished = _allocate(len(rows))
    finish(rows, counts, advantages, acts, finished)
    maxima, sums, slots = _slots(finished, acts)
    sums[_PLACE_SUMS], slots[_PLACE_COUNTS] = _position_sums(kept)
    state = BatchState(
        maxima=torch.from_numpy(maxima),
        sums=torch.from_numpy(sums),
        counts=torch.from_numpy(slots),
        histograms=torch.from_numpy(_histograms(finished, kept, acts)),
        lengths=torch.from_numpy(finished.lengths),
        top=_top(observation, counts[:, Count.n] > 0, finished, kept),
    )
    n = torch.from_numpy(counts[:, Count.n].copy())
    return KernelResult(state, n=n, row_d=torch.from_numpy(finished.row_d), counts_rule=acts)


def _slots(finished: Finished, acts: bool) -> tuple[Array, Array, Array]:
    """Maxima, sums and counts in the order of the state's slots, without those by position."""
    maxima, sums, counts = np.full(len(MAXIMA), -np.inf), np.zeros(len(SUMS)), np.zeros(len(COUNTS), np.int64)
    maxima[_EXTREMES[0]] = finished.found[_EXTREMES[1]]
    maxima[_GENERATIONS] = 1.0
    sums[_TOTALS[0]], sums[_FOUND[0]] = finished.total[_TOTALS[1]], finished.found[_FOUND[1]]
    sums[_MULT_PROB_ERROR] += finished.counted[Count.n]  # exp(abs(d)) = expm1(abs(d)) + 1, summed over n tokens
    counts[_COUNTED[0]], counts[_SEEN[0]] = finished.counted[_COUNTED[1]], finished.seen[_SEEN[1]]
    if acts:
        maxima[_RULED[0]], counts[_RULED_N] = finished.found[_RULED[1]], finished.counted[Count.n]
    return maxima, sums, counts


def _histograms(finished: Finished, kept: list[Kept], acts: bool) -> Array:
    """Histograms of the state; that of weights is the one of tokens with the rule's changes, or 0 without a rule."""
    histograms = np.empty((len(HISTOGRAMS), N_BUCKETS), np.int64)
    histograms[_TOKENS] = sum(thread.histograms[:-1].sum(axis=0, dtype=np.int64) for thread in kept)
    histograms[_SEQUENCES], histograms[_GEOMETRIC] = finished.histograms
    changed = sum(thread.histograms[-1] for thread in kept)
    histograms[_WEIGHTS] = histograms[_TOKENS] + changed if acts else 0
    return histograms


def _allocate(n_rows: int) -> Finished:
    return Finished(
        total=np.zeros(len(Sum)),
        counted=np.zeros(len(Count), np.int64),
        found=np.zeros(len(Found)),
        seen=np.zeros(len(Seen), np.int64),
        single=np.empty((3, n_rows), np.float32),
        row_d=np.empty(n_rows),
        histograms=np.zeros((2, N_BUCKETS), np.int64),
        lengths=np.zeros((len(LENGTH_COUNTS), N_LENGTHS), np.int64),
        rows=np.empty((n_rows, len(ROW_COLUMNS))),
        worst=np.full(N_ROWS, -1),
    )


def _position_sums(kept: list[Kept]) -> tuple[Array, Array]:
    """Sums and counts by position, equal to :mod:`ratioscope.summary.positions`."""
    cells = np.sum([thread.positions for thread in kept], axis=0)
    grid = cells[:, :-1].reshape(3, N_TURNS, N_TENTHS)
    positions = np.concatenate([grid.sum(axis=1), grid.sum(axis=2), cells[:, -1:]], axis=1) + 0.0  # no -0
    return positions[1::-1].reshape(-1), positions[2]  # slots have absolute values first


def _top(observation: Observation, live: Array, finished: Finished, kept: list[Kept]) -> Top:
    """Largest sums of log-ratios, worst tokens and worst completions, in order."""
    largest = np.full(N_LOG_RATIOS, -np.inf)
    ordered = np.sort(finished.row_d[live])[: -N_LOG_RATIOS - 1 : -1]
    largest[: len(ordered)] = ordered
    rows = np.zeros((N_ROWS, len(ROW_COLUMNS)))
    worst = finished.worst[finished.worst >= 0]
    rows[: len(worst)] = finished.rows[worst]
    return Top(*map(torch.from_numpy, (largest, _token_table(observation, finished.rows, kept), rows)))


def _token_table(observation: Observation, rows: Array, kept: list[Kept]) -> Array:
    """Table of the worst tokens of all threads, largest first."""
    keys = np.concatenate([thread.keys for thread in kept])
    order = np.argsort(keys)[::-1][:N_TOKENS]
    order = order[keys[order] != NO_KEY]
    row, column, position = np.concatenate([thread.where for thread in kept], axis=1)[:, order]
    table = np.zeros((N_TOKENS, len(TOKEN_COLUMNS)))
    filled = table[: len(order)]
    filled[:, : rows.shape[1]] = rows[row]
    filled[:, 3] = position
    value, train, rollout = np.concatenate([thread.logps for thread in kept], axis=1)[:, order]
    end = rows.shape[1]
    filled[:, 0], filled[:, end], filled[:, end + 1] = value, train, rollout
    filled[:, end + 2 :] = _ids(observation, row, column)
    return table


def _ids(observation: Observation, row: Array, column: Array) -> Array | float:
    """Ids of tokens and their neighbours, in order; -1 outside of the mask."""
    if observation.token_ids is None:
        return -1.0
    ids, mask = observation.token_ids.numpy(), observation.given[2].numpy()
    columns = column[:, None] + _AROUND
    cells = row[:, None], np.clip(columns, 0, ids.shape[1] - 1)
    masked_in = (mask[cells] != 0) & (columns >= 0) & (columns < ids.shape[1])
    return np.where(masked_in, ids[cells], -1)
