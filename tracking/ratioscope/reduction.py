"""The reduction of one batch to a summary's vectors, on the batch's device and without a host sync.

All arithmetic is float64 on float32 inputs. Positions without a valid token hold a log-ratio of 0, so sums of terms
that vanish at 0 need no mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ratioscope import histogram, lengths
from ratioscope.alignment import lag_sums
from ratioscope.exact import FLOAT32_MAX, dot, row_sum
from ratioscope.pipeline import disagreements, normalizer, through
from ratioscope.places import Places, no_place_sums, place_sums
from ratioscope.slots import COUNTS, HISTOGRAMS, MAXIMA, PLACE_COUNTS, PLACE_SUMS, STAGE_COUNTS, SUMS
from ratioscope.stacking import joined, stacked
from ratioscope.top import Top

if TYPE_CHECKING:
    from ratioscope.correction import Correction
    from ratioscope.observation import Observation

OVERFLOW = 88.72283905206835
"""Natural logarithm of the largest float32; the trainer's own ratio is infinite above it."""

Named = dict[str, torch.Tensor]


@dataclass
class _Tally:
    """What has been reduced so far, by slot name; what is never set is zero, or minus infinity for a maximum."""

    maxima: Named = field(default_factory=dict)
    sums: Named = field(default_factory=dict)
    counts: Named = field(default_factory=dict)
    ratios_of_row: torch.Tensor | None = None
    modified_of_row: torch.Tensor | None = None
    stage_counts: torch.Tensor | None = None

    def extremes(self, name: str, values: torch.Tensor, valid: torch.Tensor) -> None:
        """Those of the valid values, which are all finite where they are not valid."""
        if not values.numel():
            return
        beyond = 1.0 - valid.to(values.dtype).reciprocal()  # 0, or minus infinity where not valid
        self.maxima[f"{name}/max"] = (values + beyond).max().double()
        self.maxima[f"{name}/-min"] = -(values - beyond).min().double()


def reduce(
    observation: Observation, correction: Correction | None, *, applied: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Top]:
    """The state of one batch, as the fields of ``RatioSummary`` but its correction, in order."""
    valid, device = observation.valid, observation.valid.device
    tokens_in_row = valid.sum(dim=-1)
    live = tokens_in_row > 0
    divisor = tokens_in_row.clamp(min=1).double()
    d = observation.log_ratio.double()
    # Rounded to float32 after an exact sum: the same bits however the batch is padded or split.
    row_d = row_sum(d).clamp(-FLOAT32_MAX, FLOAT32_MAX).float().double()

    tally = _Tally(counts=_validity(observation, live))
    abs_d = d.abs()
    tally.extremes("token", observation.log_ratio, valid)
    tally.extremes("sequence", row_d, live)
    inside = valid.double()
    _level(tally, "token", d, abs_d, inside)
    _level(tally, "sequence", row_d, row_d.abs(), live.double())
    _tokens(tally, observation, d, abs_d, inside)
    abs_mean = row_sum(abs_d) / divisor
    _rows(tally, observation, d, live, divisor, abs_mean)
    geometric = row_d / divisor
    tally.sums["geometric/ratio"] = _where(live, geometric.exp()).sum()
    tally.extremes("geometric", geometric, live)
    histograms = {
        "token_log_ratio": histogram.count(observation.log_ratio, valid),
        "sequence_log_ratio": histogram.count(row_d.float(), live),
        "geometric_log_ratio": histogram.count(geometric.float(), live),
    }
    if correction is not None and correction.is_general:
        histograms["corrected_log_ratio"] = _general(tally, observation, correction, applied)
    elif correction is not None:
        row_log_ratio = row_d.float().unsqueeze(-1)
        histograms["corrected_log_ratio"] = _corrected(tally, observation, correction, applied, row_log_ratio, live)
    tally.maxima["generations"] = torch.ones((), dtype=torch.float64, device=device)

    if valid.shape[-1]:
        places = Places.of(observation)
        by_place, top = place_sums(observation, places, d, abs_d), Top.of(observation, places, row_d, abs_mean)
    else:
        by_place, top = no_place_sums(device), Top.empty(device)

    nothing = torch.zeros(histogram.N_BUCKETS, dtype=torch.int64, device=device)
    stages = tally.stage_counts
    if stages is None:
        stages = torch.zeros(len(STAGE_COUNTS), dtype=torch.int64, device=device)
    sums = joined(SUMS, tally.sums, 0.0, torch.float64, device, {PLACE_SUMS: by_place[0]})
    counts = joined(COUNTS, tally.counts, 0, torch.int64, device, {PLACE_COUNTS: by_place[1], STAGE_COUNTS: stages})
    return (
        stacked(MAXIMA, tally.maxima, -torch.inf, torch.float64, device),
        sums,
        counts,
        torch.stack([histograms.get(name, nothing) for name in HISTOGRAMS]),
        lengths.count(tokens_in_row, tally.ratios_of_row, tally.modified_of_row),
        top,
    )


