"""Laws of the mergeable state, on generated batches."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ratioscope as rs
from ratioscope.state.slots import GENERATIONS, LAG_SIDES, LEVELS, MAXIMA, PLACE_SUMS, SUMS
from ratioscope.state.worst import KEYED
from ratioscope.summary.host import PACKED_SIZE

RULES = (
    None,
    rs.Correction("token", "truncate", lower=0.5, upper=1.2),
    rs.Correction("token", "mask", upper=3.0),
    rs.Correction("sequence", "truncate", upper=3.0),
    rs.Correction("sequence", "mask", lower=0.5, upper=1.2),
)
NAN, INF = math.nan, math.inf
NO_ADVANTAGE = -12345.0


@dataclass(frozen=True)
class Rows:
    """A batch before it becomes a summary."""

    train: torch.Tensor
    rollout: torch.Tensor
    mask: torch.Tensor
    token_ids: torch.Tensor
    advantages: torch.Tensor

    def part(self, rows: list[int], *, padding: int = 0, trimmed: bool = False) -> Rows:
        """Some of the rows, trimmed to their own longest and then padded with garbage."""
        parts = [tensor[rows] for tensor in (self.train, self.rollout, self.mask, self.token_ids)]
        used = int(parts[2].any(dim=0).nonzero().max()) + 1 if trimmed and parts[2].any() else parts[2].shape[1]
        values = (9.0, NAN, 0, 77)
        padded = (
            torch.nn.functional.pad(part[:, :used], (0, padding), value=value)
            for part, value in zip(parts, values, strict=True)
        )
        return Rows(*padded, self.advantages[rows])

    def summary(self, correction: rs.Correction | None) -> rs.RatioSummary:
        """The summary of all of it."""
        return rs.summarize(
            self.train,
            self.rollout,
            self.mask,
            correction=correction,
            advantages=self.advantages.clone(),
            token_ids=self.token_ids,
        )


def signed(low: float, high: float) -> st.SearchStrategy[float]:
    """Floats of either sign whose size is evenly distributed over orders of magnitude."""
    size = st.floats(math.log(low), math.log(high)).map(math.exp)
    return st.builds(lambda sign, value: sign * value, st.sampled_from([-1.0, 1.0]), size)


LOG_RATIOS = st.just(0.0) | signed(1e-9, 1e3) | signed(1e-4, 0.1)
ROLLOUTS = st.just(0.0) | st.floats(-20.0, -(2.0**-10), width=32)
BAD = st.sampled_from([NAN, INF, -INF, 0.5])
HUGE = st.sampled_from([1e30, -1e30, 3e38, -3e38, 89.0, 800.0, -1e12])


@st.composite
def batches(
    draw: st.DrawFn, *, log_ratios: st.SearchStrategy[float] = LOG_RATIOS, max_rows: int = 6, grid: float | None = None
) -> Rows:
    """A batch of up to six rows and eight tokens, with bad tokens and masked-out ones; on a grid if one is given."""
    shape = (draw(st.integers(1, max_rows)), draw(st.integers(1, 8)))
    d = draw(hnp.arrays(np.float64, shape, elements=log_ratios))
    rollout = draw(hnp.arrays(np.float32, shape, elements=ROLLOUTS))
    if grid is not None:
        rollout, d = (rollout / grid).round().astype(np.float32) * np.float32(grid), (d / grid).round() * grid
    train = (rollout + d).astype(np.float32)
    bad = draw(st.dictionaries(st.tuples(st.integers(0, shape[0] - 1), st.integers(0, shape[1] - 1)), BAD, max_size=3))
    for place, value in bad.items():
        rollout[place] = value
    lengths = draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, shape[1])))
    holes = draw(hnp.arrays(np.bool_, shape, elements=st.sampled_from([False, False, False, True])))
    mask = (np.arange(shape[1]) < lengths[:, None]) & ~holes
    token_ids = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 3)))
    advantages = draw(hnp.arrays(np.float32, shape[0], elements=st.floats(-3.0, 3.0, width=32)))
    return Rows(*(torch.from_numpy(array) for array in (train, rollout, mask, token_ids, advantages)))


@st.composite
def summaries(draw: st.DrawFn, correction: rs.Correction | None = RULES[1]) -> rs.RatioSummary:
    """A summary of a batch, of nothing, or of a failure."""
    drawn = draw(batches(log_ratios=LOG_RATIOS | HUGE, max_rows=3) | st.none())
    summary = rs.RatioSummary.empty(correction) if drawn is None else drawn.summary(correction)
    return summary.failed() if draw(st.booleans()) else summary


def scales(summary: rs.RatioSummary) -> torch.Tensor:
    """Returns a sum of absolute values for each sum, as the scale of its rounding error."""
    sums = dict(zip(SUMS, summary.sums.tolist(), strict=True))
    n, scale = float(summary.count("token/n")), {name: abs(value) for name, value in sums.items()}
    for level in LEVELS:
        scale[f"{level}/d"] = sums[f"{level}/abs_d"]
        scale[f"{level}/excess"] = abs(sums[f"{level}/excess"]) + 2 * summary.count(f"{level}/n")
        for name in ("w", "w2", "wd"):
            scale[f"{level}/{name}"] = sums[f"{level}/w"] + abs(sums[f"{level}/wd"])
    for name in PLACE_SUMS:
        scale[name] = sums["token/abs_d"]
    for side in ("x", "y"):
        scale[f"logp/{side}"] = math.sqrt(n * sums[f"logp/{side}{side}"])
    squares = {side: math.sqrt(sums[f"lag/{side}^2"]) for side in LAG_SIDES}
    for side in LAG_SIDES:
        scale[f"lag/{side}"] = math.sqrt(n) * squares[side]
    scale["lag/1"] = squares["train/first"] * squares["rollout/second"]
    scale["lag/-1"] = squares["train/second"] * squares["rollout/first"]
    scale["logp/xy"] = math.sqrt(sums["logp/xx"]) * math.sqrt(sums["logp/yy"])
    return torch.tensor([scale[name] for name in SUMS], dtype=torch.float64)


def assert_same_sums(one: rs.RatioSummary, other: rs.RatioSummary) -> None:
    """Checks that sums agree to 1e-12 of their scale; infinite and undefined ones must agree in kind."""
    assert torch.equal(one.sums.isnan(), other.sums.isnan())
    known = ~one.sums.isnan()
    finite = known & one.sums.isfinite()
    assert torch.equal(one.sums[known & ~finite], other.sums[known & ~finite])
    error = (one.sums - other.sums).abs()[finite]
    allowed = 1e-12 * torch.maximum(scales(one), scales(other))[finite] + 1e-300
    names = [name for name, kept in zip(SUMS, finite.tolist(), strict=True) if kept]
    assert not [name for name, off in zip(names, (error > allowed).tolist(), strict=True) if off]


def assert_same_data(one: rs.RatioSummary, other: rs.RatioSummary) -> None:
    """Counts, histograms, extremes, worst tokens and rows are the same exactly, and the sums to 1e-12."""
    assert torch.equal(one.counts, other.counts)
    assert torch.equal(one.histograms, other.histograms)
    assert torch.equal(one.lengths, other.lengths)
    assert torch.equal(*(summary.top.pack().nan_to_num(nan=NO_ADVANTAGE) for summary in (one, other)))
    extremes = torch.arange(len(MAXIMA)) != GENERATIONS
    assert torch.equal(one.maxima[extremes], other.maxima[extremes])
    assert_same_sums(one, other)


@given(one=summaries(), other=summaries())
def test_merging_is_commutative(one: rs.RatioSummary, other: rs.RatioSummary) -> None:
    """The order of two merged summaries does not change a bit."""
    assert one.merge(other) == other.merge(one)


@given(parts=st.tuples(summaries(), summaries(), summaries()))
def test_merging_is_associative(parts: tuple[rs.RatioSummary, rs.RatioSummary, rs.RatioSummary]) -> None:
    """The grouping of three merged summaries does not change the result."""
    a, b, c = parts
    one, other = a.merge(b).merge(c), a.merge(b.merge(c))
    assert_same_data(one, other)
    assert one.maxima[GENERATIONS] == other.maxima[GENERATIONS]


@given(parts=st.lists(summaries(), min_size=1, max_size=5))
def test_merging_many_equals_merging_pairs(parts: list[rs.RatioSummary]) -> None:
    """Merging all summaries at once equals merging them pair by pair."""
    first, *others = parts
    one_by_one = first
    for other in others:
        one_by_one = one_by_one.merge(other)
    at_once = first.merge(*others)
    assert_same_data(at_once, one_by_one)
    assert at_once.maxima[GENERATIONS] == one_by_one.maxima[GENERATIONS]


@pytest.mark.parametrize("correction", [None, RULES[1]])
@given(summary=summaries())
def test_empty_is_the_identity(correction: rs.Correction | None, summary: rs.RatioSummary) -> None:
    """Merging with an empty summary, from either side, does not change a bit."""
    nothing = rs.RatioSummary.empty(correction)
    assert summary.merge(nothing) == summary
    assert nothing.merge(summary) == summary


@pytest.mark.parametrize("correction", RULES, ids=str)
@settings(max_examples=30)
@given(batch=batches(), data=st.data())
def test_splitting_by_completions_changes_nothing(
    correction: rs.Correction | None, batch: Rows, data: st.DataObject
) -> None:
    """Completions split over micro-batches, windows or ranks and merged in any order give the whole batch's data."""
    rows = len(batch.mask)
    deal = data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows), label="part of each row")
    order = data.draw(st.permutations(range(rows)), label="order of rows")
    parts = [[row for row in order if deal[row] == part] for part in range(4)]
    merged = rs.RatioSummary.empty(correction)
    for part in data.draw(st.permutations([part for part in parts if part]), label="order of parts"):
        merged = merged.merge(batch.part(part).summary(correction))
    assert_same_data(merged, batch.summary(correction))
    assert merged.maxima[GENERATIONS] == len([part for part in parts if part])


