"""From rows that the CPU's kernel has reduced to a batch's token part."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ratioscope.corrected import Corrected, by_advantage
from ratioscope.correction import Correction
from ratioscope.observation import Observation
from ratioscope.slots import DECILES, TURNS
from ratioscope.tally import Tally
from ratioscope.token_part import TokenPart
from ratioscope.top import N_TOKENS, Worst
from ratioscope_integrations.kernels.cpu_types import Count, Kept, Sum


def part(
    observation: Observation, correction: Correction | None, weights: torch.Tensor | None, kept: list[Kept], every: Kept
) -> TokenPart:
    """The rows' numbers, put together."""
    sums, counts = torch.from_numpy(every.sums), torch.from_numpy(every.counts)
    tally = _tally(every.sums, every.counts)
    histograms = torch.from_numpy(np.sum([thread.histograms for thread in kept], axis=0))
    n = counts[:, Count.n]
    by_rule = None
    if correction is not None:
        by_rule = Corrected(histograms.sum(dim=0), n, counts[:, Count.low] + counts[:, Count.high])
        _add_rule(tally, every, by_rule, observation.advantages, known=weights is not None)
    return TokenPart(
        tally=tally,
        histogram=histograms[0],
        n=n,
        d=sums[:, Sum.d],
        abs_d=sums[:, Sum.abs_d],
        train=sums[:, Sum.y],
        rollout=sums[:, Sum.x],
        fingerprint=counts[:, Count.fingerprint],
        places=_places(np.sum([thread.places for thread in kept], axis=0)),
        worst=_worst(kept),
        corrected=by_rule,
    )


def _tally(rows: Any, row_counts: Any) -> Tally:
    """The tokens' slots. A sum is never -0, to which adding nothing would be a change."""
    total = dict(zip(Sum._fields, torch.from_numpy(rows.sum(axis=0) + 0.0), strict=True))
    count = dict(zip(Count._fields, torch.from_numpy(row_counts.sum(axis=0)), strict=True))
    high, low = (torch.tensor(value) for value in (rows[:, Sum.largest].max(), -rows[:, Sum.smallest].min()))
    # Each row's exponentials are relative to its own maximum, and what is brought to that of all is at most as large.
    with np.errstate(invalid="ignore"):
        shift = np.where(rows[:, Sum.largest] > -np.inf, rows[:, Sum.largest] - rows[:, Sum.largest].max(), 0.0)
    w, w2, wd = (rows[:, getattr(Sum, name)] for name in ("w", "w2", "wd"))
    factor = np.exp(shift)
    shifted = {
        "w": (w * factor).sum(),
        "w2": (w2 * factor * factor).sum(),
        "wd": ((wd + shift * w) * factor).sum() + 0.0,
    }
    levels = ("d", "abs_d", "d2", "k3", "excess", "excess2")
    lags = {
        f"lag/{side}/{which}{power}": total[f"{letter * times}_{which}"]
        for side, letter in (("train", "y"), ("rollout", "x"))
        for which in ("first", "second")
        for power, times in (("", 1), ("^2", 2))
    }
    return Tally(
        maxima={
            "token/max": high,
            "token/-min": low,
            "probability/abs_max": torch.tensor(
                rows[:, Sum.difference_max].max() if row_counts[:, Count.n].any() else -np.inf
            ),
        },
        sums={
            **{f"token/{name}": total[name] for name in levels},
            **{f"token/{name}": torch.tensor(value) for name, value in shifted.items()},
            "token/reverse_k3": total["reverse_k3"],
            "token/mult_prob_error": total["mult"] + count["n"],
            **{f"logp/{name}": total[name] for name in ("x", "y", "xx", "yy", "xy")},
            "probability/x": total["q"],
            "probability/y": total["p"],
            "probability/xx": total["qq"],
            "probability/yy": total["pp"],
            "probability/xy": total["qp"],
            "probability/abs_difference": total["difference"],
            **lags,
            "lag/1": total["lag_ahead"],
            "lag/-1": total["lag_behind"],
        },
        counts={
            "token/n": count["n"],
            "token/overflow": count["overflow"],
            "outside/0.9_1.1": count["outside_near"],
            "outside/0.5_2": count["outside_far"],
            "lag/n": count["pairs"],
            **{
                name: count[name]
                for name in (
                    "masked_in",
                    "nan",
                    "inf",
                    "positive_logp",
                    "equal",
                    "zero_train_logp",
                    "zero_rollout_logp",
                )
            },
        },
    )


def _add_rule(tally: Tally, every: Kept, by_rule: Corrected, advantages: torch.Tensor | None, *, known: bool) -> None:
    """What the rule did, as :func:`ratioscope.corrected.corrected` has it."""
    rows, counts = torch.from_numpy(every.sums), torch.from_numpy(every.counts)
    tally.counts["corrected/n"] = tally.counts["token/n"]
    for side in ("low", "high"):
        tally.counts[f"modified/{side}"] = counts[:, getattr(Count, side)].sum()
    if known:
        tally.counts["disagreements"] = counts[:, Count.disagreements].sum()
    tally.sums["corrected/w"] = rows[:, Sum.weight].sum()
    tally.sums["corrected/w2"] = rows[:, Sum.weight2].sum()
    tally.maxima["corrected/max"] = rows[:, Sum.weight_max].max()
    tally.maxima["corrected/-min"] = -rows[:, Sum.weight_min].min()
    if advantages is not None:
        by_advantage(tally, advantages, by_rule.ratios_of_row, by_rule.modified_of_row)
        size = advantages.double().abs()
        for name in ("raw", "removed"):
            tally.sums[f"gradient/{name}"] = torch.dot(size, rows[:, getattr(Sum, name)].contiguous()) + 0.0


def _places(cells: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`ratioscope.places.place_sums` has them."""
    grid = cells[:, :-1].reshape(3, len(TURNS), len(DECILES))
    places = np.concatenate([grid.sum(axis=1), grid.sum(axis=2), cells[:, -1:]], axis=1) + 0.0
    return torch.from_numpy(places[:2].flatten()), torch.from_numpy(places[2].astype(np.int64))


def _worst(kept: list[Kept]) -> Worst:
    """The worst of what the threads found."""
    keys = np.concatenate([thread.keys for thread in kept])
    order = np.argsort(keys)[::-1][:N_TOKENS].copy()
    row, column, position = torch.from_numpy(np.concatenate([thread.where for thread in kept], axis=1)[:, order])
    return Worst(row, column, position, torch.from_numpy(keys[order] != np.iinfo(np.int64).min))
