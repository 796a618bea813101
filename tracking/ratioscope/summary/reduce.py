"""The reduction of one batch to a summary's vectors, on the batch's device and without a host sync.

A kernel does it where there is one for the device. On the plain path tokens are reduced first, by
:func:`ratioscope.summary.tokens.token_part`; rows follow from sums over their tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ratioscope.correction.stages import STAGE_COUNTS
from ratioscope.numerics import FLOAT32_MAX
from ratioscope.state import histogram, length_histogram
from ratioscope.state.arrays import State
from ratioscope.state.slots import COUNTS, HISTOGRAMS, MAXIMA, PLACE_COUNTS, PLACE_SUMS, SUMS
from ratioscope.state.tables import Top
from ratioscope.summary import kernels
from ratioscope.summary.rule_effect import corrected, corrected_by_stages
from ratioscope.summary.stacking import joined, stacked
from ratioscope.summary.tally import Tally, largest
from ratioscope.summary.tokens import TokenPart, is_by_token, token_part
from ratioscope.summary.worst_tokens import top_from_batch

if TYPE_CHECKING:
    from ratioscope.batch.observation import Observation
    from ratioscope.correction.rule import Correction
    from ratioscope.state.arrays import Reduced
    from ratioscope.summary.rule_effect import Corrected


def reduce(observation: Observation, correction: Correction | None, *, applied: torch.Tensor | None = None) -> State:
    """The state of one batch."""
    found = kernels.reduced(observation, correction, applied)
    if found is None:
        return _rows(token_part(observation, correction, applied=applied), observation, correction, applied)
    if correction is None or is_by_token(correction):
        return found.state
    return _ruled(found, observation, correction, applied)


def _ruled(found: Reduced, observation: Observation, correction: Correction, applied: torch.Tensor | None) -> State:
    """A kernel's state, with what the rule did."""
    tally, state, device = Tally(), found.state, found.n.device
    by_rule = _by_rule(tally, observation, correction, applied, found.row_d, found.n > 0)
    stages = {} if by_rule.stage_counts is None else {STAGE_COUNTS: by_rule.stage_counts}
    histograms = state.histograms.clone()
    histograms[HISTOGRAMS.index("corrected_log_ratio")] = by_rule.histogram
    return state._replace(
        maxima=torch.maximum(state.maxima, stacked(MAXIMA, tally.maxima, -torch.inf, torch.float64, device)),
        sums=state.sums + stacked(SUMS, tally.sums, 0.0, torch.float64, device),
        counts=state.counts + joined(COUNTS, tally.counts, 0, torch.int64, device, stages),
        histograms=histograms,
        lengths=length_histogram.count(found.n, by_rule.ratios_of_row, by_rule.modified_of_row),
    )


def _rows(
    part: TokenPart, observation: Observation, correction: Correction | None, applied: torch.Tensor | None
) -> State:
    """The state that follows from a batch's tokens."""
    tally, device = part.tally, part.n.device
    live = part.n > 0
    divisor = part.n.clamp(min=1).double()
    # Rounded to float32 after an exact sum: the same bits however the batch is padded or split.
    row_d = part.d.clamp(-FLOAT32_MAX, FLOAT32_MAX).float().double()
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

    by_rule = part.corrected
    if by_rule is None and correction is not None:
        by_rule = _by_rule(tally, observation, correction, applied, row_d, live)
    nothing = torch.zeros(histogram.N_BUCKETS, dtype=torch.int64, device=device)
    histograms = {
        "token_log_ratio": part.histogram,
        "sequence_log_ratio": histogram.count(row_d.float(), live),
        "geometric_log_ratio": histogram.count(geometric.float(), live),
        "corrected_log_ratio": nothing if by_rule is None else by_rule.histogram,
    }
    stages = None if by_rule is None else by_rule.stage_counts
    if stages is None:
        stages = torch.zeros(len(STAGE_COUNTS), dtype=torch.int64, device=device)
    ratios, modified = (None, None) if by_rule is None else (by_rule.ratios_of_row, by_rule.modified_of_row)
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


def _by_rule(
    tally: Tally,
    observation: Observation,
    correction: Correction,
    applied: torch.Tensor | None,
    row_d: torch.Tensor,
    live: torch.Tensor,
) -> Corrected:
    """What a rule did that is not a short-form one at the level of tokens."""
    if correction.is_general:
        return corrected_by_stages(tally, observation, correction, applied)
    log_ratio, valid = row_d.float().unsqueeze(-1), live.unsqueeze(-1)
    return corrected(tally, observation, correction, applied, log_ratio=log_ratio, valid=valid)


def _where(valid: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.where(valid, values, 0.0)
