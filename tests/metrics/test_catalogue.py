"""The catalogue has exactly the documented keys, under names that every backend accepts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import ratioscope as rs
from ratioscope.metrics.catalogue import keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratioscope.metrics.metric import Metric

LEVELS = ("token", "sequence")


def listing() -> Iterator[tuple[str, str]]:
    """Key and smallest detail of every statistic, written out from the definitions."""
    raw = "sampling/raw_importance_sampling_ratio"
    headline = (
        *(f"{raw}/{name}" for name in ("min", "mean", "max")),
        "sampling/frac_modified_importance_sampling_ratio",
        *(f"ratioscope/modified/{name}" for name in ("low", "high")),
        *(f"ratioscope/raw/{name}" for name in ("p01", "p50", "p99")),
        *(f"ratioscope/ess/{name}" for name in ("raw", "corrected")),
        *(f"ratioscope/kl/{name}" for name in ("k1", "k3")),
        "ratioscope/log_ratio/abs_mean",
        "ratioscope/tokens/invalid",
        "ratioscope/rows/empty",
    )
    yield from ((key, "headline") for key in headline)
    groups: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
        *(
            group
            for level in LEVELS
            for group in (
                (f"{level}/raw", (), ("min", "mean", "max", "std")),
                (f"{level}/raw", ("p01", "p05", "p50", "p95", "p99"), ("p001", "p25", "p75", "p999")),
                (f"{level}/log_ratio", ("mean", "std", "abs_mean"), ("min", "max", "abs_max")),
                (f"{level}/ess", ("raw", "corrected"), ()),
                (level, (), ("perplexity",)),
            )
        ),
        ("sequence/geometric", ("mean",), ("min", "max", "p05", "p50", "p95")),
        ("sequence", ("max_weight_share",), ()),
        ("token", (), ("max_weight_share",)),
        ("corrected", ("mean",), ("min", "max")),
        (
            "modified",
            ("fraction", "positive_advantage", "negative_advantage"),
            ("truncated", "masked", "gradient_removed"),
        ),
        ("modified", (), ("truncated_high", "truncated_low", "zeroed", "dropped", "vetoed", "clamped")),
        *((f"stage/{stage}", ("modified",), ("low", "high", "rows_low", "rows_high")) for stage in range(1, 5)),
        ("safety_clamp", (), ("tokens", "rows")),
        ("kl", (), ("k2", "reverse_k3")),
        ("chi2", (), LEVELS),
        ("outside", ("0.9_1.1",), ("0.5_2",)),
        ("", (), ("mult_prob_error", "identical")),
        ("row", ("abs_mean_max",), ("over_1nat",)),
        ("calibration", ("slope",), ("intercept", "pearson")),
        ("alignment", (), ("lag_-1", "lag_0", "lag_1")),
        ("probability", (), ("pearson", "abs_mean", "abs_max")),
        ("perplexity", (), ("train", "rollout", "ratio")),
        *((f"position/{decile:02}", (), ("mean", "abs_mean")) for decile in range(10)),
        ("position/last", ("abs_mean",), ("mean",)),
        *((f"turn/{turn}", (), ("mean", "abs_mean")) for turn in range(1, 6)),
        *((f"length/q{quartile}", (), ("modified",)) for quartile in range(1, 5)),
        ("sequence", (), ("pareto_k",)),
        ("noise_floor", ("multiple",), ("abs_mean", "std", "max")),
        ("drift", ("abs_mean", "outside"), ("mean", "k3", "ratio_min", "ratio_max")),
        (
            "counts",
            ("tokens", "rows", "rows_empty", "nan", "inf", "positive_logp", "missing", "overflow"),
            ("generations", "zero_train_logp", "zero_rollout_logp"),
        ),
    )
    for group, standard, full in groups:
        for detail, names in (("standard", standard), ("full", full)):
            yield from (("/".join(filter(None, ("ratioscope", group, name))), detail) for name in names)


def test_keys_and_details_are_the_documented_ones() -> None:
    """The catalogue has exactly the documented keys, each under its documented detail."""
    assert {metric.key: metric.detail for metric in rs.CATALOGUE} == dict(listing())


def test_keys_are_unique() -> None:
    """No key occurs twice."""
    every = [metric.key for metric in rs.CATALOGUE]
    assert len(every) == len(set(every)) == len(list(listing()))


@pytest.mark.parametrize("metric", rs.CATALOGUE, ids=lambda metric: metric.key)
def test_names_are_legal_everywhere(metric: Metric) -> None:
    """A key consists of letters, digits and _ . - /, has no empty part, and stays short with eval's prefix."""
    key = metric.key
    assert re.fullmatch(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+", key)
    assert not {".", ".."} & set(key.split("/"))
    assert len(f"eval/{key}") <= 250


@pytest.mark.parametrize("metric", rs.CATALOGUE, ids=lambda metric: metric.key)
def test_every_metric_has_a_meaning(metric: Metric) -> None:
    """Every metric has a meaning of one line that fits into a table."""
    meaning = metric.meaning
    assert len(meaning) > 5
    assert meaning == meaning.strip()
    assert not meaning.endswith(".")
    assert "\n" not in meaning


def test_details_have_a_bounded_number_of_keys() -> None:
    """Trackers get 35 to 55 scalars by default, one more per stage, two for drift; the trainer's log at most 20."""
    assert len(keys("headline")) <= 20
    assert 35 <= len([key for key in keys("standard") if not re.search("/(stage|drift)/", key)]) <= 55
    assert len(keys("full")) == len(rs.CATALOGUE)
    assert keys("headline") < keys("standard") < keys("full")


def test_no_key_is_part_of_another_keys_path() -> None:
    """No key is also a folder of other keys, which trackers that nest by slashes could not display."""
    every = {metric.key for metric in rs.CATALOGUE}
    folders = {key.rsplit("/", count)[0] for key in every for count in range(1, key.count("/") + 1)}
    assert not every & folders
