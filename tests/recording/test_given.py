"""Values that a training loop hands over: steps, and the numbers of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope

if TYPE_CHECKING:
    from pathlib import Path


def observe(recorder: ratioscope.Recorder) -> None:
    """Observes one small batch."""
    rollout = -torch.rand(2, 4) - 0.1
    recorder.observe(rollout + 0.1, rollout, torch.ones(2, 4))


def test_integers_of_numpy_and_tensors_are_steps(tmp_path: Path) -> None:
    """Steps of numpy and of tensors reach the journal as plain integers."""
    with ratioscope.Recorder(output_dir=tmp_path) as recorder:
        for step in (np.int64(1), np.uint8(2), torch.tensor(3), 4):
            observe(recorder)
            recorder.flush(step=step)  # type: ignore[arg-type]
        recorder.relay({"loss": 1.0}, step=np.int32(5))  # type: ignore[arg-type]
    with ratioscope.JournalReader(tmp_path) as journal:
        assert [record.step for record in journal.records()] == [1, 2, 3, 4, 5]
    assert not recorder.incidents.counts


@pytest.mark.parametrize("step", [1.0, np.float32(2.0), "3", None, True, 2**70, torch.tensor([1.5])])
def test_other_steps_are_refused_at_the_call(step: Any) -> None:
    """A step that is no integer is refused, and the window can still be flushed."""
    recorder = ratioscope.Recorder()
    observe(recorder)
    with pytest.raises((TypeError, ValueError), match="step"):
        recorder.flush(step=step)
    with pytest.raises((TypeError, ValueError), match="step"):
        recorder.relay({"loss": 1.0}, step=step)
    record = recorder.flush(step=1)
    assert record is not None
    assert record.counts("token_log_ratio").sum() == 8


def test_one_bad_value_of_a_log_costs_only_itself(tmp_path: Path) -> None:
    """Numbers of numpy and 0-d tensors are kept beside values that no backend can hold."""
    logs: dict[Any, Any] = {
        "loss": 0.5,
        "lr": np.float32(0.25),
        "n": np.int64(3),
        "kl": torch.tensor(0.125),
        "bf16": torch.tensor(2.0, dtype=torch.bfloat16),
        "zero_d": np.array(7.0),
        "huge": 10**400,
        "nan": float("nan"),
        "meta": torch.zeros((), device="meta"),
        "vector": torch.zeros(2),
        "text": "1.0",
        1: 2.0,
        None: 3.0,
        "half\ud800": 1.0,
        "nul\0": 2.0,
        "token=hf_aB3dE6gH9jK2mN5pQ8s": 3.0,
    }
    with ratioscope.Recorder(output_dir=tmp_path) as recorder:
        observe(recorder)
        recorder.relay(logs, step=1, record=recorder.merge(step=1))
    with ratioscope.JournalReader(tmp_path) as journal:
        (record,) = journal.records()
    expected = {"loss": 0.5, "lr": 0.25, "n": 3.0, "kl": 0.125, "bf16": 2.0, "zero_d": 7.0}
    assert {key: record.logs[key] for key in expected} == expected
    assert {*record.logs} - {*expected} == {"half?", "nul\N{REPLACEMENT CHARACTER}", "token=[redacted]"}
    assert record.counts("token_log_ratio").sum() == 8
    assert not recorder.incidents.counts