def assert_padding_changes_nothing(correction: rs.Correction | None, batch: Rows, padding: int, cut: int) -> None:
    """Two micro-batches, each trimmed to its own width and one of them padded, have the whole batch's data."""
    rows = list(range(len(batch.mask)))
    merged = rs.RatioSummary.empty(correction)
    for part, width in ((rows[:cut], padding), (rows[cut:], 0)):
        if part:
            merged = merged.merge(batch.part(part, padding=width, trimmed=True).summary(correction))
    assert_same_data(merged, batch.summary(correction))


@pytest.mark.parametrize("correction", [None, *(rule for rule in RULES if rule and rule.level == "token")], ids=str)
@settings(max_examples=30)
@given(batch=batches(), padding=st.integers(0, 40), cut=st.integers(0, 5))
def test_padding_changes_nothing(correction: rs.Correction | None, batch: Rows, padding: int, cut: int) -> None:
    """Micro-batches padded to different widths give the whole batch's data."""
    assert_padding_changes_nothing(correction, batch, padding, cut)


@pytest.mark.parametrize("correction", [rule for rule in RULES if rule and rule.level == "sequence"], ids=str)
@settings(max_examples=30)
@given(batch=batches(grid=2.0**-10), padding=st.integers(0, 40), cut=st.integers(0, 5))
def test_padding_changes_no_sequence_rule(correction: rs.Correction, batch: Rows, padding: int, cut: int) -> None:
    """Padding changes nothing under a sequence rule if the trainer's float32 sum of a completion is exact."""
    assert_padding_changes_nothing(correction, batch, padding, cut)


