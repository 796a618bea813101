"""Pictures of log-ratio distributions, and the history for those that cover a whole training."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ratioscope.runs import history as history_module
from ratioscope.runs.history import Cadence, History
from ratioscope.state.histogram import Bins
from ratioscope_integrations.pictures import pictures, scales
from ratioscope_integrations.pictures.pictures import SIZE, heatmap_picture, histogram_picture
from tests.support.tracker_rows import TOKENS, normal_bins

if TYPE_CHECKING:
    from PIL import Image

    from ratioscope_integrations.pictures.scales import Bounds

BARS = pictures._BARS
NO_BOUNDS: Bounds = (None, None)
EDGES = normal_bins(0).edges
RED = (209, 36, 47)
AMBER = (224, 159, 62)
BLUE = (61, 111, 180)


def _one_bin(index: int, *, n: int = 10) -> Bins:
    counts = np.zeros(65, dtype=np.int64)
    counts[index] = n
    return Bins(counts, EDGES)


def _where(image: Image.Image, color: tuple[int, int, int]) -> tuple[int, int, int, int] | None:
    """Left, top, right and bottom of the pixels of one colour."""
    rows, columns = np.nonzero((np.asarray(image) == color).all(axis=-1))
    if not len(rows):
        return None
    return int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max())


def _bars(bins: Bins, bounds: Bounds = NO_BOUNDS) -> Image.Image:
    return histogram_picture(bins, title="Token log-ratio, train, step 1", bounds=bounds)


def _heat(columns: list[Bins], steps: list[int], bounds: Bounds = NO_BOUNDS) -> Image.Image:
    return heatmap_picture(columns, steps, title="Token log-ratio, train, up to step 1", bounds=bounds)


def test_histogram_is_square_and_fast() -> None:
    """A histogram picture is square and takes milliseconds."""
    bins = normal_bins(1, n=100_000)
    _bars(bins)
    started = time.perf_counter()
    image = _bars(bins, (0.5, 2.0))
    assert time.perf_counter() - started < 0.2
    assert image.size == (SIZE, SIZE)


def test_bar_is_drawn_at_its_log_ratio() -> None:
    """The zero bin is in the middle of the axis, is full height with all values, and has the bins' colour."""
    left, top, right, _ = _where(_bars(_one_bin(32)), BLUE) or (0, 0, 0, 0)
    assert abs((left + right) / 2 - (BARS.left + BARS.right) / 2) <= 1
    assert top == BARS.top


def test_height_is_the_logarithm_of_the_share() -> None:
    """A bin with 1 % of the values reaches the line labelled 1 %."""
    counts = np.zeros(65, dtype=np.int64)
    counts[[32, 40]] = 99, 1
    pixels = np.asarray(_bars(Bins(counts, EDGES)))
    x = scales.position(40.5, 0, 65, BARS.left, BARS.right)
    height = np.nonzero((pixels[:, x] == BLUE).all(axis=-1))[0].min()
    assert height == scales.position(2, 0, 5, BARS.top, BARS.bottom)


@pytest.mark.parametrize("index", [0, 64])
def test_outer_bins_have_another_colour(index: int) -> None:
    """The outer bins, which hold all values beyond the axis, have another colour."""
    image = _bars(_one_bin(index))
    assert _where(image, AMBER)
    assert _where(image, BLUE) is None


def test_bound_is_drawn_at_its_logarithm() -> None:
    """The line of a bound stands at log(bound) on the log-ratio axis."""
    image = _bars(_one_bin(32), (None, 1.2))
    expected = scales.position(math.log(1.2), EDGES[0], EDGES[-1], BARS.left, BARS.right)
    pixels = np.asarray(image)
    assert (pixels[BARS.top : BARS.bottom, expected] == RED).all(axis=-1).mean() > 0.5


def test_hidden_bound_is_named_and_zero_is_none() -> None:
    """A bound outside the axis is written below the plot; a lower bound of 0 has no effect and is not drawn."""
    place = _where(_bars(_one_bin(32), (None, 3.0)), RED)
    assert place is not None
    assert place[1] > 440
    assert _where(_bars(_one_bin(32), (0.0, None)), RED) is None


def test_same_edges_give_the_same_axes() -> None:
    """Two windows with the same edges differ in their bars and n only, so that they can be laid side by side."""
    first = np.asarray(_bars(normal_bins(1, n=100, spread=0.02)))
    second = np.asarray(_bars(normal_bins(2, n=400, spread=0.05)))
    assert not (first == second).all()
    assert (first[BARS.bottom + 1 : 400] == second[BARS.bottom + 1 : 400]).all()
    assert (first[60:400, :60] == second[60:400, :60]).all()


def test_empty_window_is_drawn() -> None:
    """A window without any value gives a picture without bars."""
    empty = Bins(np.zeros(65, dtype=np.int64), EDGES)
    assert _where(_bars(empty), BLUE) is None
    assert _heat([empty], [1]).size == (SIZE, SIZE)


def test_heat_map_is_square_and_fast() -> None:
    """A heat map of as many windows as the history keeps is square and takes milliseconds."""
    columns = [normal_bins(seed) for seed in range(512)]
    started = time.perf_counter()
    image = _heat(columns, list(range(10, 5130, 10)), (0.5, 2.0))
    assert time.perf_counter() - started < 0.3
    assert image.size == (SIZE, SIZE)


