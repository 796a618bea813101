"""The report and the comparison as one self-contained HTML page each."""

from __future__ import annotations

import base64
import gzip
import html
import json
from functools import cache
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from ratioscope._version import __version__
from ratioscope.diagnosis.read import diagnosis_of
from ratioscope.metrics.catalogue import CATALOGUE
from ratioscope.report.figures import heat, sweep
from ratioscope.report.figures.figures import drawn
from ratioscope.report.figures.panel import Absent, Panel
from ratioscope.report.figures.style import runs_of
from ratioscope.report.page import foreign, parts
from ratioscope.report.page.cause import section
from ratioscope.report.page.worst import worst_section
from ratioscope.report.verdict import cause
from ratioscope.report.verdict.comparison import config_differences, differences, first_to_drift
from ratioscope.report.verdict.settings import settings, windows
from ratioscope.sweep.recommend import SCOPE, pool_of
from ratioscope.text import plain, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.report.figures.style import Run
    from ratioscope.runs.timeline import Timeline

_STATUS = (
    '<p class="status" id="status">Drawing the figures…</p>'
    '<noscript><p class="status">The figures need JavaScript, which is off. All else on this page does not.</p>'
    "</noscript>"
)
_GROUPS = {f"heat-{level}": heat.title_of(level) for level in ("token", "sequence")}
_HISTOGRAMS = {
    "ratioscope/hist/token_log_ratio": "d_t in 65 even bins; the outer two hold what lies beyond",
    "ratioscope/hist/sequence_log_ratio": "D_i in 65 even bins; the outer two hold what lies beyond",
    "ratioscope/hist/corrected_log_ratio": "logarithm of the weights after the rule, at the level of the mode; masked "
    "weights are 0 and left out",
}


def report_html(timeline: Timeline) -> str:
    """The report of a run.

    Raises:
        ImportError: if plotly is missing.
    """
    head = [
        '<p class="over">ratioscope report</p>',
        f"<h1>{parts.text(timeline.name or 'unnamed run', 120)}</h1>",
        f'<p class="source">{parts.text(timeline.source, 160)}</p>' if timeline.source else "",
        parts.facts([*settings(timeline.config), *windows(timeline)]),
    ]
    entries = _entries([timeline])
    tried = sweep.rules_panel(timeline)
    diagnosis = diagnosis_of(timeline)
    body = [
        *head,
        parts.verdict_list(timeline, diagnosis),
        section(diagnosis, scalars_only=timeline.pooled is None),
        parts.key_table(timeline),
        foreign.table(timeline),
        *_figures([timeline], entries),
        _rules(timeline, tried),
        parts.excluded_table(timeline),
        worst_section(timeline),
        parts.definitions([*entries, tried], _meanings(), _GROUPS),
        "<h2>Run</h2>" if timeline.config or timeline.events else "",
        parts.event_details(timeline),
        parts.config_details(timeline.config),
    ]
    return _page(f"{plain(timeline.name, 80).strip() or 'unnamed run'} · ratioscope", body, [*entries, tried])


def compare_html(timelines: Sequence[Timeline]) -> str:
    """The comparison of two runs or more.

    Raises:
        ImportError: if plotly is missing.
        ValueError: if there is no run.
    """
    if not timelines:
        msg = "got no run to compare; expected at least one"
        raise ValueError(msg)
    runs = runs_of(timelines)
    entries = _entries(timelines)
    names = [_name(run) for run in runs]
    told = differences(timelines)
    values = [(parts.text(one.label), *(shown(one.key, value) for value in one.values)) for one in told]
    differing = config_differences(timelines)
    changed = [(f"<code>{parts.text(one.key)}</code>", *(parts.text(v, 80) for v in one.values)) for one in differing]
    lead = first_to_drift(timelines)
    body = [
        '<p class="over">ratioscope comparison</p>',
        f"<h1>{len(runs):,} {'run' if len(runs) == 1 else 'runs'} compared</h1>",
        f'<p class="lead">{parts.text(lead, 1000)}</p>' if lead else "",
        "<h2>Runs</h2>",
        _runs_table(runs, names),
        "<h2>Values</h2>" + parts.table(("", *names), values) if values else "",
        "<h2>Config</h2>",
        parts.table(("Setting", *names), changed, kinds=("setting",))
        if changed
        else "<p>The configs are the same.</p>",
        *_figures(timelines, entries),
        parts.definitions(entries, _meanings(), _GROUPS),
        "<h2>Each run</h2>",
        *_per_run(runs),
    ]
    return _page(f"{len(runs)} runs compared · ratioscope", body, entries)


