"""A batch's state from what the CPU's kernel has found in its rows."""

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
    """Slots, and the column that each is from."""
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
    """The batch's state.

    Args:
        observation: the batch.
        rule: that at the level of tokens, if any.
        kept: what each thread found; all of them have the same rows.
    """
    rows, counts = kept[0].sums, kept[0].counts
    given = observation.advantages
    advantages = np.empty(0, np.float32) if given is None else given.contiguous().numpy()
    by = _finished(len(rows))
    finish(rows, counts, advantages, rule.acts > 0, by)
    maxima, sums, seen = np.full(len(MAXIMA), -np.inf), np.zeros(len(SUMS)), np.zeros(len(COUNTS), np.int64)
    maxima[_EXTREMES[0]] = by.found[_EXTREMES[1]]
    maxima[_GENERATIONS] = 1.0
    sums[_TOTALS[0]], sums[_FOUND[0]] = by.total[_TOTALS[1]], by.found[_FOUND[1]]
    sums[_MULT_PROB_ERROR] += by.counted[Count.n]
    seen[_COUNTED[0]], seen[_SEEN[0]] = by.counted[_COUNTED[1]], by.seen[_SEEN[1]]
    if rule.acts:
        maxima[_RULED[0]], seen[_RULED_N] = by.found[_RULED[1]], by.counted[Count.n]
    sums[_PLACE_SUMS], seen[_PLACE_COUNTS] = _places(kept)
    histograms = np.empty((len(HISTOGRAMS), N_BUCKETS), np.int64)
    histograms[_TOKENS] = sum(thread.histograms[:-1].sum(axis=0, dtype=np.int64) for thread in kept)
    histograms[_SEQUENCES], histograms[_GEOMETRIC] = by.histograms
    changed = sum(thread.histograms[-1] for thread in kept)
    histograms[_WEIGHTS] = histograms[_TOKENS] + changed if rule.acts else 0
    state = BatchState(
        maxima=torch.from_numpy(maxima),
        sums=torch.from_numpy(sums),
        counts=torch.from_numpy(seen),
        histograms=torch.from_numpy(histograms),
        lengths=torch.from_numpy(by.lengths),
        top=_top(observation, counts[:, Count.n] > 0, by, kept),
    )
    return KernelResult(
        state,
        n=torch.from_numpy(counts[:, Count.n].copy()),
        row_d=torch.from_numpy(by.row_d),
        counts_rule=rule.acts > 0,
    )


def _finished(n_rows: int) -> Finished:
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


def _places(kept: list[Kept]) -> tuple[Array, Array]:
    """As :func:`ratioscope.summary.positions.place_sums` has them."""
    cells = np.sum([thread.places for thread in kept], axis=0)
    grid = cells[:, :-1].reshape(3, N_TURNS, N_TENTHS)
    places = np.concatenate([grid.sum(axis=1), grid.sum(axis=2), cells[:, -1:]], axis=1) + 0.0
    return places[1::-1].reshape(-1), places[2]  # slots have absolute values first


def _top(observation: Observation, live: Array, by: Finished, kept: list[Kept]) -> Top:
    """As :meth:`ratioscope.state.tables.Top.of` has them."""
    largest = np.full(N_LOG_RATIOS, -np.inf)
    ordered = np.sort(by.row_d[live])[: -N_LOG_RATIOS - 1 : -1]
    largest[: len(ordered)] = ordered
    rows = np.zeros((N_ROWS, len(ROW_COLUMNS)))
    worst = by.worst[by.worst >= 0]
    rows[: len(worst)] = by.rows[worst]
    return Top(*map(torch.from_numpy, (largest, _token_table(observation, by.rows, kept), rows)))


def _token_table(observation: Observation, rows: Array, kept: list[Kept]) -> Array:
    """The worst of what the threads found."""
    keys = np.concatenate([thread.keys for thread in kept])
    order = np.argsort(keys)[::-1][:N_TOKENS]
    order = order[keys[order] != NO_KEY]
    row, column, position = np.concatenate([thread.where for thread in kept], axis=1)[:, order]
    table = np.zeros((N_TOKENS, len(TOKEN_COLUMNS)))
    found = table[: len(order)]
    found[:, : rows.shape[1]] = rows[row]
    found[:, 3] = position
    value, train, rollout = np.concatenate([thread.logps for thread in kept], axis=1)[:, order]
    at = rows.shape[1]
    found[:, 0], found[:, at], found[:, at + 1] = value, train, rollout
    found[:, at + 2 :] = _ids(observation, row, column)
    return table


def _ids(observation: Observation, row: Array, column: Array) -> Array | float:
    """Ids of these tokens and their neighbours, in order; -1 where the mask has none."""
    if observation.token_ids is None:
        return -1.0
    ids, mask = observation.token_ids.numpy(), observation.given[2].numpy()
    columns = column[:, None] + _AROUND
    at = row[:, None], np.clip(columns, 0, ids.shape[1] - 1)
    masked_in = (mask[at] != 0) & (columns >= 0) & (columns < ids.shape[1])
    return np.where(masked_in, ids[at], -1)
