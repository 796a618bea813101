"""What a diagnosis says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ratioscope.event import LEVELS, Confidence, Level

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.runs.foreign.names import Name


@dataclass(frozen=True)
class Sign:
    """That a cause shows in a run.

    Attributes:
        level: how grave it is.
        confidence: how sure it is.
        evidence: the numbers, in words.
        steps: first and last step it was seen at; None for all that was looked at.
    """

    level: Level
    confidence: Confidence
    evidence: str
    steps: tuple[int, int] | None = None


class Unchecked(Exception):
    """Raised by a check that cannot tell, with the reason."""


@dataclass(frozen=True)
class Finding:
    """A cause that shows.

    Attributes:
        name: the cause's.
        meaning: the cause in one line.
        level: how grave it is.
        confidence: how sure it is.
        evidence: the numbers, in words.
        steps: first and last step it was seen at.
        remedy: what to do about it.
        source: where it was reported or is derived.
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
    """A cause that could not be looked for.

    Attributes:
        name: the cause's.
        why: what was lacking.
    """

    name: str
    why: str


@dataclass(frozen=True)
class Diagnosis:
    """What was found, what could not be looked for, and what was looked for and not found.

    Attributes:
        findings: the most likely cause first, what may follow from others last.
        not_checked: causes that nothing can be said of.
        passed: names of causes that do not show.
        explained: names of causes whose signs show and follow from a finding.
        windows: how many windows of training it stands on.
        steps: the first and the last; None without one.
        foreign: of a log that ratioscope did not write, by its keys, what its numbers are in our terms.
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
        """The gravest of the findings' levels; ``"info"`` without one."""
        return LEVELS[max((LEVELS.index(finding.level) for finding in self.findings), default=0)]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
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
