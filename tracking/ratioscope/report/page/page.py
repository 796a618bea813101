"""The report and the comparison as one self-contained HTML page each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.diagnosis.read import diagnosis_of
from ratioscope.report.figures import sweep
from ratioscope.report.figures.figures import drawn
from ratioscope.report.figures.foreign import NOTICE, foreign_entries
from ratioscope.report.figures.panel import Absent, Panel
from ratioscope.report.figures.style import run_styles
from ratioscope.report.page.html import render
from ratioscope.report.page.values import (
    CauseSection,
    Comparison,
    Figures,
    Report,
    RunDetails,
    SweepSection,
    WorstSection,
    definitions,
)
from ratioscope.report.verdict.cause import gravest
from ratioscope.report.verdict.comparison import config_differences, differences, first_to_drift
from ratioscope.report.verdict.settings import settings, windows
from ratioscope.report.verdict.verdict import foreign_figures, key_figures
from ratioscope.sweep.recommend import SCOPE, pool_of
from ratioscope.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.diagnosis import Diagnosis
    from ratioscope.report.figures.style import RunStyle
    from ratioscope.runs.timeline import Timeline


def report_html(timeline: Timeline) -> str:
    """Renders the report of a run.

    Raises:
        ImportError: if plotly is missing.
    """
    entries, tried, diagnosis = _entries([timeline]), sweep.sweep_panel(timeline), diagnosis_of(timeline)
    panels = [entry for entry in (*entries, tried) if isinstance(entry, Panel)]
    report = Report(
        title=f"{plain(timeline.name, 80).strip() or 'unnamed run'} · ratioscope",
        name=timeline.name or "unnamed run",
        source=timeline.source,
        facts=[*settings(timeline.config), *windows(timeline)],
        details=RunDetails.from_timeline(timeline, diagnosis),
        cause=CauseSection.from_diagnosis(diagnosis, scalars_only=timeline.pooled is None),
        key_figures=[figure for figure in key_figures(timeline) if figure.latest is not None],
        foreign=foreign_figures(timeline),
        figures=Figures.from_entries(entries, _notices(run_styles([timeline]))),
        sweep=_sweep_section(timeline, tried),
        worst=WorstSection.from_timeline(timeline),
        definitions=definitions(panels),
    )
    return render("report.html", report, panels)


def compare_html(timelines: Sequence[Timeline]) -> str:
    """Renders the comparison of two runs or more.

    Raises:
        ImportError: if plotly is missing.
        ValueError: if there is no run.
    """
    if not timelines:
        msg = "got no run to compare; expected at least one"
        raise ValueError(msg)
    runs, entries = run_styles(timelines), _entries(timelines)
    diagnoses = [diagnosis_of(timeline) for timeline in timelines]
    panels = [entry for entry in entries if isinstance(entry, Panel)]
    comparison = Comparison(
        title=f"{len(runs)} runs compared · ratioscope",
        runs=runs,
        first_to_drift=first_to_drift(timelines),
        facts=_facts(timelines, diagnoses),
        values=differences(timelines),
        settings=config_differences(timelines),
        figures=Figures.from_entries(entries, _notices(runs)),
        definitions=definitions(panels),
        details=[RunDetails.from_timeline(*pair) for pair in zip(timelines, diagnoses, strict=True)],
    )
    return render("compare.html", comparison, panels)


def _entries(timelines: Sequence[Timeline]) -> list[Panel | Absent]:
    """Returns the figures; for runs without any ratio only those of exclusions."""
    if not any(timeline.windows for timeline in timelines):
        return []
    entries = drawn(timelines)
    if any(timeline.foreign for timeline in timelines):
        return foreign_entries(timelines, entries)
    if any(map(_has_ratios, timelines)):
        return entries
    return [entry for entry in entries if entry.key.startswith("excluded") and isinstance(entry, Panel)]


def _has_ratios(timeline: Timeline) -> bool:
    names = ("ratioscope/log_ratio/abs_mean", "ratioscope/raw/p50")
    scalars = any(prefix + name in timeline.scalars for prefix in ("", "eval/") for name in names)
    return scalars or bool(timeline.history.keys())


def _notices(runs: Sequence[RunStyle]) -> list[str]:
    """Returns a sentence on each run with little or no data to draw."""
    notices = []
    for run in runs:
        n = sum(run.timeline.windows.values())
        if not n:
            text = "No window was recorded, so there is nothing to draw."
        elif run.timeline.foreign:
            text = NOTICE
        elif not _has_ratios(run.timeline):
            where = "its one window" if n == 1 else f"any of {n:,} windows"
            text = f"Not one token was valid in {where}, so there is no ratio to draw."
        elif n == 1:
            text = "One window was recorded, so every line is a single point."
        else:
            continue
        notices.append(f"{run.name}: {text}" if len(runs) > 1 else text)
    return notices


def _sweep_section(timeline: Timeline, tried: Panel | Absent) -> SweepSection | None:
    """Returns recommendation and figure of other thresholds; None for a run without training, or a third-party run."""
    if not timeline.windows.get("train") or timeline.foreign:
        return None
    pooled = pool_of(timeline.pooled) if timeline.pooled is not None else None
    advice = f"{sweep.advice_of(pooled)} {SCOPE}" if pooled is not None and isinstance(tried, Panel) else ""
    return SweepSection(sweep.KEY, advice, tried)


def _facts(timelines: Sequence[Timeline], diagnoses: Sequence[Diagnosis]) -> list[tuple[str, list[str]]]:
    """Returns the facts of the runs side by side."""
    columns = [
        {"Source": timeline.source, **dict(windows(timeline)), **dict(settings(timeline.config))}
        for timeline in timelines
    ]
    names = dict.fromkeys(name for column in columns for name in column)
    facts = [(name, [column.get(name, "–") for column in columns]) for name in names]
    return [*facts, ("Cause", [gravest(diagnosis) for diagnosis in diagnoses])]
