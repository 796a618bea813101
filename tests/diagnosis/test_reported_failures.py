"""Runs of which an earlier diagnosis said something untrue, each with the answer that it should have.

Engines sample from softmax policies over contexts from flat to peaked; ``name_*`` are functions that change a batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope.diagnosis import Diagnosis, diagnose
from ratioscope.record import Record
from tests.support.world.sampling import Sampling, draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
ROWS, LENGTH, WINDOWS = 16, 64, 8
NOISE = 0.01


def dense(**sampling: Any) -> dict[str, Any]:
    """Config of a dense model, with changes to neutral sampling settings."""
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    return {
        "sampling": {**neutral, "scoring_temperature": 1.0, **sampling},
        "engine": {"logprobs_mode": "processed_logprobs", "quantization": "none", "dtype": "bfloat16"},
        "trainer": {"num_experts": 0, "weights_dtype": "bfloat16"},
    }


def pairs(change: Callable[[Tensor, Tensor], Pair], noise: float = NOISE, rows: int = ROWS) -> Iterable[Pair]:
    """Yields trainer's and engine's log-probabilities of windows that differ by noise, after a change."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(WINDOWS):
        rollout = -torch.rand(rows, LENGTH, generator=generator).pow(4) * 6 - 1e-3
        yield change(rollout + noise * torch.randn(rollout.shape, generator=generator), rollout.clone())


def sampled(sampling: Sampling, noise: float = 0.02, vocabulary: int = 400, windows: int = WINDOWS) -> Iterable[Pair]:
    """Yields windows of an engine that samples with settings which the trainer does not share."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(windows):
        scores = torch.randn(ROWS * LENGTH, vocabulary, generator=generator)
        scores *= torch.exp(0.3 + 0.8 * torch.randn(len(scores), 1, generator=generator)).clamp(0.3, 12.0)
        other = scores + noise * torch.randn(scores.shape, generator=generator)
        tokens, logps = draw(other, sampling, LENGTH, generator)
        train = scores.log_softmax(1).gather(1, tokens[:, None])[:, 0]
        yield train.view(ROWS, LENGTH), logps.view(ROWS, LENGTH)


def diagnosis(windows: Iterable[Pair], config: dict[str, Any] | None = None) -> Diagnosis:
    """Diagnoses windows without masked tokens."""
    records = []
    for step, (train, rollout) in enumerate(windows, 1):
        summary = rs.summarize(train, rollout, torch.ones_like(train, dtype=torch.bool))
        records.append(Record(step, "train", 0.0, summary.metrics(), summary.to_host()))
    return diagnose(records, config)


def above_info(found: Diagnosis) -> list[str]:
    """Names of the findings above info, in order."""
    return [finding.name for finding in found.findings if finding.level != "info"]


def swap_rows(train: Tensor, rollout: Tensor) -> Pair:
    """Gives a quarter of the rows their neighbours' log-probabilities."""
    rollout[: ROWS // 4] = rollout[: ROWS // 4].roll(1, 0)
    return train, rollout


def row_means(train: Tensor, rollout: Tensor) -> Pair:
    """Gives each token the mean of its row."""
    return train, rollout.mean(1, keepdim=True).expand_as(rollout).clone()


def placeholders(value: float, count: int) -> Callable[[Tensor, Tensor], Pair]:
    """Puts a value at a few places of the engine's side."""

    def change(train: Tensor, rollout: Tensor) -> Pair:
        rollout.view(-1)[torch.arange(count) * 37 + 5] = value
        return train, rollout

    return change


@pytest.mark.parametrize("config", [None, dense()])
def test_rows_of_other_rows_are_mispaired(config: dict[str, Any] | None) -> None:
    """A quarter of the rows with other rows' values is found as that, whatever is known of the model's experts."""
    found = diagnosis(pairs(swap_rows), config)
    assert above_info(found)[0] == "mispaired_rows"
    assert not {"other_experts", "outliers", "precision_noise"} & set(above_info(found))


@pytest.mark.parametrize("noise", [0.02, 0.3])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0.7, "top_p": 0.8, "top_k": 20}, ["temperature=0.7", "top_p=0.8", "top_k=20"]),
        ({"temperature": 0.5}, ["temperature=0.5"]),
        ({"temperature": 0.3}, ["temperature=0.3"]),
        ({"temperature": 0.01}, ["temperature=0.01"]),
        ({"top_p": 0.9}, ["top_p=0.9"]),
        ({"top_k": 5}, ["top_k=5"]),
        (
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
            ["temperature=0.7", "top_p=0.8", "top_k=20", "repetition_penalty=1.05"],
        ),
    ],
)
def test_settings_of_the_config_come_first_and_are_never_clean(
    settings: dict[str, Any], words: list[str], noise: float
) -> None:
    """All settings are named by the first finding, and no cause that the config names is listed as absent."""
    found = diagnosis(sampled(Sampling(**settings), noise), dense(**settings))
    assert found.findings[0].name == "sampling_settings"
    assert all(word in found.findings[0].evidence for word in words)
    if "temperature" in settings:
        assert "temperature" not in found.passed
    if {"top_p", "top_k"} & set(settings):
        assert "support_truncation" not in found.passed
    assert not {"zero_filled", "unexplained", "precision_noise", "other_experts"} & set(above_info(found))


