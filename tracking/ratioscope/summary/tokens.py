"""What a batch's tokens add up to: everything that needs a pass over all of them.

This is the plain path, a torch operation at a time, on any device and without a host sync. :mod:`ratioscope.kernels`
may have a faster one in its place; this one is what it is tested against. All arithmetic is float64 on float32 inputs.
Positions without a valid token hold a log-ratio of 0, so sums of terms that vanish at 0 need no mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ratioscope.numerics import dot, row_sum
from ratioscope.state import histogram
from ratioscope.summary.alignment import lag_sums
from ratioscope.summary.positions import Positions, no_place_sums, place_sums
from ratioscope.summary.tally import BANDS, Named, Tally, largest
from ratioscope.summary.worst_tokens import WorstTokens, completion_numbers, find_worst_tokens

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation


@dataclass(frozen=True)
class TokenPart:
    """A batch's tokens, reduced.

    Attributes:
        tally: what belongs to tokens, by slot name.
        histogram: int64 ``(N_BUCKETS,)`` of log-ratios.
        n: int64 ``(B,)`` valid tokens of each row.
        d: float64 ``(B,)`` sums of log-ratios, exact wherever :func:`ratioscope.numerics.row_sum` is.
        abs_d: the same of absolute log-ratios.
        train: float64 ``(B,)`` sums of the trainer's log-probabilities.
        rollout: float64 ``(B,)`` sums of the engine's.
        numbers: int64 ``(B,)``, see :func:`ratioscope.summary.worst_tokens.completion_numbers`.
        places: sums and counts by place.
        worst: where the worst tokens are.
    """

    tally: Tally
    histogram: torch.Tensor
    n: torch.Tensor
    d: torch.Tensor
    abs_d: torch.Tensor
    train: torch.Tensor
    rollout: torch.Tensor
    numbers: torch.Tensor
    places: tuple[torch.Tensor, torch.Tensor]
    worst: WorstTokens


def token_part(observation: Observation) -> TokenPart:
    """Reduces the tokens of one batch."""
    valid, device = observation.valid, observation.valid.device
    d = observation.log_ratio.double()
    abs_d = d.abs()
    tally = Tally(counts=_validity(observation))
    tally.extremes("token", observation.log_ratio, valid)
    inside = valid.double()
    tally.level("token", d, abs_d, inside)
    _tokens(tally, observation, d, abs_d, inside)
    if valid.shape[-1]:
        places = Positions.from_observation(observation)
        numbers = completion_numbers(observation, places)
        by_place = place_sums(observation, places, d, abs_d)
        worst = find_worst_tokens(observation, places, numbers)
    else:
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        numbers = valid.sum(dim=-1)
        by_place, worst = no_place_sums(device), WorstTokens(nothing, nothing, nothing, nothing > 0)
    return TokenPart(
        tally=tally,
        histogram=histogram.count(observation.log_ratio, valid),
        n=observation.n_valid,
        d=observation.row_log_ratio,
        abs_d=row_sum(abs_d),
        train=observation.train.double().sum(dim=-1),
        rollout=observation.rollout.double().sum(dim=-1),
        numbers=numbers,
        places=by_place,
        worst=worst,
    )


def _validity(observation: Observation) -> Named:
    return {
        "token/n": observation.valid.sum(),
        "masked_in": observation.masked_in.sum(),
        "nan": observation.nan.sum(),
        "inf": observation.infinite.sum(),
        "positive_logp": observation.positive.sum(),
        "missing": observation.missing.sum(),
        "equal": (observation.valid & (observation.train == observation.rollout)).sum(),
        "zero_train_logp": (observation.valid & (observation.train == 0.0)).sum(),
        "zero_rollout_logp": (observation.valid & (observation.rollout == 0.0)).sum(),
    }


def _tokens(tally: Tally, observation: Observation, d: torch.Tensor, abs_d: torch.Tensor, inside: torch.Tensor) -> None:
    x, y = observation.rollout.double(), observation.train.double()
    lagged, tally.counts["lag/n"] = lag_sums(observation)
    p, q = y.exp() * inside, x.exp() * inside
    difference = (p - q).abs()
    tally.sums.update(
        {
            "token/reverse_k3": ((-d).expm1() + d).sum(),
            "token/mult_prob_error": abs_d.expm1().sum() + tally.counts["token/n"],
            **_second_moments("logp", x, y),
            **lagged,
            **_second_moments("probability", q, p),
            "probability/abs_difference": difference.sum(),
        }
    )
    if difference.numel():
        tally.maxima["probability/abs_max"] = largest(difference.max(), tally.counts["token/n"] > 0)
    ratio = observation.log_ratio.exp()
    for low, high in BANDS:
        tally.counts[f"outside/{low:g}_{high:g}"] = ((ratio < low) | (ratio > high)).sum()


def _second_moments(name: str, x: torch.Tensor, y: torch.Tensor) -> Named:
    return {
        f"{name}/x": x.sum(),
        f"{name}/y": y.sum(),
        f"{name}/xx": dot(x, x),
        f"{name}/yy": dot(y, y),
        f"{name}/xy": dot(x, y),
    }
