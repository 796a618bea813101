"""Snippets of the how-to for other trainers, run on batches in those trainers' layouts."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.project.test_docs import ROOT, snippets

if TYPE_CHECKING:
    import ratioscope as rs

PAGE = ROOT / "docs" / "how-to" / "other-trainers.md"
RATIO = "sampling/raw_importance_sampling_ratio/"
LOG_RATIOS = (torch.tensor([0.1, -0.2, 0.3]), torch.tensor([0.0, 2.0]))
"""Log-ratios of the trained tokens of two rows. The largest ratio is exp(2), and any other is inside every rule."""

OLD = (torch.tensor([-0.5, -0.7, -0.9]), torch.tensor([-1.5, -0.25]))


@pytest.fixture
def page() -> dict[str, Any]:
    """Runs the page's snippets and returns the names that they define."""
    names: dict[str, Any] = {}
    for snippet in snippets(PAGE):
        exec(compile(snippet, str(PAGE), "exec"), names)
    return names


def laid(
    rows: tuple[torch.Tensor, ...], positions: tuple[slice, ...], shape: tuple[int, int], filler: float = 0.0
) -> Any:
    """Makes a tensor with rows at given positions and a filler at all others."""
    tensor = torch.full(shape, filler)
    for row, (values, position) in enumerate(zip(rows, positions, strict=True)):
        tensor[row, position] = values
    return tensor


def rollouts() -> tuple[torch.Tensor, ...]:
    """Returns the engine's log-probabilities: the old ones minus the log-ratios."""
    return tuple(old - d for old, d in zip(OLD, LOG_RATIOS, strict=True))


def ones() -> tuple[torch.Tensor, ...]:
    """Returns a mask of the trained tokens."""
    return tuple(torch.ones(len(row)) for row in OLD)


def checked(recorder: rs.Recorder, *, rows_empty: int = 0, largest: float = 2.0) -> dict[str, float]:
    """Flushes the recorder, asserts that it has the five tokens of two rows, and returns the scalars."""
    record = recorder.flush(step=1)
    assert record is not None
    assert not record.events
    scalars = dict(record.scalars)
    counts = {name: scalars[f"ratioscope/counts/{name}"] for name in ("tokens", "rows", "rows_empty", "nan", "missing")}
    assert counts == {"tokens": 5, "rows": 2, "rows_empty": rows_empty, "nan": 0, "missing": 0}
    assert scalars["ratioscope/token/raw/max"] == pytest.approx(math.exp(largest), rel=1e-5)
    mean = torch.cat(LOG_RATIOS).mean().item()
    assert scalars["ratioscope/token/log_ratio/mean"] == pytest.approx(mean, rel=1e-5)
    return scalars


def test_nemo_rl(page: dict[str, Any]) -> None:
    """NeMo-RL's columns of prompt and completion give the log-ratios of the masked-in tokens only."""
    positions, shape = (slice(2, 5), slice(3, 5)), (3, 6)
    rows = [*OLD, torch.tensor([-1.0, -1.0])]
    positions = (*positions, slice(1, 3))
    sides = [laid((*side, rows[2]), positions, shape) for side in (OLD, rollouts())]
    sides[0][:, 5], sides[1][:, 5] = -3.0, -8.0  # these columns are masked out
    data = {
        "input_ids": torch.arange(18).view(3, 6),
        "prev_logprobs": sides[0],
        "generation_logprobs": sides[1],
        "token_mask": laid((*ones(), torch.ones(2)), positions, shape),
        "sample_mask": torch.tensor([1.0, 1.0, 0.0]),  # the third sample is left out
    }
    page["observe_nemo"](page["nemo"], data)
    scalars = checked(page["nemo"], rows_empty=1)
    assert scalars["ratioscope/modified/fraction"] == 1 / 5  # exp(2) is above 5


def test_openrlhf(page: dict[str, Any]) -> None:
    """OpenRLHF's padded actions give one batch in two epochs, and the drift of both."""
    positions, shape = (slice(0, 3), slice(1, 3)), (2, 4)
    experience = SimpleNamespace(
        action_log_probs=laid(OLD, positions, shape),
        rollout_log_probs=laid(rollouts(), positions, shape, filler=-4.0),
        action_mask=laid(ones(), positions, shape).bool(),
    )
    for epoch in range(2):
        current = experience.action_log_probs + epoch * 0.4 * experience.action_mask
        current.requires_grad_()
        page["observe_openrlhf"](page["openrlhf"], experience, current, eps_clip=[0.2, 0.28], first_epoch=epoch == 0)
    scalars = checked(page["openrlhf"])
    assert scalars["ratioscope/modified/fraction"] == 1 / 5
    assert scalars["ratioscope/drift/abs_mean"] == pytest.approx(0.2)
    assert scalars["ratioscope/drift/outside"] == 0.5