def test_truncation_is_found_under_other_noise() -> None:
    """A nucleus of 0.9 under noise of 0.3 nats is truncation, with and without the config."""
    windows = list(sampled(Sampling(top_p=0.9), noise=0.3))
    assert above_info(diagnosis(windows))[0] == "support_truncation"
    assert "support_truncation" in above_info(diagnosis(windows, dense(top_p=0.9)))


def test_a_temperature_of_low_entropy_with_a_nucleus_is_found() -> None:
    """Temperature 0.6 with a nucleus of 0.9 on peaked contexts is found without a config."""
    generator = torch.Generator().manual_seed(2)
    windows = []
    for _ in range(WINDOWS):
        scores = torch.randn(ROWS * LENGTH, 400, generator=generator)
        scores *= 4.0 + 10.0 * torch.rand(len(scores), 1, generator=generator)
        tokens, logps = draw(scores, Sampling(temperature=0.6, top_p=0.9), LENGTH, generator)
        train = scores.log_softmax(1).gather(1, tokens[:, None])[:, 0]
        windows.append((train.view(ROWS, LENGTH), logps.view(ROWS, LENGTH)))
    assert above_info(diagnosis(windows))[0] in {"support_truncation", "temperature"}


def test_zeros_that_a_nucleus_leaves_are_not_filled_in() -> None:
    """Tokens that top_p leaves alone have a log-probability of 0, and are not called filled in."""
    settings = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}
    for config in (None, dense(**settings)):
        found = diagnosis(sampled(Sampling(**settings), vocabulary=2000, windows=3), config)
        assert "zero_filled" not in above_info(found)


def test_a_missing_value_is_not_put_on_the_engine() -> None:
    """NaN of the trainer alone is an error, and neither evidence nor remedy blames the engine for it."""

    def change(train: Tensor, rollout: Tensor) -> Pair:
        train[::10] = math.nan
        return train, rollout

    found = diagnosis(pairs(change), dense())
    assert above_info(found) == ["missing_logprobs"]
    assert "look at the engine" not in found.findings[0].remedy
    assert "both sides" in found.findings[0].remedy


@pytest.mark.parametrize("config", [None, dense()])
def test_row_means_for_tokens_are_no_noise(config: dict[str, Any] | None) -> None:
    """Row means in place of tokens have a symmetric d, and are reported as unexplained and not as noise."""
    found = diagnosis(pairs(row_means), config)
    assert above_info(found)[0] == "unexplained"
    assert "precision_noise" not in {finding.name for finding in found.findings}


def test_a_spread_of_two_nats_is_no_noise() -> None:
    """A spread of 1.8 nats around -1.6, as with another chat template, is unexplained."""
    generator = torch.Generator().manual_seed(3)

    def change(train: Tensor, rollout: Tensor) -> Pair:
        return rollout + 1.8 * torch.randn(rollout.shape, generator=generator) - 1.62, rollout

    assert above_info(diagnosis(pairs(change), dense())) == ["unexplained"]


def test_swapped_arguments_are_named() -> None:
    """A nucleus with the arguments swapped has a mean ratio above 1, and the evidence names the swap."""
    found = diagnosis((rollout, train) for train, rollout in sampled(Sampling(top_p=0.9)))
    assert above_info(found)[0] == "constant_shift"
    assert "swapped" in found.findings[0].evidence
    assert found.findings[0].confidence == "medium"


