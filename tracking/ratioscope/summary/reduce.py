"""The reduction of one batch to a summary's vectors, on the batch's device and without a host sync.

A kernel does it where there is one for the device. On the plain path tokens are reduced first, by
:func:`ratioscope.summary.tokens.token_part`; rows follow from sums over their tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ratioscope.correction.stages import STAGE_COUNTS
from ratioscope.state import histogram, length_histogram
from ratioscope.state.arrays import State
from ratioscope.state.slots import COUNTS, HISTOGRAMS, MAXIMA, PLACE_COUNTS, PLACE_SUMS, SUMS
from ratioscope.state.tables import Top
from ratioscope.summary import kernels
from ratioscope.summary.rule_effect import count_effect
from ratioscope.summary.stacking import joined, stacked
from ratioscope.summary.tally import Tally, largest
from ratioscope.summary.tokens import TokenPart, token_part
from ratioscope.summary.worst_tokens import top_from_batch

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation
    from ratioscope.correction.rule import CorrectedBatch, Rule
    from ratioscope.state.arrays import Reduced


def reduce(
    observation: Observation,
    correction: Rule | None,
    *,
    applied: torch.Tensor | None = None,
    corrected: CorrectedBatch | None = None,
) -> State:
    """Reduces one batch to its state.

    Args:
        observation: the batch.
        correction: the rule whose effect is counted.
        applied: the weights that the loss really uses.
        corrected: what the rule did to the batch, where that is known already.
    """
    result = kernels.reduced(observation, correction, applied)
    if corrected is None and correction is not None:
        corrected = correction.correct(observation)
    if result is None:
        return _rows(token_part(observation), observation, corrected, applied)
    if corrected is None or result.counts_rule:
        return result.state
    observation.take_sequences(result.n, result.row_d.float())
    return _ruled(result, observation, corrected, applied)


def _ruled(found: Reduced, observation: Observation, corrected: CorrectedBatch, applied: torch.Tensor | None) -> State:
    """A kernel's state, with what the rule did."""
    tally, state, device = Tally(), found.state, found.n.device
    effect = count_effect(tally, corrected, advantages=observation.advantages, applied=applied)
    stages = {} if effect.stage_counts is None else {STAGE_COUNTS: effect.stage_counts}
    histograms = state.histograms.clone()
    histograms[HISTOGRAMS.index("corrected_log_ratio")] = effect.histogram
    return state._replace(
        maxima=torch.maximum(state.maxima, stacked(MAXIMA, tally.maxima, -torch.inf, torch.float64, device)),
        sums=state.sums + stacked(SUMS, tally.sums, 0.0, torch.float64, device),
        counts=state.counts + joined(COUNTS, tally.counts, 0, torch.int64, device, stages),
        histograms=histograms,
        lengths=length_histogram.count(found.n, effect.ratios_by_row, effect.modified_by_row),
    )


def _rows(
    part: TokenPart, observation: Observation, corrected: CorrectedBatch | None, applied: torch.Tensor | None
) -> State:
    """The state that follows from a batch's tokens."""
    tally, device = part.tally, part.n.device
    live = part.n > 0
    divisor = part.n.clamp(min=1).double()
    row_d = observation.sequence_log_ratio.double()
    abs_mean, geometric = part.abs_d / divisor, row_d / divisor

    tally.counts["sequence/n"], tally.counts["rows_empty"] = live.sum(), (~live).sum()
    tally.extremes("sequence", row_d, live)
    tally.level("sequence", row_d, row_d.abs(), live.double())
    tally.maxima["row/abs_mean_max"] = largest(abs_mean, live)
    tally.counts["row/over_1nat"] = (abs_mean > 1.0).sum()
    tally.sums["geometric/ratio"] = _where(live, geometric.exp()).sum()
    tally.extremes("geometric", geometric, live)
    for name, logps in (("train", part.train), ("rollout", part.rollout), ("ratio", part.d)):
        tally.sums[f"perplexity/{name}"] = _where(live, (-logps / divisor).exp()).sum()
    tally.maxima["generations"] = torch.ones((), dtype=torch.float64, device=device)

    effect = None
    if corrected is not None:
        effect = count_effect(tally, corrected, advantages=observation.advantages, applied=applied)
    nothing = torch.zeros(histogram.N_BUCKETS, dtype=torch.int64, device=device)
    histograms = {
        "token_log_ratio": part.histogram,
        "sequence_log_ratio": histogram.count(row_d.float(), live),
        "geometric_log_ratio": histogram.count(geometric.float(), live),
        "corrected_log_ratio": nothing if effect is None else effect.histogram,
    }
    stages = None if effect is None else effect.stage_counts
    if stages is None:
        stages = torch.zeros(len(STAGE_COUNTS), dtype=torch.int64, device=device)
    ratios, modified = (None, None) if effect is None else (effect.ratios_by_row, effect.modified_by_row)
    by_place = {PLACE_SUMS: part.places[0]}, {PLACE_COUNTS: part.places[1], STAGE_COUNTS: stages}
    return State(
        stacked(MAXIMA, tally.maxima, -torch.inf, torch.float64, device),
        joined(SUMS, tally.sums, 0.0, torch.float64, device, by_place[0]),
        joined(COUNTS, tally.counts, 0, torch.int64, device, by_place[1]),
        torch.stack([histograms[name] for name in HISTOGRAMS]),
        length_histogram.count(part.n, ratios, modified),
        _top(observation, part, row_d, abs_mean),
    )


def _top(observation: Observation, part: TokenPart, row_d: torch.Tensor, abs_mean: torch.Tensor) -> Top:
    if not observation.valid.shape[-1]:
        return Top.empty(row_d.device)
    return top_from_batch(observation, part.worst, part.numbers, part.n, row_d, abs_mean)


def _where(valid: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.where(valid, values, 0.0)
