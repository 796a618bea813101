"""Evaluates every cause on a run and orders the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ratioscope.diagnosis.causes import CAUSES
from ratioscope.diagnosis.findings import Diagnosis, Finding, NotChecked, Unchecked
from ratioscope.diagnosis.run import Run
from ratioscope.event import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ratioscope.diagnosis.cause import Cause
    from ratioscope.diagnosis.findings import Sign
    from ratioscope.record import Record

_VOID = ("everything_masked", "identical")
"""Causes that leave nothing to measure; they are listed first."""

_SETTINGS = ("sampling_settings", "logprobs_mode")
"""Settings that bias the ratio by themselves; where the config has them, they are listed before what is measured."""

_LISTED_LAST = (
    *_SETTINGS,
    "outliers",
    "length_collapse",
    "stale_slices",
    "precision_noise",
    "not_applied",
)
"""Causes that accompany or follow from another one; they are listed after it."""


class _Checked(NamedTuple):
    """Results of all checks: findings by the cause's name, and causes that could not be checked."""

    findings: dict[str, Finding]
    not_checked: list[NotChecked]


def diagnose(records: Iterable[Record] | Run, config: Mapping[str, Any] | None = None) -> Diagnosis:
    """Checks a run for every cause.

    Args:
        records: the records of one run in the order of their steps (evaluations are ignored), or a run already read.
        config: the run config; None if unknown.
    """
    run = records if isinstance(records, Run) else Run.from_records(records, config)
    found, not_checked = _check(run)
    explained = {
        name
        for cause in CAUSES
        if cause.name in found
        for name in cause.explains
        if name in found and name != cause.name and _covers(found[cause.name], found[name])
    }
    findings = sorted((finding for name, finding in found.items() if name not in explained), key=_rank)
    unchecked = {item.name for item in not_checked}
    return Diagnosis(
        findings=tuple(findings),
        not_checked=tuple(not_checked),
        passed=tuple(cause.name for cause in CAUSES if cause.name not in found and cause.name not in unchecked),
        explained=tuple(name for name in found if name in explained),
        windows=run.windows,
        steps=run.steps,
        foreign=run.foreign,
    )


def _check(run: Run) -> _Checked:
    """Runs every check, in the order of ``CAUSES``."""
    found: dict[str, Finding] = {}
    not_checked: list[NotChecked] = []
    for cause in CAUSES:
        if "identical" in found and not cause.from_config:
            not_checked.append(NotChecked(cause.name, "both sides are the same numbers"))
            continue
        try:
            sign = cause.check(run)
        except Unchecked as reason:
            not_checked.append(NotChecked(cause.name, str(reason)))
            continue
        if sign is not None:
            found[cause.name] = _finding(cause, sign, run)
    return _Checked(found, not_checked)


def _finding(cause: Cause, sign: Sign, run: Run) -> Finding:
    """Joins a cause with its sign in a run."""
    return Finding(
        name=cause.name,
        meaning=cause.meaning,
        level=sign.level,
        confidence=sign.confidence,
        evidence=sign.evidence,
        steps=sign.steps or run.steps or (0, 0),
        remedy=cause.remedy,
        source=cause.source,
    )


def _rank(finding: Finding) -> tuple[bool, bool, bool, bool, int]:
    """Sort key: information last; then what voids the rest, settings, other causes, their companions; by level."""
    return (
        finding.level == "info",
        not (finding.name in _VOID and (finding.level == "error" or finding.name == "identical")),
        not _is_setting(finding),
        finding.name in _LISTED_LAST,
        -LEVELS.index(finding.level),
    )


def _covers(one: Finding, other: Finding) -> bool:
    """Checks whether a finding that explains another one may replace it: never with information, nor a setting."""
    return not _is_setting(other) and (one.level != "info" or other.level == "info")


def _is_setting(finding: Finding) -> bool:
    """Checks for a setting that the config has and that biases the ratio by itself."""
    return finding.name in _SETTINGS and finding.confidence == "high" and finding.level != "info"
