"""Values that the page's templates display: plain data, nothing of it escaped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratioscope.diagnosis.causes import CAUSES
from ratioscope.metrics.catalogue import CATALOGUE
from ratioscope.report.figures.heat import TITLES
from ratioscope.report.figures.panel import Absent, Panel
from ratioscope.report.verdict.cause import grave, nothing_found, reasons
from ratioscope.report.verdict.verdict import Exclusion, ForeignFigure, KeyFigure, Line, excluded, verdict
from ratioscope.report.verdict.worst import CompletionTexts, TokenTexts, completion_texts, token_texts
from ratioscope.text import count, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ratioscope.diagnosis import Diagnosis, Finding
    from ratioscope.report.figures.style import RunStyle
    from ratioscope.report.verdict.comparison import ConfigDifference, Difference
    from ratioscope.runs.timeline import Timeline

MAX_CONFIG = 200_000
"""Characters of a displayed config at most."""

MAX_EVENTS = 200
"""Number of displayed events at most, the newest."""

_GROUP_TITLES = {f"heat-{level}": title for level, title in TITLES.items()}
_MEANINGS = {
    "ratioscope/hist/token_log_ratio": "d_t in 65 even bins; the outer two hold what lies beyond",
    "ratioscope/hist/sequence_log_ratio": "D_i in 65 even bins; the outer two hold what lies beyond",
    "ratioscope/hist/corrected_log_ratio": "logarithm of the weights after the rule, at the level of the mode; masked "
    "weights are 0 and left out",
    **{metric.key: metric.meaning for metric in CATALOGUE},
}


@dataclass(frozen=True)
class RunDetails:
    """Verdict, exclusions, events and config of a run.

    Attributes:
        lines: the verdict.
        excluded: tokens and completions that no statistic includes.
        events: step and text of the newest events.
        events_title: number of events, in words.
        config: the run config as JSON, cut to :data:`MAX_CONFIG` characters; empty for none.
    """

    lines: list[Line]
    excluded: list[Exclusion]
    events: list[tuple[int, str]]
    events_title: str
    config: str

    @classmethod
    def from_timeline(cls, timeline: Timeline, diagnosis: Diagnosis) -> RunDetails:
        """Collects the details of a run."""
        newest = timeline.events[-MAX_EVENTS:]
        cut = len(newest) < len(timeline.events)
        title = f"{len(newest)} newest events" if cut else f"{len(newest):,} events"
        return cls(verdict(timeline, diagnosis), excluded(timeline), newest, title, _config_text(timeline.config))


def _config_text(config: Mapping[str, Any]) -> str:
    if not config:
        return ""
    lines = json.dumps(config, indent=2, ensure_ascii=False, default=str).split("\n")
    text = "\n".join(f"{line[: len(line) - len(line.lstrip())]}{plain(line.strip())}" for line in lines)
    return text if len(text) <= MAX_CONFIG else f"{text[:MAX_CONFIG]}\n… cut after {MAX_CONFIG:,} characters"


@dataclass(frozen=True)
class CauseSection:
    """The section on the cause of a mismatch.

    Attributes:
        notes: sentences about the diagnosis as a whole.
        findings: the findings, the gravest first.
        reasons: names of the causes that could not be checked, by reason.
        n_unchecked: number of causes that could not be checked.
        passed: name and meaning of the causes that were checked and not found.
    """

    notes: list[str]
    findings: Sequence[Finding]
    reasons: Mapping[str, Sequence[str]]
    n_unchecked: int
    passed: list[tuple[str, str]]

    @classmethod
    def from_diagnosis(cls, diagnosis: Diagnosis, *, scalars_only: bool) -> CauseSection:
        """Collects the section.

        Args:
            diagnosis: the diagnosis.
            scalars_only: whether the run was read without a journal.
        """
        notes = []
        if scalars_only:
            notes.append(
                "Read from scalars only, as a tracker has them: causes that need the journal's histograms or counts by "
                "position were not checked."
            )
        if not grave(diagnosis):
            notes.append(nothing_found(diagnosis))
        if diagnosis.explained:
            notes.append(f"Also present, explained by a finding: {', '.join(diagnosis.explained)}.")
        meanings = {cause.name: cause.meaning for cause in CAUSES}
        passed = [(name, meanings[name]) for name in diagnosis.passed]
        return cls(notes, diagnosis.findings, reasons(diagnosis), len(diagnosis.not_checked), passed)


@dataclass(frozen=True)
class SweepSection:
    """The section on other thresholds.

    Attributes:
        id: of the section.
        advice: the recommendation; empty for none.
        entry: the figure, or the reason why there is none.
    """

    id: str
    advice: str
    entry: Panel | Absent


@dataclass(frozen=True)
class WorstSection:
    """The section on the worst tokens and completions.

    Attributes:
        has_texts: whether the texts of the tokens are known, or not even their ids.
        tokens: worst tokens of the run.
        last_title: title of the last window's table; empty for none.
        last_tokens: worst tokens of the last window.
        completions: worst completions of the run.
    """

    has_texts: bool
    tokens: list[TokenTexts]
    last_title: str
    last_tokens: list[TokenTexts]
    completions: list[CompletionTexts]

    @classmethod
    def from_timeline(cls, timeline: Timeline) -> WorstSection | None:
        """Collects the section; None for a run without a known worst token."""
        run, last = timeline.worst, timeline.worst.last
        if not run.tokens:
            return None
        tokens = [item.token for item in run.tokens]
        has_texts = any(t.text is not None for t in tokens) or all(t.token_id is None for t in tokens)
        return cls(
            has_texts,
            [token_texts(*item) for item in run.tokens],
            f"Last window: {count(len(last.tokens), 'token')} of step {last.step:,}" if last else "",
            [token_texts(last.step, "train", token) for token in last.tokens] if last else [],
            [completion_texts(*item) for item in run.rows],
        )


@dataclass(frozen=True)
class Group:
    """Figures that are placed side by side in one card.

    Attributes:
        title: of the card.
        first: the first figure that could be drawn, whose sentence describes all of them; None if none could.
        entries: the figures, and the reasons for missing ones.
    """

    title: str
    first: Panel | None
    entries: list[Panel | Absent]


@dataclass(frozen=True)
class Definition:
    """The statistics of a figure or a group.

    Attributes:
        id: anchor of the definition.
        title: title of the figure or the group.
        meanings: meaning of each statistic, by key.
    """

    id: str
    title: str
    meanings: dict[str, str]


@dataclass(frozen=True)
class Figures:
    """The section of the figures.

    Attributes:
        notices: sentences on runs with little or no data.
        any_drawn: whether there is a figure to draw.
        cards: figures, missing figures and groups, in the order of the page.
    """

    notices: list[str]
    any_drawn: bool
    cards: list[Panel | Absent | Group]

    @classmethod
    def from_entries(cls, entries: Sequence[Panel | Absent], notices: list[str]) -> Figures:
        """Collects the figures, each group at the position of its first figure."""
        cards: dict[str, Panel | Absent | Group] = {}
        for entry in entries:
            if not entry.group:
                cards[entry.key] = entry
            elif entry.group not in cards:
                members = [other for other in entries if other.group == entry.group]
                first = next((member for member in members if isinstance(member, Panel)), None)
                cards[entry.group] = Group(_GROUP_TITLES[entry.group], first, members)
        return cls(notices, any(isinstance(entry, Panel) for entry in entries), list(cards.values()))


def definitions(entries: Iterable[Panel | Absent]) -> list[Definition]:
    """Returns the definitions of all drawn statistics, in the words of the catalogue."""
    found: dict[str, Definition] = {}
    for panel in entries:
        if isinstance(panel, Panel):
            title = _GROUP_TITLES.get(panel.group, panel.title)
            definition = found.setdefault(panel.link, Definition(panel.link[1:], title, {}))
            definition.meanings.update({key: _MEANINGS[key] for key in panel.metrics if key in _MEANINGS})
    return list(found.values())


@dataclass(frozen=True)
class Report:
    """The report of a run; sections that are None or empty are left out."""

    title: str
    name: str
    source: str
    facts: list[tuple[str, str]]
    details: RunDetails
    cause: CauseSection
    key_figures: list[KeyFigure]
    foreign: list[ForeignFigure]
    figures: Figures
    sweep: SweepSection | None
    worst: WorstSection | None
    definitions: list[Definition]


@dataclass(frozen=True)
class Comparison:
    """The comparison of several runs.

    Attributes:
        title: of the page.
        runs: name and colour of each run.
        lead: the run that drifted first, in a sentence.
        facts: name of each fact of the runs, with its text for each run.
        values: key figures side by side.
        settings: settings that differ.
        figures: the figures.
        definitions: of the figures.
        details: of each run.
    """

    title: str
    runs: list[RunStyle]
    lead: str
    facts: list[tuple[str, list[str]]]
    values: list[Difference]
    settings: list[ConfigDifference]
    figures: Figures
    definitions: list[Definition]
    details: list[RunDetails]