def test_heat_map_rises_with_the_log_ratio() -> None:
    """A higher log-ratio is higher in the picture, a later step further to the right."""
    cells = scales.heat_cells(np.stack([_one_bin(5).counts, _one_bin(60).counts]), np.array([0.0, 1.0, 2.0]), 10)
    full = (cells == scales.PALETTE[-1]).all(axis=-1)
    assert np.argwhere(full).tolist() == [[4, x] for x in range(5, 10)] + [[59, x] for x in range(5)]


def test_heat_map_loses_no_window() -> None:
    """If windows outnumber pixels, each pixel pools its windows."""
    columns = [_one_bin(32) for _ in range(999)] + [_one_bin(50)]
    counts = np.stack([bins.counts for bins in columns])
    cells = scales.heat_cells(counts, np.arange(1001.0), 100)
    assert (cells[64 - 50, -1] != scales.EMPTY).any()
    assert (cells[64 - 50, :-1] == scales.EMPTY).all()


@pytest.mark.parametrize(
    ("columns", "steps", "message"),
    [
        ([], [], "0 columns"),
        ([_one_bin(1)], [1, 2], "1 columns and 2 steps"),
        ([_one_bin(1), normal_bins(1, exponent=0)], [1, 2], "different edges"),
    ],
)
def test_heat_map_refuses_invalid_input(columns: list[Bins], steps: list[int], message: str) -> None:
    """No column, a missing step and unequal edges raise errors that name the problem."""
    with pytest.raises(ValueError, match=message):
        _heat(columns, steps)


@pytest.mark.parametrize("exponent", range(-19, 6))
def test_every_width_has_ticks_that_differ(exponent: int) -> None:
    """From the finest to the widest bins, an axis has at least three ticks with different labels."""
    edges = normal_bins(0, exponent=exponent).edges
    step = scales.tick_step(edges[-1] - edges[0])
    labels = [scales.log_ratio_label(tick, step) for tick in scales.ticks(edges[0], edges[-1], step)]
    assert 3 <= len(set(labels)) == len(labels) <= 7
    assert max(map(len, labels)) <= 6
    ratios = [scales.ratio_label(tick, step) for tick in scales.ticks(edges[0], edges[-1], step)]
    assert len(set(ratios)) == len(ratios)
    histogram_picture(normal_bins(0, exponent=exponent), title="", bounds=(0.5, 2.0))


def test_labels_are_short() -> None:
    """Log-ratio, ratio, share and step are written short."""
    assert [scales.log_ratio_label(value, 0.2) for value in (-0.4, 0.0)] == ["-0.4", "0.0"]
    assert scales.ratio_label(0.2, 0.2) == "1.22"
    assert scales.ratio_label(10.0, 10.0) == "2.2e4"
    assert scales.log_ratio_label(2e-5, 2e-5) == "2e-5"
    assert [scales.percent_label(exponent) for exponent in (0, -2, -5)] == ["100 %", "1 %", "0.001 %"]
    assert [scales.step_label(step) for step in (500.0, 2_500_000.0)] == ["500", "2.5M"]


def test_windows_reach_back_to_the_one_before() -> None:
    """A window covers the steps since the previous one; the first has the usual length."""
    assert scales.window_starts([10, 20, 30]).tolist() == [0, 10, 20, 30]
    assert scales.window_starts([500, 510, 520]).tolist() == [490, 500, 510, 520]
    assert scales.window_starts([1]).tolist() == [0, 1]
    assert scales.window_starts([0]).tolist() == [-1, 0]


def test_history_is_bounded_and_loses_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbouring windows are pooled beyond a bound; counts are kept, and the newest window stays single."""
    monkeypatch.setattr(history_module, "MAX_WINDOWS", 8)
    history = History()
    for step in range(1, 101):
        history.add(TOKENS, step, _one_bin(step % 65))
        assert len(history.latest(TOKENS).windows) <= 8
        assert history.latest(TOKENS).windows[-1].records == 1
    series = history.latest(TOKENS)
    assert sum(bins.total for bins in series.bins()) == 1000
    assert sum(window.records for window in series.windows) == 100
    assert series.steps() == sorted(series.steps())
    assert series.windows[0].first_step == 1


def test_history_replaces_a_repeated_step() -> None:
    """A retry of the newest window, or a resume from an earlier step, counts nothing twice."""
    history = History()
    for step in (1, 2, 3, 3, 2):
        history.add(TOKENS, step, _one_bin(step))
    assert history.latest(TOKENS).steps() == [1, 2]


def test_history_with_new_edges_begins_a_new_series() -> None:
    """Bins of different widths are never mixed in one picture, and the older ones are kept."""
    history = History()
    history.add(TOKENS, 1, _one_bin(1))
    history.add(TOKENS, 2, normal_bins(2, exponent=0))
    assert history.latest(TOKENS).steps() == [2]
    assert [len(series["windows"]) for series in history.to_json()[TOKENS]] == [1, 1]


def test_history_survives_json() -> None:
    """A history is equal after a round trip through JSON."""
    history = History()
    for step in range(5):
        history.add(TOKENS, step, normal_bins(step))
    assert History.from_json(history.to_json()).to_json() == history.to_json()


def test_cadence_thins_out() -> None:
    """The first three records are drawn, then one for each quarter more; thousands need a few dozen pictures."""
    cadence = Cadence()
    drawn = [number for number in range(1, 10_001) if cadence.due()]
    assert drawn[:8] == [1, 2, 3, 4, 5, 7, 9, 12]
    assert len(drawn) < 45