def _validity(observation: Observation, live: torch.Tensor) -> Named:
    return {
        "token/n": observation.valid.sum(),
        "sequence/n": live.sum(),
        "rows_empty": (~live).sum(),
        "masked_in": observation.masked_in.sum(),
        "nan": observation.nan.sum(),
        "inf": observation.infinite.sum(),
        "positive_logp": observation.positive.sum(),
        "missing": observation.missing.sum(),
        "equal": (observation.valid & (observation.train == observation.rollout)).sum(),
        "zero_train_logp": (observation.valid & (observation.train == 0.0)).sum(),
        "zero_rollout_logp": (observation.valid & (observation.rollout == 0.0)).sum(),
    }


def _level(tally: _Tally, level: str, d: torch.Tensor, abs_d: torch.Tensor, inside: torch.Tensor) -> None:
    """What tokens and rows share, but extremes, which come first; ``inside`` is 1 where valid, else 0."""
    if not d.numel():
        return
    relative = (d - tally.maxima[f"{level}/max"]).clamp(max=0.0)  # above 0 only where not valid
    weight = relative.exp() * inside
    excess = d.expm1()
    tally.sums |= {
        f"{level}/d": d.sum(),
        f"{level}/abs_d": abs_d.sum(),
        f"{level}/d2": dot(d, d),
        f"{level}/k3": (excess - d).sum(),
        f"{level}/excess": excess.sum(),
        f"{level}/excess2": dot(excess, excess),
        f"{level}/w": weight.sum(),
        f"{level}/w2": dot(weight, weight),
        f"{level}/wd": dot(weight, relative),
    }
    tally.counts[f"{level}/overflow"] = (d > OVERFLOW).sum()


def _tokens(
    tally: _Tally, observation: Observation, d: torch.Tensor, abs_d: torch.Tensor, inside: torch.Tensor
) -> None:
    x, y = observation.rollout.double(), observation.train.double()
    tally.sums |= {
        "token/reverse_k3": ((-d).expm1() + d).sum(),
        "token/mult_prob_error": abs_d.expm1().sum() + tally.counts["token/n"],
        **_second_moments("logp", x, y),
    }
    lagged, tally.counts["lag/n"] = lag_sums(observation)
    tally.sums |= lagged
    p, q = y.exp() * inside, x.exp() * inside
    difference = (p - q).abs()
    tally.sums |= _second_moments("probability", q, p)
    tally.sums["probability/abs_difference"] = difference.sum()
    if difference.numel():
        tally.maxima["probability/abs_max"] = _max(difference.max(), tally.counts["token/n"] > 0)
    ratio = observation.log_ratio.exp()
    for low, high in ((0.9, 1.1), (0.5, 2.0)):
        tally.counts[f"outside/{low:g}_{high:g}"] = ((ratio < low) | (ratio > high)).sum()


def _rows(
    tally: _Tally,
    observation: Observation,
    d: torch.Tensor,
    live: torch.Tensor,
    divisor: torch.Tensor,
    abs_mean: torch.Tensor,
) -> None:
    tally.maxima["row/abs_mean_max"] = _max(abs_mean, live)
    tally.counts["row/over_1nat"] = (abs_mean > 1.0).sum()
    train = observation.train.double().sum(dim=-1) / divisor
    rollout = observation.rollout.double().sum(dim=-1) / divisor
    tally.sums["perplexity/train"] = _where(live, (-train).exp()).sum()
    tally.sums["perplexity/rollout"] = _where(live, (-rollout).exp()).sum()
    tally.sums["perplexity/ratio"] = _where(live, (-d.sum(dim=-1) / divisor).exp()).sum()


