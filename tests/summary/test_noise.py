"""Noise floor of a custom training loop: metrics, merging, no data, and its diagnosis."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.diagnosis import Finding, diagnose
from tests.support.reference import noise_floor

FLOOR = "ratioscope/noise_floor/"


def scored(seed: int, *, mismatch: float = 0.02, noise: float = 0.001) -> tuple[torch.Tensor, ...]:
    """Second and first scoring by the trainer, the engine's, and a mask; ``(16, 40)`` each."""
    random = torch.Generator().manual_seed(seed)
    once = -torch.rand(16, 40, generator=random) - 1.0
    again, rollout = (once + size * torch.randn(16, 40, generator=random) for size in (noise, mismatch))
    return again, once, rollout, torch.rand(16, 40, generator=random) < 0.8


def test_noise_equals_numpy_over_batches() -> None:
    """Floor and multiple of three batches, two of them scored twice, equal numpy on the arrays."""
    recorder, pairs, mismatch = rs.Recorder(), [], []
    for seed in range(3):
        again, once, rollout, mask = scored(seed)
        recorder.observe(once, rollout, mask)
        mismatch.append((once - rollout)[mask].abs().double().numpy())
        if seed != 1:
            recorder.observe_noise(again, once, mask)
            pairs.append((again.numpy(), once.numpy(), mask.numpy()))
    record = recorder.flush(step=1)
    assert record is not None
    assert record.scalars["ratioscope/counts/generations"] == 3.0
    expected = noise_floor(*pairs, abs_d=np.concatenate(mismatch))
    assert {key for key in record.scalars if key.startswith(FLOOR)} == expected.keys()
    for key, value in expected.items():
        assert record.scalars[key] == pytest.approx(value, rel=1e-4), key
    again_read = rs.Record.from_json(record.to_json())
    assert again_read.summary == record.summary


def test_without_noise_there_is_no_multiple() -> None:
    """A deterministic trainer has a floor of 0 and no multiple; without a measurement both are absent."""
    recorder = rs.Recorder()
    _, once, rollout, mask = scored(1)
    recorder.observe(once, rollout, mask)
    recorder.observe_noise(once, once, mask)
    record = recorder.flush(step=1)
    assert record is not None
    found = {key: value for key, value in record.scalars.items() if key.startswith(FLOOR)}
    assert found == {f"{FLOOR}{name}": 0.0 for name in ("abs_mean", "std", "max")}
    recorder.observe(once, rollout, mask)
    record = recorder.flush(step=2)
    assert record is not None
    assert not [key for key in record.scalars if key.startswith(FLOOR)]


def test_a_wrong_shape_is_counted_and_raised() -> None:
    """A second scoring of another shape raises, and the window closes with one event."""
    recorder = rs.Recorder()
    again, once, rollout, mask = scored(2)
    recorder.observe(once, rollout, mask)
    with pytest.raises(ValueError, match="expected"):
        recorder.observe_noise(again[:, :-1], once, mask)
    record = recorder.flush(step=1)
    assert record is not None
    assert len(record.events) == 1


def noise_finding(*, mismatch: float, noise: float) -> Finding:
    """Returns the diagnosis's finding on noise for a run with the given mismatch and noise."""
    recorder, records = rs.Recorder(), []
    for step in range(1, 5):
        again, once, rollout, mask = scored(step, mismatch=mismatch, noise=noise)
        recorder.observe(once, rollout, mask)
        recorder.observe_noise(again, once, mask)
        records.append(recorder.flush(step=step))
    diagnosis = diagnose(record for record in records if record is not None)
    (finding,) = (finding for finding in diagnosis.findings if finding.name == "precision_noise")
    return finding


def test_the_diagnosis_compares_mismatch_with_the_floor() -> None:
    """Mismatch at the floor is info; forty times the floor is attributed to the engine."""
    near, far, still = (noise_finding(mismatch=0.012, noise=noise) for noise in (0.01, 0.0003, 0.0))
    assert {finding.level for finding in (near, far, still)} == {"info"}
    assert "1.2 times the noise floor" in near.evidence
    assert near.evidence.endswith("no engine could be nearer")
    assert near.confidence == "high"
    assert "40 times the noise floor" in far.evidence
    assert far.evidence.endswith("the rest comes from the engine, its precision or its kernels")
    assert "equal to itself to the bit" in still.evidence