@pytest.mark.parametrize("padding", [0, 1, 7, 26])
def test_a_cancelling_completion_is_summed_exactly(padding: int) -> None:
    """Large log-ratios that cancel leave the exact sum, whatever the width."""
    generator = torch.Generator().manual_seed(padding)
    large, small = 1000 * torch.randn(12, generator=generator), 1e-9 * torch.rand(12, generator=generator)
    d = torch.stack([large, small, -large], dim=1).reshape(1, -1)
    parts = (torch.nn.functional.pad(part, (0, padding)) for part in (d, torch.zeros_like(d), torch.ones_like(d)))
    summary = rs.summarize(*parts)
    exact = np.float32(math.fsum(small.double().tolist()))
    assert summary.maxima[MAXIMA.index("sequence/max")] == exact
    assert summary.maxima[MAXIMA.index("sequence/-min")] == -exact


@given(batch=batches(log_ratios=HUGE | LOG_RATIOS), cut=st.integers(0, 5))
def test_splitting_huge_values_changes_nothing(batch: Rows, cut: int) -> None:
    """Finite log-ratios of any size are split and merged without a change, overflowing sums included."""
    correction = rs.Correction("token", "mask", upper=1.2)
    rows = list(range(len(batch.mask)))
    merged = rs.RatioSummary.empty(correction)
    for part in (rows[:cut], rows[cut:]):
        if part:
            merged = merged.merge(batch.part(part).summary(correction))
    assert_same_data(merged, batch.summary(correction))
    assert all(math.isfinite(value) for value in merged.metrics().values())


