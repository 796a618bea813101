"""Sentences about the cause of a mismatch, made from a finished diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.diagnosis.causes import CAUSES
from ratioscope.report.verdict.line import Line, Tone
from ratioscope.text import count, steps

if TYPE_CHECKING:
    from ratioscope.diagnosis import Diagnosis, Finding

ANCHOR = "cause"
"""Id of the page's section on the cause."""

_TONES: dict[str, Tone] = {"error": "bad", "warning": "warning", "info": "note"}


def grave(diagnosis: Diagnosis) -> list[Finding]:
    """Returns the findings above info."""
    return [finding for finding in diagnosis.findings if finding.level != "info"]


def line(diagnosis: Diagnosis) -> Line:
    """Puts the diagnosis into one line of the verdict; never good, because an unchecked cause may be present."""
    findings = grave(diagnosis)
    if not findings:
        if not diagnosis.passed:
            return Line("note", "No cause could be checked.", f"#{ANCHOR}")
        unchecked = f"; {len(diagnosis.not_checked)} of {len(CAUSES)} causes could not be checked"
        return Line("note", f"No known cause was found{unchecked if diagnosis.not_checked else ''}.", f"#{ANCHOR}")
    first, more = findings[0], len(findings) - 1
    others = f", and {count(more, 'more finding')}" if more else ""
    text = f"Most likely cause: {first.name}, {first.meaning} ({first.confidence} confidence){others}."
    tone: Tone = "bad" if any(finding.level == "error" for finding in findings) else _TONES[first.level]
    return Line(tone, text, f"#{ANCHOR}")


def gravest(diagnosis: Diagnosis) -> str:
    """Names the gravest finding in a few words, for a cell of a table."""
    findings = grave(diagnosis)
    if not findings:
        return "nothing above info" if diagnosis.passed else "not checked"
    worst = next((finding for finding in findings if finding.level == "error"), findings[0])
    return f"{worst.level}: {worst.name}" + (f", {len(findings) - 1} more" if len(findings) > 1 else "")


def nothing_found(diagnosis: Diagnosis) -> str:
    """Says that a diagnosis has no finding above info, or that none of its causes could be checked."""
    return "Nothing above info was found." if diagnosis.passed else "Nothing could be checked."


def reasons(diagnosis: Diagnosis) -> dict[str, list[str]]:
    """Groups the causes that could not be checked by the reason."""
    names: dict[str, list[str]] = {}
    for item in diagnosis.not_checked:
        names.setdefault(item.why, []).append(item.name)
    return names


def location(finding: Finding) -> str:
    """Describes the confidence of a finding and its steps."""
    return f"{finding.confidence} confidence, {steps(*finding.steps)}"
