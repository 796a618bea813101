"""Correlations at lag ±1, which detect shifted log-probabilities, and log-probabilities of exactly 0."""

from __future__ import annotations

import pytest
import torch

import ratioscope as rs

OWN = "ratioscope/"


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_one_token_shift_shows_at_its_lag(shift: int) -> None:
    """If the trainer's values equal the engine's at t + shift, that lag correlates fully and lag 0 does not."""
    logps = -torch.rand(8, 200, generator=torch.Generator().manual_seed(1)) * 5
    metrics = rs.summarize(logps.roll(-shift, dims=1), logps, torch.ones(8, 200)).metrics()
    assert metrics[f"{OWN}alignment/lag_{shift}"] > 0.98
    assert abs(metrics[f"{OWN}alignment/lag_0"]) < 0.1
    assert abs(metrics[f"{OWN}alignment/lag_{-shift}"]) < 0.1


def test_only_adjacent_tokens_are_compared() -> None:
    """Tokens on either side of a hole in the mask are not compared with each other."""
    mask = torch.tensor([[1, 1, 0, 1, 0, 1, 1, 1]])
    logps = -torch.rand(1, 8)
    assert rs.summarize(logps, logps, mask).count("lag/n") == 3
    assert f"{OWN}alignment/lag_1" not in rs.summarize(logps, logps, mask[:, [0, 1, 2, 3, 4, 5, 6, 2]]).metrics()


def test_log_probabilities_of_exactly_zero_are_counted_by_side() -> None:
    """A log-probability of 0 is counted for its side, unless the token is masked out."""
    train, rollout = torch.tensor([[-1.0, 0.0, -2.0, 0.0]]), torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    metrics = rs.summarize(train, rollout, torch.tensor([[1, 1, 1, 0]])).metrics()
    assert metrics[f"{OWN}counts/zero_train_logp"] == 1
    assert metrics[f"{OWN}counts/zero_rollout_logp"] == 3
