"""What a report says of the cause, in a line: the diagnosis is made elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.diagnosis.causes import CAUSES
from ratioscope.report.verdict.line import Level, Line
from ratioscope.text import count

if TYPE_CHECKING:
    from ratioscope.diagnosis import Diagnosis, Finding

ANCHOR = "cause"
"""Where the section begins within the page."""

_LEVELS: dict[str, Level] = {"error": "bad", "warning": "warning", "info": "note"}


def grave(diagnosis: Diagnosis) -> list[Finding]:
    """The findings above info."""
    return [finding for finding in diagnosis.findings if finding.level != "info"]


def line(diagnosis: Diagnosis) -> Line:
    """The diagnosis as a line of the verdict; never good, since what was not checked may be there."""
    found = grave(diagnosis)
    unclear = f"{len(diagnosis.not_checked)} of {len(CAUSES)} causes could not be checked"
    if not found:
        if not diagnosis.passed:
            return Line("note", "No cause could be checked.", f"#{ANCHOR}")
        return Line("note", f"No known cause shows{f'; {unclear}' if diagnosis.not_checked else ''}.", f"#{ANCHOR}")
    first, more = found[0], len(found) - 1
    others = f", and {count(more, 'more finding')}" if more else ""
    text = f"Most likely cause: {first.name}, {first.meaning} ({first.confidence} confidence){others}."
    level: Level = "bad" if any(finding.level == "error" for finding in found) else _LEVELS[first.level]
    return Line(level, text, f"#{ANCHOR}")


def gravest(diagnosis: Diagnosis) -> str:
    """The gravest finding in a few words, for a cell of a table."""
    found = grave(diagnosis)
    if not found:
        return "nothing above info" if diagnosis.passed else "not checked"
    worst = next((finding for finding in found if finding.level == "error"), found[0])
    return f"{worst.level}: {worst.name}" + (f", {len(found) - 1} more" if len(found) > 1 else "")


def where(finding: Finding) -> str:
    """How sure a finding is, and its steps."""
    first, last = finding.steps
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{finding.confidence} confidence, {steps}"
