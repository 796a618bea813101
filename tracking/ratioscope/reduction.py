"""The reduction of one batch to a summary's vectors, on the batch's device and without a host sync.

Tokens are reduced first, by :func:`ratioscope.token_part.token_part` or a kernel in its place; rows follow from sums
over their tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ratioscope import histogram, kernels, lengths
from ratioscope.corrected import corrected, corrected_by_stages
from ratioscope.exact import FLOAT32_MAX
from ratioscope.slots import COUNTS, HISTOGRAMS, MAXIMA, PLACE_COUNTS, PLACE_SUMS, STAGE_COUNTS, SUMS
from ratioscope.stacking import joined, stacked
from ratioscope.tally import largest
from ratioscope.token_part import TokenPart, token_part
from ratioscope.top import Top

if TYPE_CHECKING:
    from ratioscope.corrected import Corrected
    from ratioscope.correction import Correction
    from ratioscope.observation import Observation


def reduce(
    observation: Observation, correction: Correction | None, *, applied: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Top]:
    """The state of one batch, as the fields of ``RatioSummary`` but its correction, in order."""
    part = kernels.token_part(observation, correction, applied)
    if part is None:
        part = token_part(observation, correction, applied=applied)
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

    by_rule = _by_rule(part, observation, correction, applied, row_d, live)
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
    return (
        stacked(MAXIMA, tally.maxima, -torch.inf, torch.float64, device),
        joined(SUMS, tally.sums, 0.0, torch.float64, device, by_place[0]),
        joined(COUNTS, tally.counts, 0, torch.int64, device, by_place[1]),
        torch.stack([histograms[name] for name in HISTOGRAMS]),
        lengths.count(part.n, ratios, modified),
        Top.of(observation, part, row_d, abs_mean),
    )


def _by_rule(
    part: TokenPart,
    observation: Observation,
    correction: Correction | None,
    applied: torch.Tensor | None,
    row_d: torch.Tensor,
    live: torch.Tensor,
) -> Corrected | None:
    """What the rule did, at whichever level it works; None without one."""
    if correction is None or part.corrected is not None:
        return part.corrected
    if correction.is_general:
        return corrected_by_stages(part.tally, observation, correction, applied)
    log_ratio, valid = row_d.float().unsqueeze(-1), live.unsqueeze(-1)
    return corrected(part.tally, observation, correction, applied, log_ratio=log_ratio, valid=valid)


def _where(valid: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.where(valid, values, 0.0)
