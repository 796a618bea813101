"""Event: that a finding of the diagnosis appeared, became worse or went while a run goes on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


Level = Literal["info", "warning", "error"]
"""Info: nothing to do. Warning: the loss is touched. Error: what is trained on is not what it seems to be."""

Confidence = Literal["low", "medium", "high"]
"""High: the numbers leave one cause, or the config says so. Medium: they point to it. Low: something else may do it."""

LEVELS: tuple[Level, ...] = ("info", "warning", "error")

Status = Literal["appeared", "worse", "gone"]
"""Worse: its level rose, or an error became certain."""


@dataclass(frozen=True)
class Event:
    """One piece of news about one finding.

    Attributes:
        name: the cause's.
        status: what happened.
        level: how grave the finding is, or was if it went.
        confidence: how sure it is.
        meaning: the cause in one line.
        evidence: the numbers, in words; for one that went, what it was.
        remedy: what to do about it.
        step: of the newest window that was looked at; 0 before the first.
        time: seconds since the epoch.
        warnings: findings at this level that are open after it.
        errors: the same.
        because: name of the finding that says the same, under which this was told already or is told from now on;
            None if it is news. See :attr:`is_news`.
    """

    name: str
    status: Status
    level: Level
    confidence: Confidence
    meaning: str
    evidence: str
    remedy: str
    step: int
    time: float
    warnings: int
    errors: int
    because: str | None = None

    @property
    def is_news(self) -> bool:
        """Whether a person should be told: nothing of it was said under another name."""
        return self.because is None

    @property
    def is_certain(self) -> bool:
        """Whether it is an error of high confidence, at which ``on_finding="stop"`` stops."""
        return self.status != "gone" and self.level == "error" and self.confidence == "high"

    @property
    def title(self) -> str:
        """A few words, shorter than 64 characters, which W&B asks for."""
        what = "gone" if self.status == "gone" else self.level + (", worse" if self.status == "worse" else "")
        return f"ratioscope: {self.name} ({what})"[:63]

    @property
    def text(self) -> str:
        """One paragraph: meaning, evidence, and what to do unless it is gone."""
        where = f"Step {self.step}: " if self.step else "Before the first step: "
        said = f"{where}{self.meaning}; {self.evidence} ({self.confidence} confidence)."
        if self.status == "gone":
            return f"{where}{self.meaning} no longer shows. It was: {self.evidence}."
        return f"{said} {self.remedy}"

    @property
    def line(self) -> str:
        """A line for a list of events."""
        follows = "" if self.because is None else f", as {self.because} says"
        return f"finding {self.name}: {self.status}{follows}, {self.level}, {self.evidence}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """Inverse of :meth:`to_json`."""
        return cls(**data)
