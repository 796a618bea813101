"""Sums over a batch's tokens: everything that needs a pass over all of them.

This is the reference implementation: torch operations on any device, without a host sync. On a GPU a batch is small and
each operation is a launch, so sums of a kind are taken together over a stack of columns. A kernel of
:mod:`ratioscope.summary.kernels` may take its place, and is tested against it. All arithmetic is float64 on float32
inputs: 1e-12 of the terms is then well above the rounding of any order of summation. A token that is not valid has
log-probabilities and a log-ratio of 0, so sums of terms that vanish at 0 need no mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ratioscope.numerics import OVERFLOW, row_sum
from ratioscope.state.constant_tensors import constant
from ratioscope.state.slots import COUNTS, LAG_SIDES, SUMS
from ratioscope.summary.level_sums import LevelColumns, extremes, sum_names
from ratioscope.summary.positions import Positions, position_sums
from ratioscope.summary.worst_tokens import WorstTokens, completion_numbers, find_worst_tokens

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation

BANDS = ((0.9, 1.1), (0.5, 2.0))
"""Ratios outside of each band are counted, strictly and in float32: near 1, and not far from it."""

SUM_NAMES = (
    *sum_names("token", "token/reverse_k3", "token/mult_prob_error", "probability/abs_difference"),
    *SUMS[SUMS.index("logp/x") : SUMS.index("probability/xy") + 1],
    *(*(f"lag/{side}" for side in LAG_SIDES), "lag/n"),
    *(*(f"lag/{side}^2" for side in LAG_SIDES), "lag/n^2"),
    *("lag/-1", "lag/1"),
)
COUNT_NAMES = (
    *("masked_in", "present", "known", "finite"),
    *COUNTS[COUNTS.index("token/n") : COUNTS.index("lag/n")],
    *("missing", "nan", "inf", "positive_logp"),
)
"""Names of a batch's sums and counts; some are no slots. The invalid tokens of a reason are the difference of two."""


class CompletionSums(NamedTuple):
    """Sums over each completion's valid tokens, ``(B,)``.

    Attributes:
        n: int64, their number.
        d: float64, log-ratios, exact wherever :func:`ratioscope.numerics.row_sum` is.
        abs_d: float64, absolute log-ratios, exact in the same way.
        rollout: float64, the engine's log-probabilities.
        train: float64, the trainer's log-probabilities.
        numbers: int64, see :func:`ratioscope.summary.worst_tokens.completion_numbers`.
    """

    n: torch.Tensor
    d: torch.Tensor
    abs_d: torch.Tensor
    rollout: torch.Tensor
    train: torch.Tensor
    numbers: torch.Tensor


class ReducedTokens(NamedTuple):
    """A batch's tokens, reduced. Lists hold vectors that belong into consecutive slots.

    Attributes:
        extremes: float64 ``(3,)``: the largest log-ratio, the negated smallest, and the largest absolute difference of
            the probabilities; minus infinity without a token.
        sums: float64, sums named in :data:`SUM_NAMES`.
        counts: int64, counts named in :data:`COUNT_NAMES`.
        completions: sums by completion.
        positions: float64, sums by position, as in :data:`ratioscope.summary.positions.POSITION_NAMES`.
        worst: coordinates of the worst tokens.
    """

    extremes: torch.Tensor
    sums: list[torch.Tensor]
    counts: list[torch.Tensor]
    completions: CompletionSums
    positions: torch.Tensor
    worst: WorstTokens


class _Moments(NamedTuple):
    """Sums of both sides' log-probabilities and probabilities.

    Attributes:
        by_completion: float64 ``(B,)``, log-probabilities of engine and trainer.
        sums: float64, slots from ``logp/x`` to ``probability/xy``, then those of :func:`_lags`.
    """

    by_completion: tuple[torch.Tensor, torch.Tensor]
    sums: list[torch.Tensor]


