"""Runs whose log-ratios have a given spread in each window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import ratioscope as rs
from ratioscope.alerts.confirmation import FindingChanges
from ratioscope.alerts.schedule import Schedule
from ratioscope.diagnosis import Run, diagnose
from ratioscope.record import Record
from ratioscope.runs.pooled import PooledRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ratioscope.event import Event


def windows_of(spreads: Iterable[float], *, seed: int = 0, rows: int = 16, length: int = 64) -> list[Record]:
    """Records of windows with Gaussian log-ratios of given spreads, whose mean ratio is 1."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for step, spread in enumerate(spreads, 1):
        rollout = -torch.rand(rows, length, generator=generator).pow(4) * 6 - 1e-3
        train = rollout + spread * torch.randn(rows, length, generator=generator) - spread**2 / 2
        summary = rs.summarize(train, rollout, torch.ones(rows, length))
        made.append(Record(step, "train", 0.0, {"ratioscope/counts/tokens": float(rows * length)}, summary.to_host()))
    return made


def told(records: Iterable[Record], config: Mapping[str, Any] | None = None) -> list[Event]:
    """Events of a run that is watched and never late, without the final diagnosis."""
    changes, run, schedule = FindingChanges(), Run(PooledRun(), config or {}), Schedule()
    events: list[Event] = []
    for record in records:
        run.add(record)
        if schedule.is_due(run) or schedule.is_urgent(run):
            schedule.done(run)
            events += changes.update(diagnose(run))
    return events