def _entries(timelines: Sequence[Timeline]) -> list[Panel | Absent]:
    """The figures; of runs without any ratio only those that say what was left out."""
    if not any(timeline.windows for timeline in timelines):
        return []
    entries = drawn(timelines)
    if any(timeline.foreign for timeline in timelines):
        return foreign.entries(timelines, entries)
    if any(map(_has_ratios, timelines)):
        return entries
    return [entry for entry in entries if entry.key.startswith("excluded") and isinstance(entry, Panel)]


def _has_ratios(timeline: Timeline) -> bool:
    names = ("ratioscope/log_ratio/abs_mean", "ratioscope/raw/p50")
    return any(prefix + name in timeline.scalars for prefix in ("", "eval/") for name in names) or bool(
        timeline.history.keys()
    )


def _figures(timelines: Sequence[Timeline], entries: Sequence[Panel | Absent]) -> list[str]:
    """The figures under their heading, after a word on what there is too little of."""
    status = _STATUS if any(isinstance(entry, Panel) for entry in entries) else ""
    notices = [f'<p class="status notice">{told}</p>' for told in _notices(timelines)]
    return ["<h2>Figures</h2>", *notices, status, parts.figures(entries, _GROUPS)]


def _rules(timeline: Timeline, tried: Panel | Absent) -> str:
    """What another threshold would have done: the recommendation, with its reason, and the figure."""
    if not timeline.windows.get("train") or timeline.foreign:
        return ""
    pooled = pool_of(timeline.pooled) if timeline.pooled is not None else None
    advice = ""
    if pooled is not None and isinstance(tried, Panel):
        advice = f'<p class="advice">{parts.text(f"{sweep.advice_of(pooled)} {SCOPE}", 1000)}</p>'
    return f'<section id="{sweep.KEY}"><h2>What another threshold would do</h2>{advice}{parts.card(tried)}</section>'


def _notices(timelines: Sequence[Timeline]) -> list[str]:
    """A sentence, as HTML, on each run with too little to draw."""
    told = []
    for run in runs_of(timelines):
        name = f"{parts.text(run.name)}: " if len(timelines) > 1 else ""
        n = sum(run.timeline.windows.values())
        if not n:
            told.append(f"{name}No window was recorded, so there is nothing to draw.")
        elif run.timeline.foreign:
            told.append(f"{name}{foreign.NOTICE}")
        elif not _has_ratios(run.timeline):
            where = "its one window" if n == 1 else f"any of {n:,} windows"
            told.append(f"{name}Not one token was valid in {where}, so there is no ratio to draw.")
        elif n == 1:
            told.append(f"{name}One window was recorded, so what would be a line is a point.")
    return told


def _runs_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Where the runs come from and how they were set."""
    columns = [
        dict([("Source", run.timeline.source), *windows(run.timeline), *settings(run.timeline.config)]) for run in runs
    ]
    rows = [
        (parts.text(fact), *(parts.text(column.get(fact, "–"), 120) for column in columns))
        for fact in dict.fromkeys(fact for column in columns for fact in column)
    ]
    rows.append(("Cause", *(parts.text(cause.gravest(diagnosis_of(run.timeline)), 120) for run in runs)))
    return parts.table(("", *names), rows, kinds=("setting",))


def _name(run: Run) -> str:
    return f'<span class="swatch" style="background:{run.color}"></span>{parts.text(run.name)}'


def _per_run(runs: Sequence[Run]) -> list[str]:
    """Verdict, exclusions and config of each run."""
    return [
        f"<details><summary>{_name(run)}</summary>{parts.verdict_list(run.timeline, diagnosis_of(run.timeline))}"
        f"{parts.excluded_table(run.timeline)}{parts.event_details(run.timeline)}"
        f"{parts.config_details(run.timeline.config)}</details>"
        for run in runs
    ]


def _meanings() -> dict[str, str]:
    return {**_HISTOGRAMS, **{metric.key: metric.meaning for metric in CATALOGUE}}


def _page(title: str, body: Sequence[str], entries: Sequence[Panel | Absent]) -> str:
    panels = [entry for entry in entries if isinstance(entry, Panel)]
    drawings = ",".join(f'{{"key":{json.dumps(panel.key)},"figure":{panel.figure.to_json()}}}' for panel in panels)
    footer = f"<footer>ratioscope {__version__}. This page is complete in itself and loads nothing.</footer>"
    return Template(_asset("page.html")).substitute(
        version=__version__,
        title=html.escape(title),
        style=_asset("page.css"),
        body="\n".join(part for part in (*body, footer) if part),
        panels=_in_script(f"[{drawings}]"),
        library=_library() if panels else "",
        script=_asset("page.js"),
    )


def _in_script(text: str) -> str:
    """JSON that cannot end the script element that it stands in, nor break a line of it."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _library() -> str:
    """Plotly's JavaScript, packed: a browser unpacks it faster than it reads 4.8 MB."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode("ascii")


@cache
def _asset(name: str) -> str:
    return files("ratioscope.report").joinpath("assets", name).read_text(encoding="utf-8")
