"""The page's section on what caused a mismatch."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from ratioscope.diagnosis.causes import CAUSES
from ratioscope.report.page import parts
from ratioscope.report.verdict.cause import ANCHOR, grave, where

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratioscope.diagnosis import Diagnosis, Finding

_CLASSES = {"error": "bad", "warning": "warning", "info": "note-level"}
_MEANINGS = {cause.name: cause.meaning for cause in CAUSES}


def section(diagnosis: Diagnosis, *, scalars_only: bool) -> str:
    """The section of the page.

    Args:
        diagnosis: of the run.
        scalars_only: whether there was no journal to look at.
    """
    told = []
    if scalars_only:
        told.append(
            "Read from scalars only, as a tracker has them: what needs the journal's histograms or counts by place "
            "is among what was not checked."
        )
    if not grave(diagnosis):
        told.append("Nothing above info was found." if diagnosis.passed else "Nothing could be checked.")
    if diagnosis.explained:
        told.append(f"Shows too, and follows from a finding: {', '.join(diagnosis.explained)}.")
    lines = "".join(f'<p class="why">{html.escape(sentence)}</p>' for sentence in told)
    cards = "".join(map(_card, diagnosis.findings))
    return f'<section id="{ANCHOR}"><h2>What caused it</h2>{lines}{cards}{_not_checked(diagnosis)}</section>'


def _card(finding: Finding) -> str:
    rows = (("Evidence", finding.evidence), ("Remedy", finding.remedy), ("Source", finding.source))
    told = "".join(f"<dt>{name}</dt><dd>{parts.text(value, 1000)}</dd>" for name, value in rows)
    return (
        f'<article class="finding {_CLASSES[finding.level]}"><h3><b>{finding.level.capitalize()}</b> '
        f"<code>{html.escape(finding.name)}</code></h3><p>{parts.text(finding.meaning)} "
        f'<span class="why">({html.escape(where(finding))})</span></p><dl>{told}</dl></article>'
    )


def _not_checked(diagnosis: Diagnosis) -> str:
    reasons: dict[str, list[str]] = {}
    for item in diagnosis.not_checked:
        reasons.setdefault(item.why, []).append(item.name)
    found = ""
    if reasons:
        rows = ((_codes(names), parts.text(why, 600)) for why, names in reasons.items())
        table = parts.table(("Cause", "Why it could not be checked"), rows, kinds=("setting",))
        summary = f"Not checked, which is not clean ({len(diagnosis.not_checked)})"
        found += f"<details><summary>{summary}</summary>{table}</details>"
    if diagnosis.passed:
        rows = ((_codes((name,)), html.escape(_MEANINGS[name])) for name in diagnosis.passed)
        table = parts.table(("Cause", "What it is"), rows, kinds=("setting",))
        found += f"<details><summary>Looked for and not found ({len(diagnosis.passed)})</summary>{table}</details>"
    return found


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"<code>{html.escape(name)}</code>" for name in names)
