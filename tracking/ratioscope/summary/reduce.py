"""The reduction of one batch to a summary's vectors, on the batch's device and without a host sync.

A kernel does it where there is one for the device. The reference implementation reduces tokens first, by
:func:`ratioscope.summary.tokens.reduce_tokens`; completions follow from sums over their tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ratioscope.correction.stages import STAGE_COUNTS
from ratioscope.numerics import FLOAT32_MAX, OVERFLOW
from ratioscope.state import histogram, length_histogram
from ratioscope.state.constant_tensors import constant
from ratioscope.state.slots import COUNTS, HISTOGRAMS, MAXIMA, SUMS
from ratioscope.summary import kernels
from ratioscope.summary.kernels import BatchState
from ratioscope.summary.level_sums import LevelColumns, sum_names
from ratioscope.summary.positions import POSITION_NAMES
from ratioscope.summary.rule_effect import VALUE_NAMES, RuleEffect, count_effect
from ratioscope.summary.tokens import COUNT_NAMES, SUM_NAMES, reduce_tokens
from ratioscope.summary.worst_tokens import top_from_batch

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation
    from ratioscope.correction.rule import CorrectedBatch, Rule
    from ratioscope.summary.tokens import CompletionSums, ReducedTokens

_EXTREMES = slice(MAXIMA.index("corrected/max"), MAXIMA.index("corrected/-min") + 1)
_SUMS = slice(SUMS.index("corrected/w"), SUMS.index("gradient/removed") + 1)
_NORMALIZER = SUMS.index("normalizer/w")
_COUNTS = slice(COUNTS.index("corrected/n"), COUNTS.index("disagreements") + 1)
_STAGE_COUNTS = slice(COUNTS.index(STAGE_COUNTS[0]), COUNTS.index("normalizer/n") + 1)
_WEIGHTS = HISTOGRAMS.index("corrected_log_ratio")
"""Slots of a rule's effect."""

_NAMES = (
    *("token/max", "token/-min", "probability/abs_max"),
    *MAXIMA[MAXIMA.index("sequence/max") : MAXIMA.index("corrected/-min") + 1],
    *("no_maximum", "nothing", "generations"),
    *SUM_NAMES,
    *sum_names("sequence"),
    *SUMS[SUMS.index("geometric/ratio") : SUMS.index("perplexity/ratio") + 1],
    *POSITION_NAMES,
    "normalizer/w",
    *COUNT_NAMES,
    *COUNTS[COUNTS.index("sequence/n") : COUNTS.index("row/over_1nat") + 1],
    *COUNTS[_STAGE_COUNTS],
    *VALUE_NAMES,
)
"""Names of the parts that :func:`_assemble` joins, in their order."""
_INDEX = {name: index for index, name in enumerate(_NAMES)}
_ELSEWHERE = ("noise/", "drift/", "errors")
"""Beginnings of the slots that a batch of ratios has not: noise floor, drift and failures."""


def _index_of(name: str, absent: str) -> int:
    """Index of a slot's part; of an absent one where another batch fills it, and a KeyError where none does."""
    return _INDEX[absent if name.startswith(_ELSEWHERE) else name]


_ORDER = (
    *(_index_of(name, "no_maximum") for name in MAXIMA),
    *(_index_of(name, "nothing") for name in SUMS + COUNTS),
)
"""Index of each slot among the parts."""
_SIGNS = (1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0)
"""Signs of the values of completions in :func:`_reduce_rows`."""


class _Rows(NamedTuple):
    """Statistics of completions with at least one valid token. Lists hold vectors for consecutive slots.

    Attributes:
        extremes: float64 ``(5,)``: largest and negated smallest sum of log-ratios, the same of their mean, and the
            largest mean of absolute values; minus infinity without a completion.
        sums: float64, those of :func:`ratioscope.summary.level_sums.sum_names`, then slots from ``geometric/ratio``
            to ``perplexity/ratio``.
        counts: int64 ``(4,)``, slots from ``sequence/n`` to ``row/over_1nat``.
        live: bool ``(B,)``, completions with a valid token.
        dead: bool ``(B,)``, the others.
        d: float64 ``(B,)``, log-ratios, minus infinity without a valid token.
        mean_d: float64 ``(B,)``, mean log-ratios.
        mean_abs_d: float64 ``(B,)``, mean absolute log-ratios.
    """

    extremes: torch.Tensor
    sums: list[torch.Tensor]
    counts: torch.Tensor
    live: torch.Tensor
    dead: torch.Tensor
    d: torch.Tensor
    mean_d: torch.Tensor
    mean_abs_d: torch.Tensor


