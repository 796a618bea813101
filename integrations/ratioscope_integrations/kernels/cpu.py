"""The kernel for the CPU: rows reduced by compiled code, split over as many threads as torch may use.

It needs numba, which vLLM brings along, and no compiler. Threads are started for one call and end with it, so that a
fork at any other time finds none.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import torch

from ratioscope import histogram
from ratioscope.corrected import Corrected, by_advantage
from ratioscope.correction import Correction
from ratioscope.observation import Observation
from ratioscope.slots import DECILES, TURNS
from ratioscope.tally import Tally
from ratioscope.token_part import TokenPart, is_by_token
from ratioscope.top import MULTIPLIERS, N_TOKENS, Worst, of_advantages, powers_of
from ratioscope_integrations.kernels import cpu_types
from ratioscope_integrations.kernels.cpu_rows import reduce_rows
from ratioscope_integrations.kernels.cpu_types import ROW_COUNTS, ROW_SUMS, Batch, Hash, Kept, Rule

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_MASKS = (torch.bool, torch.uint8, torch.int32, torch.int64)
_A_THREADS_SHARE = 1 << 15
"""Tokens below which one more thread costs more than it saves."""
_AT_ONCE = 1 << 14
"""Tokens that a thread takes at a time; the other cores may be busy, so that shares cannot be told beforehand."""
_SUM, _COUNT = ({name: column for column, name in enumerate(names)} for names in (ROW_SUMS, ROW_COUNTS))


def make() -> CpuKernel:
    """Compiles the kernel.

    Raises:
        ImportError: if numba is not installed.
    """
    kernel = CpuKernel()
    rows = torch.zeros(1, 1)
    kernel(Observation.of(rows, rows, rows.bool()), None, None)  # a call compiles
    return kernel


class CpuKernel:
    """The token part of a batch of float32 or narrower log-probabilities on the CPU.

    Left to the plain path: lists with missing tokens, masks of another kind than bool or integer, and batches with a
    log-ratio beyond 300 nats.
    """

    def __call__(
        self, observation: Observation, correction: Correction | None, applied: torch.Tensor | None
    ) -> TokenPart | None:
        """As :class:`ratioscope.kernels.Kernel` has it."""
        train, rollout, mask = observation.given
        by_token = is_by_token(correction)
        weights = applied.detach() if applied is not None and by_token else None
        fits = (
            train.numel() > 0
            and train.dtype in _FLOATS
            and rollout.dtype in _FLOATS
            and mask.dtype in _MASKS
            and observation.absent is None
            and (weights is None or (weights.dtype == torch.float32 and weights.shape == train.shape))
        )
        if not fits:
            return None
        rule = _rule(correction)
        found = _reduced(observation, rule, weights)
        return None if found is None else _part(observation, correction if by_token else None, weights, *found)


def _rule(correction: Correction | None) -> Rule:
    if not is_by_token(correction):
        return Rule(0, *(np.float32(0.0),) * 4)
    lower, upper = (
        np.float32(infinite if bound is None else bound)
        for bound, infinite in ((correction.lower, -math.inf), (correction.upper, math.inf))
    )
    low, high = correction.log_bounds
    log_lower, log_upper = np.float32(-math.inf if low is None else low), np.float32(math.inf if high is None else high)
    return Rule(1 if correction.action == "truncate" else 2, lower, upper, log_lower, log_upper)


def _reduced(observation: Observation, rule: Rule, weights: torch.Tensor | None) -> tuple[list[Kept], Kept] | None:
    """What each thread found and, the first of them, what stands in all of their rows; None if a row does not fit."""
    train, rollout, mask = observation.given
    n_rows, width = train.shape
    step, back = powers_of(width, train.device)
    hashing = Hash((step * back[0]).numpy(), np.array(MULTIPLIERS, dtype=np.int64))  # from the power of 0 on
    ids = observation.token_ids
    advantage = of_advantages(observation)
    n_threads = max(1, min(torch.get_num_threads(), n_rows, n_rows * width // _A_THREADS_SHARE))
    sums, counts = np.zeros((n_rows, len(ROW_SUMS))), np.zeros((n_rows, len(ROW_COUNTS)), np.int64)
    kept = [
        Kept(
            sums=sums,
            counts=counts,
            histograms=np.zeros((2, histogram.N_BUCKETS), np.int64),
            places=np.zeros((3, len(TURNS) * len(DECILES) + 1)),
            keys=np.full(N_TOKENS, np.iinfo(np.int64).min),
            where=np.zeros((3, N_TOKENS), np.int64),
        )
        for _ in range(n_threads)
    ]
    # Half of the rows at a time, so that what is made of them is smaller than what is given.
    for start in range(0, n_rows, chunk := max(1, (n_rows + 1) // 2)):
        rows = slice(start, start + chunk)
        x, y = train[rows].float(), rollout[rows].float()
        batch = Batch(
            train=_array(x),
            rollout=_array(y),
            mask=_array(mask[rows].to(torch.uint8)),
            ratio=torch.sub(x, y).exp_().numpy(),
            applied=np.empty((len(x), 0), np.float32) if weights is None else _array(weights[rows]),
            token_ids=np.empty((len(x), 0), np.int64) if ids is None else _array(ids[rows]),
            advantage=advantage[rows].numpy(),
        )
        if not _on_threads(batch, start, rule, hashing, kept):
            return None
    return kept, kept[0]


def _array(values: torch.Tensor) -> Any:
    return values.contiguous().numpy()


def _on_threads(batch: Batch, offset: int, rule: Rule, hashing: Hash, kept: list[Kept]) -> bool:
    """Lets threads take a few rows at a time, as fast as each gets on; whether all of them fit."""
    n_rows, width = batch.train.shape
    step = max(1, _AT_ONCE // width)
    starts = iter(range(0, n_rows, step))
    odd: list[int] = []

    def work(found: Kept) -> None:
        for start in starts:  # a range's iterator gives each number once, whoever asks
            if not reduce_rows(start, min(start + step, n_rows), offset, batch, rule, hashing, found):
                odd.append(start)
            if odd:
                return

    threads = [threading.Thread(target=work, args=(found,), daemon=True) for found in kept[1:]]
    for thread in threads:
        thread.start()
    work(kept[0])
    for thread in threads:
        thread.join()
    return not odd


def _part(
    observation: Observation, correction: Correction | None, weights: torch.Tensor | None, kept: list[Kept], every: Kept
) -> TokenPart:
    """The rows' numbers, put together."""
    sums, counts = torch.from_numpy(every.sums), torch.from_numpy(every.counts)
    tally = _tally(every.sums, every.counts)
    histograms = torch.from_numpy(np.sum([thread.histograms for thread in kept], axis=0))
    n = counts[:, _COUNT["n"]]
    by_rule = None
    if correction is not None:
        by_rule = Corrected(histograms.sum(dim=0), n, counts[:, _COUNT["low"]] + counts[:, _COUNT["high"]])
        _add_rule(tally, every, by_rule, observation.advantages, known=weights is not None)
    return TokenPart(
        tally=tally,
        histogram=histograms[0],
        n=n,
        d=sums[:, _SUM["d"]],
        abs_d=sums[:, _SUM["abs_d"]],
        train=sums[:, _SUM["y"]],
        rollout=sums[:, _SUM["x"]],
        fingerprint=counts[:, _COUNT["fingerprint"]],
        places=_places(np.sum([thread.places for thread in kept], axis=0)),
        worst=_worst(kept),
        corrected=by_rule,
    )


