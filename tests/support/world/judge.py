"""Judge: what the diagnosis says of trainings, at their end and while they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ratioscope as rs
from ratioscope.alerts.confirmation import FindingChanges
from ratioscope.alerts.schedule import Schedule
from ratioscope.diagnosis import Diagnosis, Run, diagnose
from ratioscope.record import Record
from ratioscope.runs.pooled import PooledRun
from tests.support.world.training import recorded, train

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ratioscope.event import Event
    from tests.support.world.kinds import Kind
    from tests.support.world.training import World


@dataclass(frozen=True)
class Verdict:
    """Verdict on one training.

    Attributes:
        diagnosis: at the end.
        events: events while it ran, if the live watch is never late.
        right: names of causes that count as right.
    """

    diagnosis: Diagnosis
    events: tuple[Event, ...]
    right: frozenset[str]

    @property
    def stopped(self) -> int | None:
        """Step at which ``on_finding="stop"`` would end the training; None if it would not."""
        return next((event.step for event in self.events if event.is_certain), None)

    @property
    def first(self) -> str | None:
        """Name of the first finding above info."""
        return next((finding.name for finding in self.diagnosis.findings if finding.level != "info"), None)

    @property
    def outcome(self) -> str:
        """``right``, ``wrong`` or ``nothing`` for a fault; ``healthy``, ``warning`` or ``error`` for none."""
        if not self.right:
            return {"error": "error", "warning": "warning"}.get(self.diagnosis.level, "healthy")
        return "nothing" if self.first is None else "right" if self.first in self.right else "wrong"

    @property
    def wrong_errors(self) -> list[str]:
        """Names of findings at error that are not right."""
        findings = self.diagnosis.findings
        return [finding.name for finding in findings if finding.level == "error" and finding.name not in self.right]


def records(world: World, seed: int) -> Iterator[Record]:
    """Yields a record per window."""
    for window in train(world, seed):
        summary = rs.summarize(window.train, window.rollout, window.mask)
        # Checks compute from the state all that they need beside this count.
        scalars = {"ratioscope/counts/tokens": float(summary.count("token/n"))}
        yield Record(window.index + 1, "train", 0.0, scalars, summary.to_host())


def judge(kind: Kind, seed: int) -> tuple[Verdict, Verdict]:
    """Verdicts on a training without and with its recorded config."""
    made = list(records(kind.world, seed))
    known = verdict(made, recorded(kind.world), kind.truth | kind.named)
    return verdict(made, {}, kind.truth), known


def verdict(made: list[Record], config: Mapping[str, Any], right: frozenset[str]) -> Verdict:
    """Verdict on records, diagnosed at the windows at which the live watch does it if it is never late."""
    changes, run, schedule = FindingChanges(), Run(PooledRun(), config), Schedule()
    events = changes.from_config(diagnose(run))
    for record in made:
        run.add(record)
        if schedule.is_due(run) or schedule.is_urgent(run):
            schedule.done(run)
            events += changes.update(diagnose(run))
    return Verdict(diagnose(made, config), tuple(events), right)
