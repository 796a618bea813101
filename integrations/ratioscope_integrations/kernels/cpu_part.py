"""From rows that the CPU's kernel has reduced to a batch's token part."""

from __future__ import annotations

import numpy as np
import torch

from ratioscope.corrected import Corrected, by_advantage
from ratioscope.correction import Correction
from ratioscope.exact import dot
from ratioscope.observation import Observation
from ratioscope.tally import Named, Tally
from ratioscope.token_part import TokenPart
from ratioscope.top import N_TOKENS, Worst
from ratioscope_integrations.kernels.cpu_types import N_TENTHS, N_TURNS, Array, Count, Kept, Sum


def part(
    observation: Observation, correction: Correction | None, weights: torch.Tensor | None, kept: list[Kept]
) -> TokenPart:
    """The rows' numbers, put together.

    Args:
        observation: the batch.
        correction: a rule at the level of tokens, or None.
        weights: those that the loss really uses, if they are known.
        kept: what each thread found; all of them have the same rows.
    """
    rows, row_counts = kept[0].sums, kept[0].counts
    sums, counts = torch.from_numpy(rows), torch.from_numpy(row_counts)
    # A sum is never -0, to which adding nothing would be a change.
    total = dict(zip(Sum._fields, torch.from_numpy(rows.sum(axis=0) + 0.0), strict=True))
    count = dict(zip(Count._fields, torch.from_numpy(row_counts.sum(axis=0)), strict=True))
    tally = Tally(maxima=_maxima(rows, row_counts), sums=_sums(rows, total, count), counts=_counts(count))
    histograms = torch.from_numpy(np.sum([thread.histograms for thread in kept], axis=0))
    n = counts[:, Count.n]
    by_rule = None
    if correction is not None:
        by_rule = Corrected(histograms.sum(dim=0), n, counts[:, Count.low] + counts[:, Count.high])
        _add_rule(tally, sums, total, count, known=weights is not None)
        if observation.advantages is not None:
            by_advantage(tally, observation.advantages, n, by_rule.modified_of_row)
            size = observation.advantages.double().abs()
            tally.sums["gradient/raw"] = dot(size, sums[:, Sum.raw])
            tally.sums["gradient/removed"] = dot(size, sums[:, Sum.removed])
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


def _maxima(rows: Array, row_counts: Array) -> Named:
    gap = rows[:, Sum.difference_max].max() if row_counts[:, Count.n].any() else -np.inf
    found = {
        "token/max": rows[:, Sum.largest].max(),
        "token/-min": -rows[:, Sum.smallest].min(),
        "probability/abs_max": gap,
    }
    return {name: torch.tensor(value) for name, value in found.items()}


def _sums(rows: Array, total: Named, count: Named) -> Named:
    lags = {
        f"lag/{side}/{which}{power}": total[f"{letter * times}_{which}"]
        for side, letter in (("train", "y"), ("rollout", "x"))
        for which in ("first", "second")
        for power, times in (("", 1), ("^2", 2))
    }
    return {
        **{f"token/{name}": total[name] for name in ("d", "abs_d", "d2", "k3", "excess", "excess2", "reverse_k3")},
        **_shifted(rows),
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
    }


def _shifted(rows: Array) -> Named:
    """Sums of exponentials, each row's relative to its own maximum, brought to that of all."""
    high, w, w2, wd = (rows[:, column] for column in (Sum.largest, Sum.w, Sum.w2, Sum.wd))
    with np.errstate(invalid="ignore"):
        shift = np.where(high > -np.inf, high - high.max(), 0.0)
    factor = np.exp(shift)
    found = {"w": w * factor, "w2": w2 * factor * factor, "wd": (wd + shift * w) * factor}
    return {f"token/{name}": torch.tensor(values.sum() + 0.0) for name, values in found.items()}


def _counts(count: Named) -> Named:
    other = {
        "token/n": "n",
        "token/overflow": "overflow",
        "outside/0.9_1.1": "outside_near",
        "outside/0.5_2": "outside_far",
        "lag/n": "pairs",
    }
    same = ("masked_in", "nan", "inf", "positive_logp", "equal", "zero_train_logp", "zero_rollout_logp")
    return {slot: count[name] for slot, name in (other | dict(zip(same, same, strict=True))).items()}


def _add_rule(tally: Tally, sums: torch.Tensor, total: Named, count: Named, *, known: bool) -> None:
    """What the rule did, as :func:`ratioscope.corrected.corrected` has it."""
    tally.counts["corrected/n"] = count["n"]
    tally.counts["modified/low"], tally.counts["modified/high"] = count["low"], count["high"]
    if known:
        tally.counts["disagreements"] = count["disagreements"]
    tally.sums["corrected/w"], tally.sums["corrected/w2"] = total["weight"], total["weight2"]
    tally.maxima["corrected/max"] = sums[:, Sum.weight_max].max()
    tally.maxima["corrected/-min"] = -sums[:, Sum.weight_min].min()


def _places(cells: Array) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`ratioscope.places.place_sums` has them."""
    grid = cells[:, :-1].reshape(3, N_TURNS, N_TENTHS)
    places = np.concatenate([grid.sum(axis=1), grid.sum(axis=2), cells[:, -1:]], axis=1) + 0.0
    return torch.from_numpy(places[:2].flatten()), torch.from_numpy(places[2].astype(np.int64))


def _worst(kept: list[Kept]) -> Worst:
    """The worst of what the threads found."""
    keys = np.concatenate([thread.keys for thread in kept])
    order = np.argsort(keys)[::-1][:N_TOKENS].copy()
    row, column, position = torch.from_numpy(np.concatenate([thread.where for thread in kept], axis=1)[:, order])
    return Worst(row, column, position, torch.from_numpy(keys[order] != np.iinfo(np.int64).min))
