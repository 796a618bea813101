"""Whether the two sides speak of the same token, and log-probabilities that are exactly 0."""

from __future__ import annotations

import pytest
import torch

import ratioscope as rs

OWN = "ratioscope/"


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_one_token_shift_shows_at_its_lag(shift: int) -> None:
    """Where the trainer has at t what the engine has at t + shift, that lag correlates fully and lag 0 does not."""
    logps = -torch.rand(8, 200, generator=torch.Generator().manual_seed(1)) * 5
    metrics = rs.summarize(logps.roll(-shift, dims=1), logps, torch.ones(8, 200)).metrics()
    assert metrics[f"{OWN}alignment/lag_{shift}"] > 0.98
    assert abs(metrics[f"{OWN}alignment/lag_0"]) < 0.1
    assert abs(metrics[f"{OWN}alignment/lag_{-shift}"]) < 0.1


def test_neighbours_are_neighbours_in_the_row() -> None:
    """A hole in the mask parts its two sides, so that only tokens side by side are compared."""
    mask = torch.tensor([[1, 1, 0, 1, 0, 1, 1, 1]])
    logps = -torch.rand(1, 8)
    assert rs.summarize(logps, logps, mask).count("lag/n") == 3
    assert f"{OWN}alignment/lag_1" not in rs.summarize(logps, logps, mask[:, [0, 1, 2, 3, 4, 5, 6, 2]]).metrics()


def test_log_probabilities_of_exactly_zero_are_counted_by_side() -> None:
    """A log-probability of 0 is counted for the side that has it, and not where the token is masked out."""
    train, rollout = torch.tensor([[-1.0, 0.0, -2.0, 0.0]]), torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    metrics = rs.summarize(train, rollout, torch.tensor([[1, 1, 1, 0]])).metrics()
    assert metrics[f"{OWN}counts/zero_train_logp"] == 1
    assert metrics[f"{OWN}counts/zero_rollout_logp"] == 3
