"""FindingChanges: compares one diagnosis with the earlier ones and reports what changed.

A finding above ``info`` is reported once. One that is not certain, and any rise of the mismatch, must show in two
consecutive diagnoses before it is reported. Each must be missing from two before it is reported as gone. The required
number doubles with every disappearance (hysteresis against flapping).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from ratioscope.diagnosis.causes import CAUSES
from ratioscope.event import LEVELS, Event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratioscope.diagnosis.findings import Diagnosis, Finding
    from ratioscope.event import Level, Status

CONFIRMATIONS = 2
"""Consecutive diagnoses needed to report or clear a finding."""

_EXPLAINS = {cause.name: cause.explains for cause in CAUSES}
_CONFIRMS = {cause.name: cause.confirms for cause in CAUSES}
_CERTAIN = len(LEVELS)
"""Severity of an error of high confidence, which needs no confirmation."""
_RISES = frozenset({"wrong_weights", "stale_weights"})
"""Findings of one rise of the mismatch, whose kind may become clear later. Two windows may show one by chance, so that
they are confirmed even at high confidence."""


class State(Enum):
    """State of one finding between two diagnoses.

    Attributes:
        CLOSED: not reported, and not shown by the newest diagnosis.
        APPEARING: shown, and not confirmed often enough to be reported.
        OPEN: reported.
        WORSENING: reported, and shown with a higher severity that is not confirmed yet.
        FADING: reported, and no longer shown, which is not confirmed yet.
    """

    CLOSED = auto()
    APPEARING = auto()
    OPEN = auto()
    WORSENING = auto()
    FADING = auto()


@dataclass
class _Tracked:
    """History of one finding.

    Attributes:
        finding: as the newest diagnosis above info shows it.
        state: its state.
        severity: the severity that was reported; 0 while none is.
        confirmations: consecutive diagnoses that put the finding into its state.
        required: confirmations after which a change is reported.
    """

    finding: Finding
    state: State = State.CLOSED
    severity: int = 0
    confirmations: int = 0
    required: int = CONFIRMATIONS

    @property
    def is_open(self) -> bool:
        return self.severity > 0

    def is_confirmed(self, state: State) -> bool:
        """Counts one more diagnosis for a state, and returns whether they are enough for a report."""
        self.confirmations = self.confirmations + 1 if self.state is state else 1
        self.state = state
        return self.confirmations >= self.required

    def settle(self, severity: int) -> None:
        """Ends a transition at the reported severity."""
        self.severity, self.confirmations = severity, 0
        self.state = State.OPEN if severity else State.CLOSED


class FindingChanges:
    """Turns a series of diagnoses into events.

    Attributes:
        open_counts: open findings by level; None before the first diagnosis of windows, unless the config gave one.
    """

    def __init__(self) -> None:
        self._tracked: dict[str, _Tracked] = {}
        self.open_counts: dict[Level, int] | None = None

    def from_config(self, diagnosis: Diagnosis) -> list[Event]:
        """Events of a run without windows: findings of high confidence that no open finding explains."""
        explained = {name for cause in self._tracked if self._is_open(cause) for name in _EXPLAINS[cause]}
        certain = [item for item in diagnosis.findings if item.confidence == "high" and item.name not in explained]
        events = self._appear(certain, step=0, is_last=True)
        if events:
            self._count()
        return self._with_counts(events)

    def update(self, diagnosis: Diagnosis, *, is_last: bool = False) -> list[Event]:
        """Events of one more diagnosis.

        Args:
            diagnosis: of all windows so far.
            is_last: True if no diagnosis follows that could confirm a change, which is then reported at once.
        """
        step = 0 if diagnosis.steps is None else diagnosis.steps[1]
        events = self._appear(diagnosis.findings, step=step, is_last=is_last)
        events += self._disappear(diagnosis, step=step, is_last=is_last)
        self._count()
        return self._with_counts(events)

    def _appear(self, findings: Iterable[Finding], *, step: int, is_last: bool) -> list[Event]:
        """Events of findings that are new or worse."""
        events = []
        for finding in findings:
            severity = _severity(finding)
            if not severity:
                continue
            tracked = self._tracked.setdefault(finding.name, _Tracked(finding))
            tracked.finding = finding
            if severity <= tracked.severity:
                tracked.settle(tracked.severity)
                continue
            status: Status = "worse" if tracked.is_open else "appeared"
            is_confirmed = tracked.is_confirmed(State.WORSENING if tracked.is_open else State.APPEARING)
            if is_confirmed or is_last or (severity == _CERTAIN and finding.name not in _RISES):
                because = None if tracked.is_open else self._setting_reported_as(finding.name, severity)
                events.append(_event(finding, status, step, because))
                tracked.settle(severity)
        return events

    def _disappear(self, diagnosis: Diagnosis, *, step: int, is_last: bool) -> list[Event]:
        """Events of findings that are gone. A check that could not be made changes nothing."""
        events = []
        shown = {finding.name for finding in diagnosis.findings if finding.level != "info"}
        not_checked = {item.name for item in diagnosis.not_checked}
        for name, tracked in self._tracked.items():
            if name in shown:
                continue
            if tracked.state in (State.APPEARING, State.WORSENING):
                tracked.settle(tracked.severity)
            if not tracked.is_open or name in not_checked:
                continue
            is_gone = tracked.is_confirmed(State.FADING) or is_last
            because = None
            if name in diagnosis.explained or (name in _RISES and shown & _RISES):
                because = next((other for other in shown if _replaces(other, name) and self._is_open(other)), None)
                is_gone = because is not None  # else the explaining finding is not reported yet
            if is_gone:
                events.append(_event(tracked.finding, "gone", step, because))
                tracked.settle(0)
                if because is None:
                    tracked.required *= 2
        return events

    def _setting_reported_as(self, name: str, severity: int) -> str | None:
        """The open finding of a setting that this one confirms, if it was reported at least as severe."""
        candidates = ((other, self._tracked.get(other)) for other in _CONFIRMS[name])
        return next((other for other, tracked in candidates if tracked and tracked.severity >= severity), None)

    def _is_open(self, name: str) -> bool:
        return name in self._tracked and self._tracked[name].is_open

    def _count(self) -> None:
        levels = [tracked.finding.level for tracked in self._tracked.values() if tracked.is_open]
        self.open_counts = {"warning": levels.count("warning"), "error": levels.count("error")}

    def _with_counts(self, events: list[Event]) -> list[Event]:
        counts = self.open_counts or {"warning": 0, "error": 0}
        return [replace(event, warnings=counts["warning"], errors=counts["error"]) for event in events]


def _replaces(other: str, name: str) -> bool:
    """Checks that a finding reports what another one did."""
    return name in _EXPLAINS[other] or {other, name} == _RISES


def _severity(finding: Finding) -> int:
    """0 for info, 1 for a warning, 2 for an error, 3 for an error of high confidence."""
    return LEVELS.index(finding.level) + (finding.level == "error" and finding.confidence == "high")


def _event(finding: Finding, status: Status, step: int, because: str | None) -> Event:
    return Event(
        name=finding.name,
        status=status,
        level=finding.level,
        confidence=finding.confidence,
        meaning=finding.meaning,
        evidence=finding.evidence,
        remedy=finding.remedy,
        step=step,
        time=time.time(),
        warnings=0,
        errors=0,
        because=because,
    )
