"""Runs that the conformance checks record."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import ratioscope as rs
from ratioscope.testing.comparison import require
from ratioscope.trackers.base import RunContext

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor

    from ratioscope.trackers.adaptor import TrackerLike
    from ratioscope.trackers.base import Row, Tracker

SECRET = "hf_" + "Qv7x2Lr9TkPz4WmB8sNdYc6EgJh3Fa1U"
"""Secret in the config of the checks' recorder; it must not reach the backend."""


def record(
    tracker: TrackerLike, folder: Path, *, steps: Iterable[int], evaluation: int | None = None, corrupt: bool = False
) -> list[Row]:
    """Records windows with a recorder and returns the rows that its trackers receive."""
    import torch

    memory = rs.MemoryTracker()
    recorder = rs.Recorder(
        report_to=[memory, tracker],
        correction=rs.Correction("token", "truncate", upper=1.2),
        config={"api_key": SECRET},
        output_dir=folder,
        run_name="conformance",
        close_timeout=60.0,
    )
    windows = [(step, "train") for step in steps] + ([] if evaluation is None else [(evaluation, "eval")])
    for step, split in windows:
        train, rollout = _batch(step, corrupt=corrupt)
        recorder.observe(train, rollout, torch.ones(6, 9, dtype=torch.bool), split=split)
        recorder.flush(step=step, split=split)
    recorder.close()
    failed = {kind: count for kind, count in recorder.incidents.counts.items() if "failed" in kind or ":" in kind}
    require(not failed, f"the recorder met failures: {failed}")
    return memory.rows


def _batch(seed: int, *, corrupt: bool) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities ``(6, 9)`` of trainer and rollout; if ``corrupt``, one row has invalid values."""
    import torch

    random = torch.Generator().manual_seed(seed)
    rollout = -torch.rand(6, 9, generator=random) - 0.1
    train = rollout + 0.3 * torch.randn(6, 9, generator=random)
    if corrupt:
        rollout[0] = torch.tensor([-1.0, math.nan, -math.inf, -1000.0, 0.5, -1.0, -1.0, -1.0, -1.0])
        train[0, 3] = -0.1
    return train, rollout


def rows(steps: tuple[int, ...]) -> list[Row]:
    """Makes rows without a journal."""
    import torch

    memory = rs.MemoryTracker()
    with rs.Recorder(report_to=[memory], correction=rs.Correction("token", "truncate", upper=1.2)) as recorder:
        for step in steps:
            logps = -torch.rand(4, 8, generator=torch.Generator().manual_seed(step)) - 0.1
            recorder.observe(logps, logps - 0.01 * step, torch.ones(4, 8, dtype=torch.bool))
            recorder.flush(step=step)
    return memory.rows


def drive(tracker: Tracker, folder: Path, rows: Iterable[Row]) -> Tracker:
    """Opens a new run and writes rows."""
    config = {"correction": {"upper": 1.2}}
    opened = tracker.open(RunContext(config=config, output_dir=folder, run_name="conformance", close_timeout=60.0))
    require(opened is True, f"open() returned {opened!r} without a reporter to wait for; expected True")
    identity = tracker.connect() or {}
    texts = all(isinstance(part, str) for pair in identity.items() for part in pair)
    require(texts, f"connect() returned {identity!r}; expected a mapping of texts")
    for row in rows:
        tracker.write(row)
    return tracker