def test_skyrl(page: dict[str, Any]) -> None:
    """SkyRL's completions are read without the environment's tokens and without rows that only fill up ranks."""
    positions, shape = (slice(0, 3), slice(2, 4)), (3, 5)
    positions = (*positions, slice(0, 1))
    filled = torch.tensor([-0.1])
    sides = [laid((*side, filled), positions, shape) for side in (OLD, rollouts())]
    sides[0][1, :2] = -9.0  # the environment's, which the trainer scores and the engine did not
    training_input = {
        "action_log_probs": sides[0],
        "rollout_logprobs": sides[1],
        "loss_mask": laid((*ones(), torch.zeros(1)), positions, shape),
    }
    page["observe_skyrl"](page["skyrl"], training_input)
    scalars = checked(page["skyrl"], rows_empty=1)
    assert scalars["ratioscope/modified/dropped"] == 2 / 5  # the second row's product, exp(2), is above 1.3


@pytest.mark.parametrize("pads", [0, 3])
def test_prime_rl(page: dict[str, Any], pads: int) -> None:
    """Completions in prime-rl's packed micro-batch are found by their positions, with and without end padding."""
    prompt = torch.tensor([-7.0, -0.1])
    packed = [torch.cat([prompt, side[0], prompt, side[1], torch.zeros(pads)]) for side in (OLD, rollouts())]
    mask = torch.cat([torch.zeros(2), torch.ones(3), torch.zeros(2), torch.ones(2), torch.zeros(pads)]).bool()
    micro_batch = {
        "position_ids": torch.cat([torch.arange(5), torch.arange(4), torch.arange(pads)])[None],
        "inference_logprobs": packed[1][None],
        "loss_mask": mask[None],
        "advantages": torch.tensor([-1.0] * 5 + [0.5] * 4 + [0.0] * pads)[None],
    }
    page["observe_prime_rl"](page["prime_rl"], micro_batch, packed[0][None].requires_grad_())
    scalars = checked(page["prime_rl"])
    assert scalars["ratioscope/modified/positive_advantage"] == 1 / 2  # its probability rose by more than 0.2
    assert scalars["ratioscope/modified/negative_advantage"] == 0.0


def test_prime_rl_without_a_trained_token(page: dict[str, Any]) -> None:
    """A micro-batch of prime-rl without a trained token raises no error."""
    micro_batch = {
        "position_ids": torch.arange(4)[None],
        "inference_logprobs": torch.zeros(1, 4),
        "loss_mask": torch.zeros(1, 4, dtype=torch.bool),
        "advantages": torch.zeros(1, 4),
    }
    page["observe_prime_rl"](page["prime_rl"], micro_batch, torch.full((1, 4), -2.0))
    record = page["prime_rl"].flush(step=1)
    assert record is not None
    assert record.scalars["ratioscope/counts/tokens"] == 0


def test_slime(page: dict[str, Any]) -> None:
    """The slime hook weights the flat loss by the rule, with slime's keyword arguments."""
    train, rollout, masks = ([row.clone() for row in rows] for rows in (OLD, rollouts(), ones()))
    masks[0] = torch.tensor([1, 1, 1])
    pg_loss = torch.arange(1.0, 6.0, requires_grad=True)
    loss, kept, metrics = page["recorded_tis"](
        SimpleNamespace(tis_clip=2.0, tis_clip_low=0.0),
        pg_loss=pg_loss,
        train_log_probs=train,
        rollout_log_probs=rollout,
        loss_masks=masks,
        total_lengths=[7, 9],
        response_lengths=[3, 2],
    )
    weights = torch.cat(LOG_RATIOS).exp().clamp(max=2.0)
    torch.testing.assert_close(loss, pg_loss * weights, rtol=1e-5, atol=1e-6)
    assert (kept, metrics) == (masks, {})
    loss.sum().backward()
    scalars = checked(page["slime"])
    assert scalars["ratioscope/modified/fraction"] == 1 / 5
    page["slime"].observe(train, rollout, masks)
    assert checked(page["slime"])[f"{RATIO}max"] == scalars[f"{RATIO}max"]
