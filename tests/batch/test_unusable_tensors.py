"""Tensors whose values cannot be read are refused at the call, and the recorder goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ratioscope

LOGPS = torch.full((2, 4), -1.0)
RULE = ratioscope.Correction("token", "truncate", upper=2.0)


@pytest.mark.parametrize(
    "changed",
    [
        {"train_logps": LOGPS.to(torch.float8_e4m3fn)},
        {"rollout_logps": LOGPS.to_sparse()},
        {"mask": torch.ones(2, 4).to_sparse()},
        {"applied": "1.0"},
        {"applied": [[1.0] * 4] * 2},
        {"applied": torch.ones(2, 4).to_sparse()},
    ],
)
def test_unusable_tensor_is_one_clear_error(changed: dict[str, Any]) -> None:
    """An unusable tensor is refused with what was got and expected; the next batch is recorded."""
    recorder = ratioscope.Recorder(correction=RULE)
    batch: dict[str, Any] = {"train_logps": LOGPS, "rollout_logps": LOGPS, "mask": torch.ones(2, 4)}
    with pytest.raises((TypeError, ValueError), match=r"got .*expected"):
        recorder.observe(**(batch | changed))
    recorder.observe(**batch)
    record = recorder.flush(step=1)
    assert record is not None
    assert record.counts("token_log_ratio").sum() == 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_lists_do_not_depend_on_the_default_dtype(dtype: torch.dtype) -> None:
    """Lists are float32, whatever torch's default dtype is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        metrics = ratioscope.summarize([[-0.105, -12.34, -3.2]], [[-0.1, -12.38, -3.21]], [[1, 1, 1]]).metrics()
    finally:
        torch.set_default_dtype(before)
    assert metrics["ratioscope/log_ratio/abs_mean"] == pytest.approx(0.0183333, abs=1e-6)