@pytest.mark.parametrize("value", [-9999.0, -100.0, -30.0])
@pytest.mark.parametrize("count", [1, 2, 12])
def test_a_placeholder_is_an_outlier(value: float, count: int) -> None:
    """Values such as -9999 on single tokens are outliers whose evidence names them, and hide nothing else."""
    found = diagnosis(pairs(placeholders(value, count)), dense())
    assert above_info(found) == ["outliers"]
    assert f"exactly {value:g}" in found.findings[0].evidence


def test_a_placeholder_of_moderate_size_is_no_temperature() -> None:
    """One token of -20 in each window of 64 rows does not make a temperature."""
    found = diagnosis(pairs(placeholders(-20.0, 1), rows=64), dense())
    assert above_info(found) == ["outliers"]


def test_a_single_token_of_many_is_no_warning() -> None:
    """One token of 100,000 beyond 5 nats is information: enough tokens have one in any healthy run."""
    generator = torch.Generator().manual_seed(4)
    windows = []
    for index in range(WINDOWS):
        rollout = -torch.rand(200, LENGTH, generator=generator).pow(4) * 6 - 1e-3
        train = rollout + NOISE * torch.randn(rollout.shape, generator=generator)
        if index == 3:
            train[7, 7] -= 6.0
        windows.append((train, rollout))
    found = diagnosis(windows, dense())
    assert above_info(found) == []
    assert "outliers" in {finding.name for finding in found.findings}


def test_padding_with_zeros_on_both_sides_is_reported() -> None:
    """Padding of a third of the tokens with 0 on both sides dilutes every mean, and is a warning."""
    generator = torch.Generator().manual_seed(5)

    def change(train: Tensor, rollout: Tensor) -> Pair:
        lengths = torch.randint(LENGTH // 3, LENGTH, (ROWS, 1), generator=generator)
        padding = torch.arange(LENGTH) >= lengths
        return train.masked_fill(padding, 0.0), rollout.masked_fill(padding, 0.0)

    assert above_info(diagnosis(pairs(change), dense())) == ["filler_scored"]


@pytest.mark.parametrize(("value", "scored"), [(-0.5, -6.0), (-1.0, -14.0)])
def test_tool_results_with_a_constant_are_reported(value: float, scored: float) -> None:
    """Tokens with one constant log-probability that the trainer finds unlikely were not sampled."""
    generator = torch.Generator().manual_seed(6)

    def change(train: Tensor, rollout: Tensor) -> Pair:
        train[:, 20:30] = scored + torch.randn(ROWS, 10, generator=generator)
        rollout[:, 20:30] = value
        return train, rollout

    for config in (None, dense()):
        assert above_info(diagnosis(pairs(change), config))[0] in {"filler_scored", "unexplained"}


@pytest.mark.parametrize("factor", [1 / math.log(2.0), 1 / math.log(10.0), 1 / 64])
def test_other_logarithms_are_no_temperature(factor: float) -> None:
    """Logarithms to base 2 or 10, and a division by the length, are one side's scale and not a temperature."""
    found = diagnosis(pairs(lambda train, rollout: (train, rollout * factor), noise=0.001), dense())
    assert above_info(found)[0] == "constant_shift"
    assert "temperature" not in above_info(found)


def test_positions_wrong_from_a_token_on_are_no_speculative_tail() -> None:
    """Rows of mixed length that are wrong from token 40 on are not told to switch speculative decoding off."""
    generator = torch.Generator().manual_seed(7)
    records = []
    for step in range(1, WINDOWS + 1):
        rollout = -torch.rand(ROWS, 96, generator=generator).pow(4) * 6 - 1e-3
        train = rollout + NOISE * torch.randn(rollout.shape, generator=generator)
        train[:, 40:] -= 5.5 * torch.rand(ROWS, 56, generator=generator)
        mask = torch.arange(96) < torch.randint(44, 97, (ROWS, 1), generator=generator)
        summary = rs.summarize(train, rollout, mask)
        records.append(Record(step, "train", 0.0, summary.metrics(), summary.to_host()))
    assert "speculative_tail" not in above_info(diagnose(records, dense()))
