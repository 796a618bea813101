"""The signed log-linear histogram: boundaries, buckets, quantiles and even bins."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ratioscope.state import histogram
from tests.support.reference import quantile_range

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALLEST, LARGEST = 2.0**-20, 2.0**10
OCTAVES, PARTS = 30, 32
PER_SIDE = OCTAVES * PARTS
CENTRE = PER_SIDE + 1

INSIDE = st.floats(-1000.0, 1000.0, width=32)
LOG_SPREAD = st.builds(
    lambda sign, exponent: float(np.float32(sign * 10.0**exponent)), st.sampled_from([-1, 1]), st.floats(-9.0, 3.0)
)
VALUES = st.lists(INSIDE | LOG_SPREAD | st.just(0.0), min_size=1, max_size=40)
EXPONENTS = range(histogram.MIN_VIEW_EXPONENT, histogram.MAX_VIEW_EXPONENT + 1)


def bucket(value: float) -> int:
    """Bucket of one value, in exact arithmetic."""
    magnitude = abs(value)
    if magnitude < SMALLEST:
        return CENTRE
    if magnitude >= LARGEST:
        step = PER_SIDE + 1
    else:
        fraction, exponent = np.frexp(magnitude)  # magnitude = fraction * 2**exponent, fraction in [1/2, 1)
        octave = int(exponent) - 1 + 20
        part = math.floor((Fraction(float(fraction)) * 2 - 1) * PARTS)
        step = octave * PARTS + part + 1
    return CENTRE + step if value > 0 else CENTRE - step


def counted(values: list[float] | NDArray[np.float32]) -> NDArray[np.int64]:
    """Histogram of all the values."""
    tensor = torch.tensor(np.asarray(values, dtype=np.float32))
    return histogram.count([(tensor, torch.ones_like(tensor, dtype=torch.bool))])[0].numpy()


def neighbours(value: float) -> list[float]:
    """A float32, the one below and the one above, with both signs."""
    centre = np.float32(value)
    around = [np.nextafter(centre, np.float32(-np.inf)), centre, np.nextafter(centre, np.float32(np.inf))]
    return [float(sign * each) for each in around for sign in (1, -1)]


def test_layout() -> None:
    """There are 32 buckets per octave over 30 octaves on each side, a zero bucket and two outer ones."""
    assert histogram.N_BUCKETS == 2 * PER_SIDE + 3
    assert histogram.ZERO == CENTRE
    assert len(histogram.BOUNDARIES) == histogram.N_BUCKETS - 1


def test_boundaries_are_exact() -> None:
    """Each boundary is exactly (1 + k / 32) 2**e, a float32, ascending and symmetric around zero."""
    expected = [Fraction(PARTS + k, PARTS) * Fraction(2) ** e for e in range(-20, 10) for k in range(PARTS)]
    expected.append(Fraction(2) ** 10)
    positive = histogram.BOUNDARIES[CENTRE:]
    assert [Fraction(float(boundary)) for boundary in positive] == expected
    assert np.array_equal(histogram.BOUNDARIES[:CENTRE], -positive[::-1])
    assert np.array_equal(histogram.BOUNDARIES.astype(np.float32).astype(np.float64), histogram.BOUNDARIES)


@pytest.mark.parametrize("boundary", [SMALLEST, 2.0**-7, 0.75, 1.0, 33 / 32, 63 / 32, LARGEST])
def test_a_boundary_belongs_to_the_bucket_further_from_zero(boundary: float) -> None:
    """A value on a boundary counts in the outer bucket, its neighbour towards zero in the inner one, for both signs."""
    inside = float(np.nextafter(np.float32(boundary), np.float32(0)))
    outer, inner = (histogram.bucket_index(torch.tensor([value, -value])).tolist() for value in (boundary, inside))
    assert outer == [inner[0] + 1, inner[1] - 1]
    assert histogram.BOUNDARIES[outer[0] - 1] == boundary
    assert histogram.BOUNDARIES[outer[1]] == -boundary


EXTREMES = [0.0, -0.0, math.inf, -math.inf, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38]
EDGES = [near for value in (SMALLEST, LARGEST, 1.0, 2.0**-19) for near in neighbours(value)]


@given(values=st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=30))
@example(values=EXTREMES)
@example(values=EDGES)
def test_the_bucket_equals_exact_arithmetic(values: list[float]) -> None:
    """Any float32, subnormal, zero or infinite, falls into the bucket that exact arithmetic gives."""
    index = histogram.bucket_index(torch.tensor(values, dtype=torch.float32))
    assert index.tolist() == [bucket(value) for value in values]


@given(value=st.floats(-(2.0**10), 2.0**10, width=32, exclude_min=True, exclude_max=True))
def test_a_value_lies_between_its_buckets_boundaries(value: float) -> None:
    """A value lies between the boundaries of its bucket."""
    index = int(histogram.bucket_index(torch.tensor([value]))[0])
    assert histogram.BOUNDARIES[index - 1] <= value <= histogram.BOUNDARIES[index]


def test_only_valid_values_are_counted() -> None:
    """Values at invalid positions are not counted."""
    values = torch.tensor([[0.5, math.inf, -0.5], [0.5, 0.5, -1e30]])
    valid = torch.tensor([[True, False, True], [True, False, False]])
    (counts,) = histogram.count([(values.flatten(), valid.flatten())])
    expected = torch.zeros(histogram.N_BUCKETS, dtype=torch.int64)
    expected[bucket(0.5)], expected[bucket(-0.5)] = 2, 1
    assert torch.equal(counts, expected)


def test_counts_exceed_float32_integers() -> None:
    """A bucket counts beyond 2**24, where a float32 counter stops."""
    values = torch.zeros(2**24 + 1)
    (counts,) = histogram.count([(values, torch.ones(1, dtype=torch.bool).expand_as(values))])
    assert counts[histogram.ZERO] == 2**24 + 1


@pytest.mark.parametrize("q", [0.0, 0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 1.0])
@settings(max_examples=25)
@given(values=VALUES)
@example(values=[-3.0, 0.1, 0.2])
@example(values=[2.0**-21, -(2.0**-21)])
def test_quantiles_are_within_their_error(q: float, values: list[float]) -> None:
    """A quantile equals that of the values, each known to 1/64 of itself plus 2**-20."""
    got = histogram.quantile(counted(values), q, minimum=min(values), maximum=max(values))
    low, high = quantile_range(values, q)
    assert got is not None
    assert low <= got <= high
    assert min(values) <= got <= max(values)


def test_quantiles_together_equal_single_quantiles() -> None:
    """Quantiles of one call are bit-equal to single ones; an empty histogram has none."""
    values = np.random.default_rng(3).normal(scale=0.05, size=997)
    counts, (minimum, maximum) = counted(values), (values.min(), values.max())
    qs = (0.0, 0.001, 0.25, 0.5, 0.999, 1.0)
    middles, cumulative = histogram.representatives(), counts.cumsum()
    expected = []
    for q in qs:
        position = q * (counts.sum() - 1)
        low, high = (
            min(max(middles[np.argmax(cumulative > rank)], minimum), maximum)
            for rank in (math.floor(position), math.ceil(position))
        )
        expected.append(low + (high - low) * (position - math.floor(position)))
    assert histogram.quantiles(counts, qs, minimum=minimum, maximum=maximum) == expected
    assert histogram.quantiles(np.zeros_like(counts), qs, minimum=minimum, maximum=maximum) == []


def test_quantile_agrees_with_numpy_on_many_values() -> None:
    """On ten thousand normal values every quantile is within 1.6 % of numpy's."""
    values = np.random.default_rng(0).normal(0.1, 0.02, 10_000).astype(np.float32)
    for q in (0.001, 0.01, 0.05, 0.5, 0.95, 0.99, 0.999):
        got = histogram.quantile(counted(values), q, minimum=values.min(), maximum=values.max())
        assert got == pytest.approx(np.quantile(values, q), rel=0.016)