@given(summary=summaries())
def test_unpacking_undoes_packing(summary: rs.RatioSummary) -> None:
    """A packed summary has the one fixed size and unpacks to a bit-equal summary."""
    packed = summary.pack()
    assert (packed.dtype, tuple(packed.shape)) == (torch.float64, (PACKED_SIZE,))
    assert rs.RatioSummary.unpack(packed, correction=summary.correction) == summary


@pytest.mark.parametrize("correction", RULES, ids=str)
@settings(max_examples=20)
@given(batch=batches(log_ratios=LOG_RATIOS | HUGE), step=st.integers(0, 10**9))
def test_records_survive_json(correction: rs.Correction | None, batch: Rows, step: int) -> None:
    """A record is equal after a round trip through strict JSON, with equal metrics."""
    summary = batch.summary(correction)
    record = rs.Record(
        step=step,
        split="eval",
        time=1e9,
        scalars=summary.metrics(),
        summary=summary.to_host(),
        world_size=4,
        events=("one",),
    )
    text = json.dumps(record.to_json(), allow_nan=False)
    again = rs.Record.from_json(json.loads(text))
    assert again == record
    assert again.correction == correction
    assert again.summary.metrics() == record.scalars


@given(one=batches(), other=batches())
def test_merged_metrics_equal_those_of_one_batch(one: Rows, other: Rows) -> None:
    """Metrics of a merge equal those of one batch with all completions."""
    width = max(one.mask.shape[1], other.mask.shape[1])
    padded = [part.part(list(range(len(part.mask))), padding=width - part.mask.shape[1]) for part in (one, other)]
    names = ("train", "rollout", "mask", "token_ids", "advantages")
    union = Rows(*(torch.cat([getattr(part, name) for part in padded]) for name in names))
    correction = rs.Correction("token", "truncate", upper=1.2)
    got = one.summary(correction).merge(other.summary(correction)).metrics()
    want = union.summary(correction).metrics()
    got["ratioscope/counts/generations"] -= 1
    assert set(got) == set(want)
    fragile = ("calibration", "pearson", "/std", "chi2")  # differences of nearly equal numbers
    for key in set(want) - {key for key in want if any(part in key for part in fragile)}:
        assert got[key] == pytest.approx(want[key], rel=1e-9, abs=1e-12), key


@pytest.mark.parametrize("padding", [0, 3])
def test_rows_that_differ_in_ids_alone_have_numbers_of_their_own(padding: int) -> None:
    """Completions with equal log-probabilities differ in number if a masked-in id or the invalid token differs."""
    ids = torch.tensor([[0, 1, 5], [2, 0, 5], [0, 1, 6], [0, 2, 4], [0, 1, 5]])
    train, mask = torch.zeros(5, 3), torch.ones(5, 3)
    rollout = train.clone()
    rollout[:4, 2] = rollout[4, 1] = torch.nan
    pad = (padding, padding)
    parts = [torch.nn.functional.pad(part, pad) for part in (train, rollout, mask)]
    summary = rs.summarize(*parts, token_ids=torch.nn.functional.pad(ids, pad))
    assert len(set(summary.top.rows[:5, KEYED.index("fingerprint")].tolist())) == 5
