"""Drift of the policy, separate from the engines' mismatch: metrics, windows, layouts, no data."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import ratioscope as rs
from ratioscope.summary.noise_and_drift import drift_summary
from tests.support.reference import drift

AT = "ratioscope/drift/"
CLIP = (0.2, 0.28)


def policies(seed: int) -> tuple[torch.Tensor, ...]:
    """Current, old and rollout log-probabilities and a mask; ``(16, 40)`` each."""
    random = torch.Generator().manual_seed(seed)
    rollout = -torch.rand(16, 40, generator=random) - 1.0
    old = rollout + 0.02 * torch.randn(16, 40, generator=random)
    current = old + 0.15 * torch.randn(16, 40, generator=random) - 0.03
    return current, old, rollout, torch.rand(16, 40, generator=random) < 0.8


def drift_metrics(record: rs.Record | None) -> dict[str, float]:
    """Returns a record's metrics of drift."""
    assert record is not None
    return {key: value for key, value in record.scalars.items() if key.startswith(AT)}


def test_drift_equals_numpy_over_batches() -> None:
    """The drift of three micro-batches equals numpy on their arrays, and the mismatch is unchanged."""
    recorder, alone, pairs = rs.Recorder(), rs.Recorder(), []
    for seed in range(3):
        current, old, rollout, mask = policies(seed)
        recorder.observe(old, rollout, mask)
        alone.observe(old, rollout, mask)
        recorder.observe_drift(current, old, mask, epsilon=CLIP)
        pairs.append((current.numpy(), old.numpy(), mask.numpy()))
    record, other = recorder.flush(step=1), alone.flush(step=1)
    expected = drift(*pairs, epsilon=CLIP)
    found = drift_metrics(record)
    assert found.keys() == expected.keys()
    assert 0.05 < expected[f"{AT}outside"] < 0.5
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-4), key
    assert record is not None
    assert other is not None
    assert {key: value for key, value in record.scalars.items() if key not in found} == other.scalars
    assert rs.Record.from_json(record.to_json()).summary == record.summary


def test_the_fraction_outside_needs_a_clip_range() -> None:
    """Bounds count as inside; batches without a clip range enter all other drift metrics only."""
    recorder = rs.Recorder()
    old = torch.zeros(1, 4)
    current = torch.tensor([[0.5, 1.0, 2.0, 2.25]]).log()
    recorder.observe(old, old, torch.ones(1, 4))
    recorder.observe_drift(current, old, torch.ones(1, 4), epsilon=(0.5, 1.0))
    recorder.observe_drift(torch.full((1, 4), math.log(4.0)), old, torch.ones(1, 4))
    found = drift_metrics(recorder.flush(step=1))
    assert found[f"{AT}outside"] == 0.25
    assert found[f"{AT}ratio_max"] == pytest.approx(4.0)
    recorder.observe(old, old, torch.ones(1, 4))
    recorder.observe_drift(current, old, torch.ones(1, 4))
    assert f"{AT}outside" not in drift_metrics(recorder.flush(step=2))


@pytest.mark.parametrize("layout", ["packed", "nested", "rows"])
def test_every_layout_gives_the_same_drift(layout: str) -> None:
    """Packed, nested and ragged batches have the drift of the padded one."""
    current, old, _, _ = policies(1)
    lengths = [40, 7, 19]
    mask = torch.arange(40) < torch.tensor(lengths)[:, None]
    rows = [[part[row, :n] for row, n in enumerate(lengths)] for part in (current, old, mask)]
    batch: Any = rows
    packing = None
    if layout == "packed":
        batch = [torch.cat(part) for part in rows]
        packing = rs.Packing.of(cu_seqlens=[0, 40, 47, 66])
    elif layout == "nested":
        batch = [torch.nested.nested_tensor(part, layout=torch.jagged) for part in rows]
    padded = drift_summary(current[:3], old[:3], mask, epsilon=CLIP)
    assert drift_summary(*batch, epsilon=CLIP, packing=packing).metrics() == pytest.approx(padded.metrics())


def test_drift_of_steps_without_a_batch_goes_into_the_next_record() -> None:
    """Steps that reuse a generation make no record; their drift enters the next record only."""
    recorder, pairs = rs.Recorder(), []
    current, old, rollout, mask = policies(2)
    for step in range(1, 5):
        moved = old + step * (current - old)
        recorder.observe_drift(moved, old, mask, epsilon=CLIP)
        pairs.append((moved.numpy(), old.numpy(), mask.numpy()))
        if step < 4:
            assert recorder.flush(step=step) is None
    recorder.observe(old, rollout, mask)
    assert drift_metrics(recorder.flush(step=4)) == pytest.approx(drift(*pairs, epsilon=CLIP), rel=1e-4)
    recorder.observe(old, rollout, mask)
    assert drift_metrics(recorder.flush(step=5)) == {}


def test_an_unchanged_policy_has_no_drift() -> None:
    """Equal log-probabilities give a drift of 0 and ratios of 1; without observations there is no metric."""
    recorder = rs.Recorder()
    _, old, rollout, mask = policies(3)
    recorder.observe(old, rollout, mask)
    recorder.observe_drift(old, old, mask, epsilon=CLIP)
    still = {"mean": 0.0, "abs_mean": 0.0, "k3": 0.0, "ratio_min": 1.0, "ratio_max": 1.0, "outside": 0.0}
    assert drift_metrics(recorder.flush(step=1)) == {f"{AT}{name}": value for name, value in still.items()}
    recorder.observe(old, rollout, mask)
    recorder.observe_drift(old[:, :0], old[:, :0], mask[:, :0])
    assert drift_metrics(recorder.flush(step=2)) == {}


@pytest.mark.parametrize("epsilon", [0.2, (0.2,), (-0.1, 0.2), (0.2, math.nan)])
def test_a_wrong_range_is_counted_and_raised(epsilon: Any) -> None:
    """A clip range that is not a pair of numbers from 0 on raises, and the window closes with one event."""
    recorder = rs.Recorder()
    current, old, rollout, mask = policies(4)
    recorder.observe(old, rollout, mask)
    with pytest.raises(ValueError, match="expected None or a pair"):
        recorder.observe_drift(current, old, mask, epsilon=epsilon)
    record = recorder.flush(step=1)
    assert record is not None
    assert len(record.events) == 1
