"""The report of a run, and the comparison of several, in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.diagnosis.read import diagnosis_of
from ratioscope.extras import require
from ratioscope.report.page.worst import worst_table
from ratioscope.report.verdict.cause import grave, gravest, where
from ratioscope.report.verdict.comparison import config_differences, first_to_drift, labels
from ratioscope.report.verdict.line import curve, rule
from ratioscope.report.verdict.verdict import EXCLUDED, common_label, excluded, key_figures, verdict
from ratioscope.runs.foreign.adopt import sentence
from ratioscope.text import count, number, plain, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from ratioscope.diagnosis import Diagnosis
    from ratioscope.runs.timeline import Timeline

_STYLES = {"good": "bold green", "note": "bold blue", "warning": "bold yellow", "bad": "bold red"}
_CAUSE_STYLES = {"error": "bold red", "warning": "bold yellow"}
_VALUE_LENGTH = 60
_CONFIG_ROWS = 40


def render(timeline: Timeline) -> RenderableType:
    """A run as a table, its verdict and what was left out, for a console of ``rich``.

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
    figures = [figure for figure in key_figures(timeline) if figure.latest is not None]
    if figures:
        table = _table("of the training", "latest", "lowest", "median", "highest")
        for figure in figures:
            values = (figure.latest, figure.lowest, figure.median, figure.highest)
            table.add_row(Text(figure.full_label), *(Text(shown(figure.key, value)) for value in values))
        parts += [Text(), table]
    if (worst := worst_table(timeline)) is not None:
        parts += [Text(), worst]
    if timeline.foreign:
        return Group(*parts, Text(), _elsewhere(timeline))
    return Group(*parts, Text(), *_left_out(timeline))


def render_comparison(timelines: Sequence[Timeline]) -> RenderableType:
    """Runs side by side: who drifted first, key figures, and settings that differ.

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
        parts.append(Text(f"and {len(settings) - _CONFIG_ROWS} more, which the page has"))
    return Group(*parts)


def _side_by_side(timelines: Sequence[Timeline], names: Sequence[str]) -> Table:
    """Key figures, of each run the newest and, in brackets, the median."""
    from rich.text import Text

    table = _table("latest (median) of the training", *names)
    table.add_row(Text("Cause"), *(Text(gravest(diagnosis_of(timeline))) for timeline in timelines))
    for figures in zip(*map(key_figures, timelines), strict=True):
        key, cells = figures[0].key, [Text("–")] * len(figures)
        if all(figure.latest is None for figure in figures):
            continue
        for at, figure in enumerate(figures):
            if figure.latest is not None:
                cells[at] = Text(f"{shown(key, figure.latest)} ({shown(key, figure.median)})")
        table.add_row(Text(common_label(figures)), *cells)
    return table


def _heading(timeline: Timeline, name: str | None = None) -> Text:
    """Name, source, windows and rule on one line."""
    from rich.text import Text

    facts = [plain(timeline.source, 80), *_windows(timeline), _rule(timeline)]
    heading = Text(name or plain(timeline.name, 80) or "unnamed", "bold")
    return heading.append("  " + " · ".join(filter(None, facts)), "dim not bold")


def _windows(timeline: Timeline) -> Iterator[str]:
    for split, name in (("train", "of training"), ("eval", "of evaluations")):
        if n := timeline.windows.get(split, 0):
            found = [each for key, each in timeline.scalars.items() if not key.startswith("eval/")]
            steps = ""
            if found and split == "train":
                steps = f", steps {min(each.steps[0] for each in found)} to {max(each.steps[-1] for each in found)}"
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


def _left_out(timeline: Timeline) -> list[RenderableType]:
    """What was left out and why, one line each."""
    from rich.text import Text

    found = excluded(timeline)
    if found:
        return [Text("Left out:"), *(Text(f"  {total:,} {what}: {why}") for what, total, why in found)]
    counted = any(curve(timeline, f"ratioscope/counts/{name}") for name in EXCLUDED)
    return [Text("Nothing was left out." if counted else "What was left out was not counted here.")]


def _causes(diagnosis: Diagnosis) -> Iterator[Text]:
    """The findings above info, each with its evidence and what to do."""
    from rich.text import Text

    for finding in grave(diagnosis):
        yield Text()
        yield Text(f"{finding.level} ", _CAUSE_STYLES[finding.level]).append(
            f"{finding.name}: {finding.meaning} ({where(finding)})", "not bold default"
        )
        yield Text(f"  {plain(finding.evidence, 1000)}")
        yield Text(f"  {finding.remedy}", "dim")


def _elsewhere(timeline: Timeline) -> Table:
    """What the numbers of somebody else's log are."""
    from rich.text import Text

    table = _table("in the log", "latest", "in our terms")
    table.columns[-1].justify = "left"
    for key, name in timeline.foreign.items():
        found = curve(timeline, key) or curve(timeline, f"eval/{key}")
        latest = Text(number(found.values[-1])) if found else Text("–")
        table.add_row(Text(plain(key, 80)), latest, Text(" ".join(filter(None, (name.ours, f"({sentence(name)})")))))
    return table


def _table(first: str, *columns: str) -> Table:
    """A table of names, to the left, and values, to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(Text(first), style="dim", overflow="fold")
    for column in columns:
        table.add_column(Text(column), justify="right", overflow="fold")
    return table
