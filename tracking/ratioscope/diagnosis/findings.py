"""Results of a diagnosis: signs, findings, and causes that were not checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ratioscope.event import LEVELS, Confidence, Level

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.runs.foreign.names import Name


@dataclass(frozen=True)
class Sign:
    """Evidence that a cause is present in a run.

    Attributes:
        level: severity.
        confidence: certainty.
        evidence: one sentence with the numbers.
        steps: first and last step at which it shows; None for all windows.
    """

    level: Level
    confidence: Confidence
    evidence: str
    steps: tuple[int, int] | None = None


class Unchecked(Exception):
    """Raised by a check that lacks data; the message is the reason."""


@dataclass(frozen=True)
class Finding:
    """A cause that is present in a run.

    Attributes:
        name: name of the cause.
        meaning: the cause in one line.
        level: severity.
        confidence: certainty.
        evidence: one sentence with the numbers.
        steps: first and last step at which it shows.
        remedy: what to do about it.
        source: public report, or "derived".
    """

    name: str
    meaning: str
    level: Level
    confidence: Confidence
    evidence: str
    steps: tuple[int, int]
    remedy: str
    source: str


@dataclass(frozen=True)
class NotChecked:
    """A cause that could not be checked.

    Attributes:
        name: name of the cause.
        why: the reason, usually missing data.
    """

    name: str
    why: str


@dataclass(frozen=True)
class Diagnosis:
    """Result of checking a run for every cause; each cause is in exactly one of the four lists.

    Attributes:
        findings: causes that are present, the most likely first and consequences of others last.
        not_checked: causes that could not be checked.
        passed: names of causes that were checked and are absent.
        explained: names of causes whose signs are present and follow from a finding.
        windows: number of training windows that were read.
        steps: first and last step; None without a window.
        foreign: for a third-party log, the relation of its numbers to ratioscope's, by the log's keys.
    """

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    passed: tuple[str, ...]
    explained: tuple[str, ...]
    windows: int
    steps: tuple[int, int] | None
    foreign: Mapping[str, Name] = field(default_factory=dict)

    @property
    def level(self) -> Level:
        """Highest level of the findings; ``"info"`` without a finding."""
        return LEVELS[max((LEVELS.index(finding.level) for finding in self.findings), default=0)]

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON."""
        return {
            "level": self.level,
            "windows": self.windows,
            "steps": None if self.steps is None else list(self.steps),
            "findings": [{**asdict(finding), "steps": list(finding.steps)} for finding in self.findings],
            "not_checked": [asdict(item) for item in self.not_checked],
            "passed": list(self.passed),
            "explained": list(self.explained),
            "read_from": [
                {"key": key, "framework": name.framework, "relation": name.relation, "ours": name.ours or None}
                | {"differs": name.differs}
                for key, name in self.foreign.items()
            ],
        }