def reduce(
    observation: Observation,
    correction: Rule | None,
    *,
    applied: torch.Tensor | None = None,
    corrected: CorrectedBatch | None = None,
) -> BatchState:
    """Reduces one batch.

    Args:
        observation: the batch.
        correction: the rule whose effect is counted.
        applied: the weights that the loss really uses.
        corrected: what the rule did to the batch, where that is known already.
    """
    if not observation.given[0].numel():
        return BatchState.empty(len(observation.given[0]), observation.given[0].device)
    result = kernels.reduced(observation, correction, applied)
    if result is not None and (correction is None or result.counts_rule):
        return result.state
    if result is None:
        tokens = reduce_tokens(observation)
        n = tokens.completions.n
        # Rounded to float32 after an exact sum: the same bits however the batch is padded or split.
        row_d = tokens.completions.d.clamp(-FLOAT32_MAX, FLOAT32_MAX).float()
    else:
        n, row_d = result.n, result.row_d.float()
    observation.take_sequences(n, row_d)
    if corrected is None and correction is not None:
        corrected = correction.correct(observation)
    if corrected is None:
        effect = RuleEffect.none(n)
    else:
        effect = count_effect(corrected, advantages=observation.advantages, applied=applied)
    if result is None:
        return _assemble(observation, tokens, row_d, corrected, effect)  # pyright: ignore[reportPossiblyUnboundVariable]
    return _with_effect(result.state, n, corrected, effect)


def _with_effect(
    state: BatchState, n: torch.Tensor, corrected: CorrectedBatch | None, effect: RuleEffect
) -> BatchState:
    """A kernel's state, which does not have what the rule did, with that."""
    state = state._replace(
        maxima=state.maxima.clone(),
        sums=state.sums.clone(),
        counts=state.counts.clone(),
        histograms=state.histograms.clone(),
    )
    state.maxima[_EXTREMES], state.sums[_SUMS], state.sums[_NORMALIZER] = (
        effect.extremes,
        effect.sums,
        effect.normalizer,
    )
    state.counts[_COUNTS], state.counts[_STAGE_COUNTS] = effect.counts, effect.stage_counts
    if corrected is not None:
        part = corrected.log_weights.flatten(), corrected.positive_mask.flatten()
        state.histograms[_WEIGHTS] = histogram.count([part])[0]
    return state._replace(lengths=length_histogram.count(n, effect.ratios_by_row, effect.modified_by_row))


def _assemble(
    observation: Observation,
    tokens: ReducedTokens,
    row_d: torch.Tensor,
    corrected: CorrectedBatch | None,
    effect: RuleEffect,
) -> BatchState:
    """Joins all parts in the order of the slots."""
    completions, n = tokens.completions, tokens.completions.n
    rows = _reduce_rows(completions, row_d)
    device = n.device
    fill = constant((-torch.inf, 0.0, 1.0), device, torch.float64)  # this batch is one generation
    maxima = [tokens.extremes, rows.extremes, effect.extremes, fill]
    sums = [*tokens.sums, *rows.sums, tokens.positions, effect.normalizer]
    counts = [*tokens.counts, rows.counts, effect.stage_counts, effect.values]
    # Counts below 2**53 are exact in float64, so one selection puts all parts in the order of the slots.
    slots = torch.cat([*maxima, *sums, *counts]).index_select(0, constant(_ORDER, device, torch.int64))
    all_maxima, all_sums, all_counts = slots.split((len(MAXIMA), len(SUMS), len(COUNTS)))
    return BatchState(
        maxima=all_maxima,
        sums=all_sums.add_(0.0),  # never -0, to which adding nothing would be a change
        counts=all_counts.to(torch.int64),
        histograms=_histograms(observation, row_d, rows.mean_d.float(), rows.live, corrected),
        lengths=length_histogram.count(n, effect.ratios_by_row, effect.modified_by_row),
        top=top_from_batch(observation, tokens.worst, completions.numbers, n, rows.dead, rows.d, rows.mean_abs_d),
    )


def _reduce_rows(completions: CompletionSums, row_d: torch.Tensor) -> _Rows:
    live = completions.n > 0
    dead = ~live
    columns = LevelColumns.from_log_ratios(row_d, live)
    d, train, rollout = columns.d, completions.train, completions.rollout
    # One division and one exponential for all: the signs are those of the maxima, then those of the perplexities.
    values = torch.stack([d, d, d, d, completions.abs_d, d, train, rollout, completions.d])
    values[2:].div_(completions.n.clamp(min=1))
    _, _, mean_d, _, mean_abs_d, *_ = values.unbind()
    signed = (values * constant(_SIGNS, d.device, d.dtype, dims=2)).masked_fill_(dead, -torch.inf)
    largest = signed[:5].amax(dim=1)
    exponentials = signed[5:].exp_().sum(dim=1)
    columns.fill(largest[0])
    counts = torch.stack([live, dead, row_d > OVERFLOW, mean_abs_d > 1.0]).sum(dim=1)
    return _Rows(largest, [*columns.sums(), exponentials], counts, live, dead, signed[0], mean_d, mean_abs_d)


def _histograms(
    observation: Observation,
    row_d: torch.Tensor,
    means: torch.Tensor,
    live: torch.Tensor,
    corrected: CorrectedBatch | None,
) -> torch.Tensor:
    """All histograms, int64 ``(len(HISTOGRAMS), N_BUCKETS)``.

    Args:
        observation: the batch.
        row_d: float32 ``(B,)``, sums of log-ratios.
        means: float32 ``(B,)``, means of log-ratios.
        live: bool ``(B,)``.
        corrected: the batch under the rule.
    """
    parts = [(observation.log_ratio.flatten(), observation.valid.flatten()), (row_d, live), (means, live)]
    if corrected is not None:
        parts.append((corrected.log_weights.flatten(), corrected.positive_mask.flatten()))
    else:
        parts.append((row_d[:0], live[:0]))
    return histogram.count(parts)
