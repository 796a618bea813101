"""Event: a finding of the diagnosis appeared, became worse or disappeared while a run goes on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


Level = Literal["info", "warning", "error"]
"""Info: nothing to do. Warning: the loss is affected. Error: the training data are not what they seem to be."""

Confidence = Literal["low", "medium", "high"]
"""High: the numbers leave one cause, or the config states it. Medium: they point to it. Low: other causes may do it."""

LEVELS: tuple[Level, ...] = ("info", "warning", "error")

Status = Literal["appeared", "worse", "gone"]
"""Worse: the level rose, or an error became certain."""


@dataclass(frozen=True)
class Event:
    """One change of one finding.

    Attributes:
        name: the cause's name.
        status: the kind of change.
        level: level of the finding; for one that is gone, its last level.
        confidence: confidence of the finding.
        meaning: the cause in one line.
        evidence: the numbers, in words; for a finding that is gone, its last evidence.
        remedy: what to do about it.
        step: step of the newest window that was diagnosed; 0 before the first.
        time: seconds since the epoch.
        warnings: open findings of level ``warning`` after this event.
        errors: open findings of level ``error`` after this event.
        because: name of another finding that reports the same, earlier or from now on; None if there is none. See
            :attr:`is_news`.
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
        """Whether to notify a person: no other finding reports the same."""
        return self.because is None

    @property
    def is_certain(self) -> bool:
        """True for an error of high confidence, at which ``on_finding="stop"`` stops."""
        return self.status != "gone" and self.level == "error" and self.confidence == "high"

    @property
    def summary(self) -> str:
        """Name of the finding with its level and status."""
        change = "gone" if self.status == "gone" else self.level + (", worse" if self.status == "worse" else "")
        return f"{self.name} ({change})"

    @property
    def title(self) -> str:
        """The summary with the product's name, shorter than 64 characters, as W&B asks for."""
        return f"ratioscope: {self.summary}"[:63]

    @property
    def text(self) -> str:
        """One paragraph: meaning, evidence, and the remedy unless the finding is gone."""
        when = f"Step {self.step}: " if self.step else "Before the first step: "
        if self.status == "gone":
            return f"{when}{self.meaning} no longer shows. It was: {self.evidence}."
        return f"{when}{self.meaning}; {self.evidence} ({self.confidence} confidence). {self.remedy}"

    @property
    def line(self) -> str:
        """A line for a list of events."""
        reference = "" if self.because is None else f", as {self.because} says"
        return f"finding {self.name}: {self.status}{reference}, {self.level}, {self.evidence}"

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """Inverse of :meth:`to_json`."""
        return cls(**data)