def reduce_tokens(observation: Observation) -> ReducedTokens:
    """Reduces the tokens of a batch that has at least one column."""
    d = observation.log_ratio
    columns = LevelColumns.from_log_ratios(d, observation.valid, n_others=3)
    moments = _moments(observation, columns)
    *_, abs_difference = columns.others
    largest = extremes(torch.stack([d, -d, abs_difference]), observation.invalid)
    columns.fill(largest[0])
    _fill_reverse(columns)
    positions = Positions.from_observation(observation)
    numbers = completion_numbers(observation)
    row_abs_d, row_d = row_sum(columns.rows[1:3]).unbind()
    rollout, train = moments.by_completion
    return ReducedTokens(
        extremes=largest,
        sums=[*columns.sums(), *moments.sums],
        counts=_count(observation),
        completions=CompletionSums(observation.n_valid, row_d, row_abs_d, rollout, train, numbers),
        positions=position_sums(observation, positions, columns.rows[:3]),
        worst=find_worst_tokens(observation, positions, numbers),
    )


def _fill_reverse(columns: LevelColumns) -> None:
    """Fills two further columns: exp(-d) - 1 + d, and exp(abs(d)), 0 where not valid."""
    reverse_k3, abs_ratio, _ = columns.others
    torch.neg(columns.d, out=reverse_k3).expm1_()
    # abs(d) is the larger of d and -d, and so is its exponential.
    torch.maximum(reverse_k3, columns.excess, out=abs_ratio).add_(columns.inside)
    reverse_k3.add_(columns.d)


def _count(observation: Observation) -> list[torch.Tensor]:
    """Counts of tokens by :data:`COUNT_NAMES`."""
    d, valid = observation.log_ratio, observation.valid
    ratio = d.exp()
    low, high = (constant(bounds, d.device, d.dtype, dims=3) for bounds in zip(*BANDS, strict=True))
    masks = [*observation.narrowing]
    # d is 0 exactly where both sides are equal, as float32 has numbers below its smallest normal one.
    train, rollout, equal = ((observation.columns == 0.0) & valid).unbind()
    masks += [equal, train, rollout]
    # A ratio is outside of a band where clamping changes it; it is 1 where not valid.
    # Compared in float32, whose number next to OVERFLOW is the first with an infinite exponential.
    masks += [d >= OVERFLOW, *(ratio.clamp(low, high) != ratio).unbind()]
    counts = torch.stack(masks).sum(dim=(1, 2))
    return [counts, counts[:4] - counts[1:5]]


def _moments(observation: Observation, terms: LevelColumns) -> _Moments:
    """Sums the moments, and fills the last further column with absolute differences of the probabilities."""
    columns = torch.stack([observation.rollout, observation.train] * 2).double()
    logps, probabilities = columns.split(2)
    probabilities.exp_().mul_(terms.inside)
    by_completion = columns.sum(dim=-1)
    squares = columns.square().sum(dim=(1, 2))
    products = (columns[::2] * columns[1::2]).sum(dim=(1, 2))
    x, y, *_ = by_completion.unbind()
    torch.sub(*probabilities.unbind(), out=terms.others[-1]).abs_()
    return _Moments(
        by_completion=(x, y),
        sums=[by_completion.sum(dim=1), squares, products, *_lags(logps, observation.valid)],
    )


def _lags(logps: torch.Tensor, valid: torch.Tensor) -> list[torch.Tensor]:
    """Sums over pairs of neighbouring columns that are both valid: of sides and 1, of their squares, of products.

    A trainer that is one token ahead of the engine has at ``t`` what the engine has at ``t + 1``: then the products of
    lag 1 correlate.

    Args:
        logps: float64 ``(2, B, T)``, of the engine and of the trainer; 0 where not valid.
        valid: bool ``(B, T)``.
    """
    first, second = logps[..., :-1], logps[..., 1:]
    pair = valid[:, :-1] & valid[:, 1:]
    # Products are 0 where either token is not valid; single sides need the mask.
    products = (first * second.flip(0)).sum(dim=(1, 2))
    sides = torch.cat([first, second, pair.unsqueeze(0)]).mul_(pair)
    squares = sides.square().sum(dim=(1, 2))
    return [sides.sum(dim=(1, 2)), squares, products]
