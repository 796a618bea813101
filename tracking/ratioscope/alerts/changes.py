"""News: from one diagnosis after the other to what is new in them.

A finding above ``info`` is told once. One that is not certain must show in two looks in a row first, and must be
absent from two in a row before it is said to be gone; each time it went, twice as many, so that noise does not flap.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ratioscope.diagnosis.causes import CAUSES
from ratioscope.event import LEVELS, Event

if TYPE_CHECKING:
    from ratioscope.diagnosis.findings import Diagnosis, Finding
    from ratioscope.event import Level, Status

LOOKS = 2
"""Looks in a row that decide."""

_EXPLAINS = {cause.name: cause.explains for cause in CAUSES}
_SETTINGS = frozenset(cause.name for cause in CAUSES if cause.from_config)
"""Findings that the config alone gives, and that what the numbers say later only confirms."""


@dataclass
class _Known:
    """What is known of one finding.

    Attributes:
        finding: as it was last seen above info.
        told: how grave it was when it was last told; 0 if it is not open.
        seen: looks in a row that it was graver than told.
        absent: looks in a row that it did not show.
        gone: how often it went.
    """

    finding: Finding
    told: int = 0
    seen: int = 0
    absent: int = 0
    gone: int = 0

    @property
    def patience(self) -> int:
        return int(LOOKS * 2 ** min(self.gone, 16))


class News:
    """Tells the new from the known.

    Attributes:
        open_counts: open findings by level; None before the first look at windows, unless the config had one.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self.open_counts: dict[Level, int] | None = None

    def before(self, diagnosis: Diagnosis) -> list[Event]:
        """What the config alone says with high confidence, unless numbers of an earlier part of the run said it."""
        shown = {name for cause in self._known if self._is_open(cause) for name in _EXPLAINS[cause]}
        sure = [each for each in diagnosis.findings if each.confidence == "high" and each.name not in shown]
        events = self._appear(sure, step=0, at_once=True)
        if events:
            self._count()
        return self._numbered(events)

    def after(self, diagnosis: Diagnosis, *, last: bool = False) -> list[Event]:
        """What a look at the windows says that no earlier one did.

        Args:
            diagnosis: of all windows so far.
            last: that no look follows, so that a second one cannot be waited for.
        """
        step = 0 if diagnosis.steps is None else diagnosis.steps[1]
        events = self._appear(diagnosis.findings, step=step, at_once=last)
        events += self._vanish(diagnosis, step=step, at_once=last)
        self._count()
        return self._numbered(events)

    def _appear(self, findings: tuple[Finding, ...] | list[Finding], *, step: int, at_once: bool) -> list[Event]:
        events = []
        for finding in findings:
            gravity = _gravity(finding)
            if not gravity:
                continue
            known = self._known.setdefault(finding.name, _Known(finding))
            known.finding, known.absent = finding, 0
            known.seen = known.seen + 1 if gravity > known.told else 0
            if gravity <= known.told or not (at_once or gravity == _CERTAIN or known.seen >= known.patience):
                continue
            said_as = self._said_as(finding.name, gravity) if not known.told else None
            events.append(_event(finding, "worse" if known.told else "appeared", step, said_as))
            known.told, known.seen = gravity, 0
        return events

    def _vanish(self, diagnosis: Diagnosis, *, step: int, at_once: bool) -> list[Event]:
        """What shows no longer. A check that could not be made says nothing."""
        events = []
        above = {finding.name for finding in diagnosis.findings if finding.level != "info"}
        unclear = {item.name for item in diagnosis.not_checked}
        for name, known in self._known.items():
            if name in above:
                continue
            known.seen = 0
            if not known.told or name in unclear:
                continue
            known.absent += 1
            cause = next((other for other in above if name in _EXPLAINS[other] and self._is_open(other)), None)
            if name in diagnosis.explained:
                if cause is None:  # what explains it is not told yet
                    continue
            elif not at_once and known.absent < known.patience:
                continue
            events.append(_event(known.finding, "gone", step, cause if name in diagnosis.explained else None))
            known.told, known.absent = 0, 0
            known.gone += name not in diagnosis.explained
        return events

    def _said_as(self, name: str, gravity: int) -> str | None:
        """The open finding of a setting that this one explains, if that was told at least as gravely."""
        kin = ((other, self._known.get(other)) for other in _EXPLAINS[name] if other in _SETTINGS)
        return next((other for other, known in kin if known is not None and known.told >= gravity), None)

    def _is_open(self, name: str) -> bool:
        return name in self._known and self._known[name].told > 0

    def _count(self) -> None:
        levels = [known.finding.level for known in self._known.values() if known.told]
        self.open_counts = {"warning": levels.count("warning"), "error": levels.count("error")}

    def _numbered(self, events: list[Event]) -> list[Event]:
        counts = self.open_counts or {"warning": 0, "error": 0}
        return [replace(event, warnings=counts["warning"], errors=counts["error"]) for event in events]


_CERTAIN = len(LEVELS)


def _gravity(finding: Finding) -> int:
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