def _tally(rows: Any, row_counts: Any) -> Tally:
    """The tokens' slots. A sum is never -0, to which adding nothing would be a change."""
    total = dict(zip(ROW_SUMS, torch.from_numpy(rows.sum(axis=0) + 0.0), strict=True))
    count = dict(zip(ROW_COUNTS, torch.from_numpy(row_counts.sum(axis=0)), strict=True))
    high, low = (torch.tensor(value) for value in (rows[:, _SUM["max"]].max(), -rows[:, _SUM["min"]].min()))
    # Each row's exponentials are relative to its own maximum, and what is brought to that of all is at most as large.
    with np.errstate(invalid="ignore"):
        shift = np.where(rows[:, _SUM["max"]] > -np.inf, rows[:, _SUM["max"]] - rows[:, _SUM["max"]].max(), 0.0)
    w, w2, wd = (rows[:, _SUM[name]] for name in ("w", "w2", "wd"))
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
                rows[:, _SUM["difference_max"]].max() if row_counts[:, _COUNT["n"]].any() else -np.inf
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
            "lag/1": total["lag"],
            "lag/-1": total["-lag"],
        },
        counts={
            "token/n": count["n"],
            "token/overflow": count["overflow"],
            "outside/0.9_1.1": count["outside_near"],
            "outside/0.5_2": count["outside_far"],
            "lag/n": count["lag"],
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
        tally.counts[f"modified/{side}"] = counts[:, _COUNT[side]].sum()
    if known:
        tally.counts["disagreements"] = counts[:, _COUNT["disagreements"]].sum()
    tally.sums["corrected/w"] = rows[:, _SUM["weight"]].sum()
    tally.sums["corrected/w2"] = rows[:, _SUM["weight2"]].sum()
    tally.maxima["corrected/max"] = rows[:, _SUM["weight_max"]].max()
    tally.maxima["corrected/-min"] = -rows[:, _SUM["weight_min"]].min()
    if advantages is not None:
        by_advantage(tally, advantages, by_rule.ratios_of_row, by_rule.modified_of_row)
        size = advantages.double().abs()
        for name in ("raw", "removed"):
            tally.sums[f"gradient/{name}"] = torch.dot(size, rows[:, _SUM[name]].contiguous()) + 0.0


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


assert (N_TOKENS, len(TURNS), len(DECILES)) == (cpu_types.N_KEPT, cpu_types.N_TURNS, cpu_types.N_TENTHS)