@pytest.mark.parametrize("value", [0.0, 0.3, -0.3, 2.0**-30, 1e20, -1e20])
def test_equal_values_give_exact_quantiles(value: float) -> None:
    """Every quantile of equal values is exactly that value, also beyond the histogram's range."""
    stored = float(np.float32(value))
    counts = counted([value] * 7)
    assert {histogram.quantile(counts, q, minimum=stored, maximum=stored) for q in (0.0, 0.4, 1.0)} == {stored}


def test_an_empty_histogram_has_no_quantile() -> None:
    """An empty histogram has no quantile, instead of 0."""
    nothing = np.zeros(histogram.N_BUCKETS, dtype=np.int64)
    assert histogram.quantile(nothing, 0.5, minimum=-math.inf, maximum=math.inf) is None


def test_representatives_have_the_smallest_worst_error() -> None:
    """The representative of a bucket has the same relative distance to both boundaries."""
    middle = histogram.representatives()[CENTRE + 1 : -1]
    low, high = histogram.BOUNDARIES[CENTRE:-1], histogram.BOUNDARIES[CENTRE + 1 :]
    np.testing.assert_allclose((middle - low) / low, (high - middle) / high, rtol=1e-12)
    assert ((middle - low) / low).max() <= 1 / 64


def binned(values: list[float], edges: NDArray[np.float64]) -> list[int]:
    """Counts of the values between the edges, a value on an edge counting away from zero; the rest at both ends."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        inner = edges[1:-1]
        place = int((inner <= value).sum()) if value >= 0 else len(inner) - int((inner >= value).sum())
        counts[place] += 1
    return counts


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_even_bins_nest_exactly(exponent: int) -> None:
    """At every width, regrouped buckets equal the counts of the values themselves, edges included."""
    width = 2.0**exponent
    rng = np.random.default_rng(exponent + 100)
    edges = (np.arange(64) - 31.5) * width
    around = [near for edge in edges for near in neighbours(edge)]
    spread = (rng.normal(0, 12 * width, 300)).astype(np.float32).tolist()
    values = [*around, *spread, 0.0, -0.0, 1e30, -1e30]
    bins = histogram.even_bins(counted(values), exponent)
    assert bins.counts.tolist() == binned(values, bins.edges)
    assert bins.total == len(values)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_even_bins_are_even_and_centred(exponent: int) -> None:
    """There are 65 bins of one width, centred on 0, few enough for every tracker."""
    bins = histogram.even_bins(np.zeros(histogram.N_BUCKETS, dtype=np.int64), exponent)
    assert len(bins.counts) == 65
    assert len(bins.edges) == 66
    assert np.array_equal(np.diff(bins.edges), np.full(65, 2.0**exponent))
    assert np.array_equal(bins.edges, -bins.edges[::-1])
    assert np.isfinite(bins.edges).all()


@pytest.mark.parametrize("exponent", [EXPONENTS.start - 1, EXPONENTS.stop])
def test_widths_that_do_not_nest_are_refused(exponent: int) -> None:
    """A width whose edges are not bucket boundaries raises."""
    with pytest.raises(ValueError, match="where bins nest"):
        histogram.even_bins(np.zeros(histogram.N_BUCKETS, dtype=np.int64), exponent)


@given(values=VALUES, exponent=st.sampled_from(EXPONENTS))
def test_even_bins_sum_to_all_values(values: list[float], exponent: int) -> None:
    """Values beyond the bins are in the outer two, so that counts sum to the number of values."""
    assert histogram.even_bins(counted(values), exponent).total == len(values)


def test_even_bins_of_no_values() -> None:
    """No values give bins of zeros."""
    bins = histogram.even_bins(np.zeros(histogram.N_BUCKETS, dtype=np.int64), -6)
    assert bins.counts.tolist() == [0] * 65


def test_even_bins_of_equal_values() -> None:
    """Equal values fall into the one bin that contains them."""
    bins = histogram.even_bins(counted([0.25] * 5), -3)  # bins of 1/8: 0.25 is the middle of the second after 0's
    expected = [0] * 65
    expected[34] = 5
    assert bins.counts.tolist() == expected


def test_even_bins_of_one_bucket_on_each_side() -> None:
    """Values at both ends, at zero and far beyond fall into different bins."""
    bins = histogram.even_bins(counted([-1.0, 0.0, 1.0, 900.0, -900.0]), 0)
    expected = [0] * 65
    for place in (0, 31, 32, 33, 64):
        expected[place] = 1
    assert bins.counts.tolist() == expected


def test_bins_as_json() -> None:
    """Bins become plain lists of integers and finite floats."""
    data = json.loads(json.dumps(histogram.even_bins(counted([0.0, 0.0]), 0).to_json()))
    assert data["counts"] == [0] * 32 + [2] + [0] * 32
    assert data["edges"] == [k - 32.5 for k in range(66)]


@given(values=VALUES)
def test_the_chosen_width_covers_the_values(values: list[float]) -> None:
    """The width covers the bulk of a run's first values, with a margin of the same size where widths allow it."""
    values = [value for value in values if abs(value) < 400]
    counts = counted(values)
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    exponent = histogram.view_exponent(counts, minimum=low, maximum=high)
    assert exponent in EXPONENTS
    reach = 31.5 * 2.0**exponent
    tails = [histogram.quantile(counts, q, minimum=low, maximum=high) for q in (0.0005, 0.9995)] if values else []
    furthest = max((abs(tail) for tail in tails if tail is not None), default=0.0)
    assert 2 * furthest <= reach
    if 4 * furthest > 31.5 * SMALLEST * 4:
        assert reach <= 4 * furthest * (1 + 1e-12)


