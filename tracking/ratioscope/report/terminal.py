"""The report of a run, and the comparison of several runs, in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.diagnosis.read import diagnosis_of
from ratioscope.extras import require
from ratioscope.report.verdict.cause import grave, gravest, location
from ratioscope.report.verdict.comparison import config_differences, first_to_drift, labels
from ratioscope.report.verdict.line import curve, rule
from ratioscope.report.verdict.verdict import (
    EXCLUDED,
    common_label,
    excluded,
    foreign_figures,
    key_figures,
    verdict,
)
from ratioscope.runs.worst import parts_of
from ratioscope.text import count, number, plain, shown, step_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from ratioscope.diagnosis import Diagnosis
    from ratioscope.report.verdict.verdict import KeyFigure
    from ratioscope.runs.timeline import Timeline

MAX_TOKENS = 8
"""Worst tokens in the terminal at most."""

_STYLES = {"good": "bold green", "note": "bold blue", "warning": "bold yellow", "bad": "bold red"}
_CAUSE_STYLES = {"error": "bold red", "warning": "bold yellow"}
_VALUE_LENGTH = 60
_TOKEN_LENGTH = 24
_CONFIG_ROWS = 40


def render(timeline: Timeline) -> RenderableType:
    """Returns heading, verdict, causes, key figures, worst tokens and exclusions of a run for a console of ``rich``.

    Raises:
        ImportError: if ``rich`` is missing.
    """
    require("rich")
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [_heading(timeline), Text()]
    diagnosis = diagnosis_of(timeline)
    lines = Table.grid(padding=(0, 2))
    for line in verdict(timeline, diagnosis):
        lines.add_row(Text(line.level, _STYLES[line.level]), Text(plain(line.text)))
    parts += [lines, *_causes(diagnosis)]
    for table in (_key_table(timeline), _worst_table(timeline)):
        if table is not None:
            parts += [Text(), table]
    return Group(*parts, Text(), *([_foreign_table(timeline)] if timeline.foreign else _left_out(timeline)))


def render_comparison(timelines: Sequence[Timeline]) -> RenderableType:
    """Returns runs side by side: the first to drift, key figures, and settings that differ.

    Raises:
        ImportError: if ``rich`` is missing.
    """
    require("rich")
    from rich.console import Group
    from rich.text import Text

    names = labels(timelines)
    headings = [_heading(timeline, name) for timeline, name in zip(timelines, names, strict=True)]
    parts: list[RenderableType] = [*headings, Text(), Text(first_to_drift(timelines)), Text()]
    parts += [_side_by_side(timelines, names), Text()]
    settings = config_differences(timelines)
    if not settings:
        return Group(*parts, Text("The configs are the same."))
    table = _table("settings that differ", *names)
    for setting in settings[:_CONFIG_ROWS]:
        values = (Text(plain(value, _VALUE_LENGTH)) for value in setting.values)
        table.add_row(Text(plain(setting.key, _VALUE_LENGTH)), *values)
    parts.append(table)
    if len(settings) > _CONFIG_ROWS:
        parts.append(Text(f"and {len(settings) - _CONFIG_ROWS} more, on the page"))
    return Group(*parts)


def _heading(timeline: Timeline, name: str | None = None) -> Text:
    """Puts name, source, windows and rule on one line."""
    from rich.text import Text

    facts = [plain(timeline.source, 80), *_windows(timeline), _rule(timeline)]
    heading = Text(name or plain(timeline.name, 80) or "unnamed", "bold")
    return heading.append("  " + " · ".join(filter(None, facts)), "dim not bold")


def _windows(timeline: Timeline) -> Iterator[str]:
    for split, name in (("train", "of training"), ("eval", "of evaluations")):
        if n := timeline.windows.get(split, 0):
            curves = [curve for key, curve in timeline.scalars.items() if not key.startswith("eval/")]
            steps = ""
            if curves and split == "train":
                steps = (
                    f", steps {min(curve.steps[0] for curve in curves)} to {max(curve.steps[-1] for curve in curves)}"
                )
            yield f"{count(n, 'window')} {name}{steps}"


def _rule(timeline: Timeline) -> str:
    settings = rule(timeline)
    if not settings:
        return ""
    if settings.get("enabled") is False:
        return "no correction"
    if settings.get("words"):
        return plain(f"{settings.get('mode')}: {settings['words']}", 400)
    bounds = ((name, settings.get(name)) for name in ("lower", "upper"))
    parts = [f"{name} {number(bound)}" for name, bound in bounds if isinstance(bound, int | float)]
    return " ".join([plain(str(settings.get("mode", "correction")), 80), *parts])


def _causes(diagnosis: Diagnosis) -> Iterator[Text]:
    """Yields the findings above info, each with its evidence and remedy."""
    from rich.text import Text

    for finding in grave(diagnosis):
        yield Text()
        yield Text(f"{finding.level} ", _CAUSE_STYLES[finding.level]).append(
            f"{finding.name}: {finding.meaning} ({location(finding)})", "not bold default"
        )
        yield Text(f"  {plain(finding.evidence, 1000)}")
        yield Text(f"  {finding.remedy}", "dim")


def _key_table(timeline: Timeline) -> Table | None:
    """Returns the measured key figures, or None if there is none."""
    from rich.text import Text

    figures = [figure for figure in key_figures(timeline) if figure.latest is not None]
    table = _table("of the training", "latest", "lowest", "median", "highest")
    for figure in figures:
        values = (figure.latest, figure.lowest, figure.median, figure.highest)
        table.add_row(Text(figure.full_label), *(Text(shown(figure.key, value)) for value in values))
    return table if figures else None


def _side_by_side(timelines: Sequence[Timeline], names: Sequence[str]) -> Table:
    """Returns the newest and, in parentheses, the median value of each key figure of each run."""
    from rich.text import Text

    table = _table("latest (median) of the training", *names)
    table.add_row(Text("Cause"), *(Text(gravest(diagnosis_of(timeline))) for timeline in timelines))
    for figures in zip(*map(key_figures, timelines), strict=True):
        if any(figure.latest is not None for figure in figures):
            table.add_row(Text(common_label(figures)), *map(Text, map(_latest_and_median, figures)))
    return table


def _latest_and_median(figure: KeyFigure) -> str:
    if figure.latest is None:
        return "–"
    return f"{shown(figure.key, figure.latest)} ({shown(figure.key, figure.median)})"


def _worst_table(timeline: Timeline) -> Table | None:
    """Returns the worst tokens of the run, or None if none is known."""
    from rich.text import Text

    items = timeline.worst.tokens[:MAX_TOKENS]
    table = _table("worst tokens", "step", "d", "id", "position")
    table.columns[0].style, table.columns[0].overflow = "none", "ellipsis"
    for step, split, token in items:
        before, text, after = parts_of(token)
        short = text if len(text) <= _TOKEN_LENGTH else f"{text[:_TOKEN_LENGTH]}…"
        context = Text(before[-_TOKEN_LENGTH:]).append(short, "bold reverse").append(after[:_TOKEN_LENGTH])
        token_id = "–" if token.token_id is None else str(token.token_id)
        position = f"{token.position + 1:,} of {token.row_tokens:,}"
        table.add_row(context, *map(Text, (step_of(step, split), number(token.log_ratio), token_id, position)))
    return table if items else None


def _foreign_table(timeline: Timeline) -> Table:
    """Returns the statistics of a third-party log, with their meaning."""
    from rich.text import Text

    table = _table("in the log", "latest", "in our terms")
    table.columns[-1].justify = "left"
    for figure in foreign_figures(timeline):
        meaning = " ".join(filter(None, (figure.ours, f"({figure.explanation})")))
        table.add_row(Text(plain(figure.key, 80)), Text(number(figure.values[0])), Text(meaning))
    return table


def _left_out(timeline: Timeline) -> list[RenderableType]:
    """Returns one line per exclusion, with its reason."""
    from rich.text import Text

    exclusions = excluded(timeline)
    if exclusions:
        return [Text("Left out:"), *(Text(f"  {total:,} {what}: {why}") for what, total, why in exclusions)]
    counted = any(curve(timeline, f"ratioscope/counts/{name}") for name in EXCLUDED)
    return [Text("Nothing was left out." if counted else "Exclusions were not counted here.")]


def _table(first: str, *columns: str) -> Table:
    """Returns an empty table with names to the left and values to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(Text(first), style="dim", overflow="fold")
    for column in columns:
        table.add_column(Text(column), justify="right", overflow="fold")
    return table
