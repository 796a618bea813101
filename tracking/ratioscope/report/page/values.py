"""Values that the page's templates display: plain data, nothing of it escaped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ratioscope.diagnosis.causes import CAUSES
from ratioscope.metrics.catalogue import CATALOGUE
from ratioscope.report.figures.heat import TITLES
from ratioscope.report.figures.panel import Absent, Panel
from ratioscope.report.verdict.cause import grave, nothing_found, reasons
from ratioscope.report.verdict.verdict import Exclusion, ForeignFigure, KeyFigure, Line, excluded, verdict
from ratioscope.runs.worst import TokenAt
from ratioscope.text import count, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ratioscope.diagnosis import Diagnosis, Finding
    from ratioscope.report.figures.style import RunStyle
    from ratioscope.report.verdict.comparison import ConfigDifference, Difference
    from ratioscope.runs.timeline import Timeline
    from ratioscope.runs.worst import RowAt

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


class RunDetails(NamedTuple):
    """Verdict, exclusions, newest events and config (as JSON; empty for none) of a run."""

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


class CauseSection(NamedTuple):
    """Diagnosis of a run: names of unchecked causes by reason, name and meaning of the causes not found."""

    notes: list[str]
    findings: Sequence[Finding]
    unchecked: Mapping[str, Sequence[str]]
    n_unchecked: int
    passed: list[tuple[str, str]]

    @classmethod
    def from_diagnosis(cls, diagnosis: Diagnosis, *, scalars_only: bool) -> CauseSection:
        """Collects the section; ``scalars_only`` for a run that was read without a journal."""
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


class SweepSection(NamedTuple):
    """Recommendation of the sweep (empty for none), and its figure."""

    id: str
    advice: str
    entry: Panel | Absent


class WorstSection(NamedTuple):
    """Worst tokens and completions of a run, and of its last window of training."""

    texts_missing: bool
    tokens: Sequence[TokenAt]
    rows: Sequence[RowAt]
    last_title: str
    last_tokens: Sequence[TokenAt]

    @classmethod
    def from_timeline(cls, timeline: Timeline) -> WorstSection | None:
        """Collects the section; None for a run without a known worst token."""
        run, last = timeline.worst, timeline.worst.last
        if not run.tokens:
            return None
        tokens = [item.token for item in run.tokens]
        # Without ids there was nothing to decode.
        missing = all(t.text is None for t in tokens) and any(t.token_id is not None for t in tokens)
        title = f"Last window: {count(len(last.tokens), 'token')} of step {last.step:,}" if last else ""
        last_tokens = [TokenAt(last.step, "train", token) for token in last.tokens] if last else []
        return cls(missing, run.tokens, run.rows, title, last_tokens)


class Group(NamedTuple):
    """Figures that one card shows side by side; the sentence of the first drawn one describes all of them."""

    title: str
    first: Panel | None
    entries: list[Panel | Absent]


class Figures(NamedTuple):
    """Figures in the order of the page, after notices on runs with little or no data."""

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


class Definition(NamedTuple):
    """Meaning of each statistic of a figure or group, by key."""

    id: str
    title: str
    meanings: dict[str, str]


def definitions(panels: Iterable[Panel]) -> list[Definition]:
    """Returns the definitions of all drawn statistics, in the words of the catalogue."""
    by_link: dict[str, Definition] = {}
    for panel in panels:
        title = _GROUP_TITLES.get(panel.group, panel.title)
        definition = by_link.setdefault(panel.link, Definition(panel.link[1:], title, {}))
        definition.meanings.update({key: _MEANINGS[key] for key in panel.metrics if key in _MEANINGS})
    return list(by_link.values())


class Report(NamedTuple):
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


class Comparison(NamedTuple):
    """The comparison of runs: the first to drift in a sentence, then facts, values and settings for each run."""

    title: str
    runs: list[RunStyle]
    first_to_drift: str
    facts: list[tuple[str, list[str]]]
    values: list[Difference]
    settings: list[ConfigDifference]
    figures: Figures
    definitions: list[Definition]
    details: list[RunDetails]