@pytest.mark.parametrize(("value", "exponent"), [(0.0, -6), (1.0, -3), (1e9, 5), (1e-7, -19)])
def test_widths_of_literal_values(value: float, exponent: int) -> None:
    """The width is 2**-6 for identical engines, else the smallest nesting one that covers twice the values."""
    assert histogram.view_exponent(counted([value] * 9), minimum=value, maximum=value) == exponent


@given(counts=hnp.arrays(np.int64, 40, elements=st.integers(0, 2**53)), start=st.integers(0, histogram.N_BUCKETS - 40))
def test_sparse_counts_survive_json(counts: NDArray[np.int64], start: int) -> None:
    """Sparse counts are equal after a round trip through JSON, which holds non-empty buckets only."""
    dense = np.zeros(histogram.N_BUCKETS, dtype=np.int64)
    dense[start : start + 40] = counts
    sparse = json.loads(json.dumps(histogram.to_sparse(dense)))
    assert len(sparse["buckets"]) == np.count_nonzero(dense)
    again = np.zeros_like(dense)
    histogram.add_sparse(again, sparse)
    assert np.array_equal(again, dense)


def test_sparse_counts_by_bucket_are_read() -> None:
    """Counts by bucket, as older journals store them, are read as well."""
    counts = np.zeros(histogram.N_BUCKETS, dtype=np.int64)
    histogram.add_sparse(counts, {})
    assert not counts.any()
    histogram.add_sparse(counts, {"3": 5, "1920": 1})
    assert counts.nonzero()[0].tolist() == [3, 1920]
    assert counts[[3, 1920]].tolist() == [5, 1]