def _corrected(
    tally: _Tally,
    observation: Observation,
    correction: Correction,
    applied: torch.Tensor | None,
    row_log_ratio: torch.Tensor,
    live: torch.Tensor,
) -> torch.Tensor:
    """Counts what the rule did and returns the histogram of what it left."""
    raw = correction.raw_ratio(observation.log_ratio)
    weights = correction.apply(raw)
    low, high = correction.outside(raw)
    if correction.level == "token":
        log_ratio, valid = observation.log_ratio, observation.valid
    else:
        log_ratio, valid = row_log_ratio, live.unsqueeze(-1)
    low, high = low & valid, high & valid
    modified = low | high
    tally.ratios_of_row, tally.modified_of_row = valid.sum(dim=-1), modified.sum(dim=-1)
    weight = weights.double() * valid
    tally.counts |= {"corrected/n": valid.sum(), "modified/low": low.sum(), "modified/high": high.sum()}
    tally.sums |= {"corrected/w": weight.sum(), "corrected/w2": dot(weight, weight)}
    tally.extremes("corrected", weights, valid)
    if applied is not None:
        expected = correction.apply(correction.raw_ratio(observation.step_log_ratio))
        same_shape = applied.shape == expected.shape
        tally.counts["disagreements"] = ((expected != applied.detach()) & valid).sum() if same_shape else valid.sum()
    if observation.advantages is not None:
        _by_advantage(tally, observation.advantages, raw, weights, valid)

    if correction.action == "mask":
        return histogram.count(log_ratio, valid & ~modified)
    lower, upper = correction.log_bounds
    return histogram.count(log_ratio.clamp(min=lower, max=upper), valid)


def _general(
    tally: _Tally, observation: Observation, correction: Correction, applied: torch.Tensor | None
) -> torch.Tensor:
    """The same of a rule of stages, all of it by token."""
    valid = observation.valid
    passed = through(observation, correction)
    weights, kept, modified = passed.weights, passed.kept, passed.modified
    tally.stage_counts = passed.counts()
    tally.ratios_of_row, tally.modified_of_row = valid.sum(dim=-1), modified.sum(dim=-1)
    tally.counts |= {
        "corrected/n": kept.sum(),
        "dropped/n": (valid & ~kept).sum(),
        "modified/low": passed.low.sum(),
        "modified/high": passed.high.sum(),
    }
    weight = _where(kept, weights.double())
    tally.sums |= {"corrected/w": weight.sum(), "corrected/w2": weight.square().sum()}
    tally.extremes("corrected", _where(kept, weights), kept)
    if applied is not None:
        tally.counts["disagreements"] = disagreements(observation, passed, correction, applied)
    if correction.batch_normalize:
        tally.sums["normalizer/w"], tally.counts["normalizer/n"] = normalizer(passed, correction, valid)
    if observation.advantages is not None:
        # What normalising takes away depends on the whole batch, which a part of it does not know.
        _by_advantage(tally, observation.advantages, _where(valid, passed.raw), weights, valid)
    return histogram.count(weights.log(), kept & (weights > 0))


def _by_advantage(
    tally: _Tally,
    advantages: torch.Tensor,
    raw: torch.Tensor,
    weights: torch.Tensor,
    valid: torch.Tensor,
) -> None:
    assert tally.ratios_of_row is not None
    assert tally.modified_of_row is not None
    for name, side in (("positive", advantages > 0), ("negative", advantages < 0)):
        tally.counts[f"{name}_advantage/n"] = (tally.ratios_of_row * side).sum()
        tally.counts[f"{name}_advantage/modified"] = (tally.modified_of_row * side).sum()
    size, ratio = advantages.double().abs(), raw.double()
    tally.sums["gradient/raw"] = dot(size, (ratio * valid).sum(dim=-1))
    removed = (ratio - weights.double()).clamp(min=0.0)
    tally.sums["gradient/removed"] = dot(size, (removed * valid).sum(dim=-1))


def _second_moments(name: str, x: torch.Tensor, y: torch.Tensor) -> Named:
    return {
        f"{name}/x": x.sum(),
        f"{name}/y": y.sum(),
        f"{name}/xx": dot(x, x),
        f"{name}/yy": dot(y, y),
        f"{name}/xy": dot(x, y),
    }


def _max(values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Largest valid value, minus infinity if there is none."""
    if values.numel() == 0:
        return torch.full((), -torch.inf, dtype=values.dtype, device=values.device)
    return torch.where(valid, values, -torch.inf).max()


def _where(valid: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.where(valid, values, 0.0)
