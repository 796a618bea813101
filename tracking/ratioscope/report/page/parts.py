"""Parts of the page that are plain HTML. Whatever comes from a run is escaped here."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from ratioscope.report.figures.panel import Absent, Panel
from ratioscope.report.verdict.verdict import excluded, key_figures, verdict
from ratioscope.text import plain, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ratioscope.diagnosis import Diagnosis
    from ratioscope.runs.timeline import Timeline

MAX_CONFIG = 200_000
"""Characters of a config that are shown."""

MAX_EVENTS = 200
"""Events that are shown, the newest."""

_LEVELS = {"good": "Good", "note": "Note", "warning": "Warning", "bad": "Bad"}
_CLASSES = {"good": "good", "note": "note-level", "warning": "warning", "bad": "bad"}


def text(value: object, limit: int = 200) -> str:
    """Any text as HTML; what is cut off stays in its title."""
    whole = plain(str(value))
    cut = plain(whole, limit)
    if cut == whole:
        return html.escape(whole)
    return f'<span title="{html.escape(whole)}">{html.escape(cut)}</span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, kinds: Sequence[str] = ("number",)) -> str:
    """A table in a box that scrolls by itself; the first column names the row.

    Args:
        head: HTML of the column heads.
        rows: HTML of the cells.
        kinds: ``"number"`` or ``"setting"`` for each column after the first; the last goes for all that follow.
    """
    classes = ["", *kinds, *[kinds[-1]] * len(head)]
    columns = "".join(f'<th scope="col" class="{kind}">{cell}</th>' for kind, cell in zip(classes, head, strict=False))
    body = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(classes[1:], rest, strict=False))
        + "</tr>"
        for first, *rest in rows
    )
    whole = f"<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="table" tabindex="0">{whole}</div>'


def facts(entries: Iterable[tuple[str, str]]) -> str:
    """The header's small facts: name and text of each."""
    items = "".join(
        f"<div{' class=wide' if len(value) > 60 else ''}><dt>{html.escape(name)}</dt><dd>{text(value)}</dd></div>"
        for name, value in entries
    )
    return f'<dl class="facts">{items}</dl>'


def verdict_list(timeline: Timeline, diagnosis: Diagnosis) -> str:
    """What can be said of a run; a line that names a cause leads to what is said of it."""
    items = "".join(
        f'<li class="{_CLASSES[line.level]}"><b>{_LEVELS[line.level]}</b><span>{text(line.text, 1000)}'
        f"{f' <a href={chr(34)}{line.link}{chr(34)}>More</a>' if line.link else ''}</span></li>"
        for line in verdict(timeline, diagnosis)
    )
    return f'<ul class="verdict">{items}</ul>' if items else ""


def key_table(timeline: Timeline) -> str:
    """The statistics at a glance; those without data are left out."""
    rows = [
        (
            f'<span title="{html.escape(figure.key)}">{html.escape(figure.full_label)}</span>',
            *(shown(figure.key, value) for value in (figure.latest, figure.lowest, figure.median, figure.highest)),
        )
        for figure in key_figures(timeline)
        if figure.latest is not None
    ]
    if not rows:
        return ""
    return "<h2>Key figures</h2>" + table(
        ("Over the training's windows", "Latest", "Lowest", "Median", "Highest"), rows
    )


def excluded_table(timeline: Timeline) -> str:
    """What was left out over the whole run, and why."""
    rows = [(html.escape(what), f"{n:,}", html.escape(why)) for what, n, why in excluded(timeline)]
    if not rows:
        return ""
    return table(("Left out over the run", "How many", "Why"), rows, kinds=("number", "setting"))


def config_details(config: Mapping[str, Any], title: str = "Run config") -> str:
    """The whole config, folded."""
    if not config:
        return ""
    lines = json.dumps(config, indent=2, ensure_ascii=False, default=str).split("\n")
    whole = "\n".join(f"{line[: len(line) - len(line.lstrip())]}{plain(line.strip())}" for line in lines)
    if len(whole) > MAX_CONFIG:
        whole = f"{whole[:MAX_CONFIG]}\n… cut after {MAX_CONFIG:,} characters"
    return f"<details><summary>{title}</summary><pre>{html.escape(whole)}</pre></details>"


def event_details(timeline: Timeline) -> str:
    """What was reported along the way, folded."""
    if not timeline.events:
        return ""
    newest = timeline.events[-MAX_EVENTS:]
    rows = [(f"{step:,}", text(event, 500)) for step, event in newest]
    told = f"{len(timeline.events):,} events" if len(newest) == len(timeline.events) else f"{len(newest)} newest events"
    return f"<details><summary>{told}</summary>{table(('Step', 'Event'), rows, kinds=('setting',))}</details>"


def figures(entries: Sequence[Panel | Absent], titles: Mapping[str, str]) -> str:
    """The figures' places, in order; those of a group side by side in one card.

    Args:
        entries: panels, and what is missing.
        titles: of the groups.
    """
    cards: list[str] = []
    done: set[str] = set()
    for entry in entries:
        group = entry.group
        if not group:
            cards.append(card(entry))
        elif group not in done:
            done.add(group)
            cards.append(_group([one for one in entries if one.group == group], titles[group]))
    return "".join(cards)


def definitions(entries: Sequence[Panel | Absent], meanings: Mapping[str, str], titles: Mapping[str, str]) -> str:
    """What the figures' statistics are, in the catalogue's words."""
    items: dict[str, tuple[str, dict[str, str]]] = {}
    for panel in entries:
        if isinstance(panel, Panel):
            _, found = items.setdefault(panel.link, (titles.get(panel.group, panel.title), {}))
            found.update({key: meanings[key] for key in panel.metrics if key in meanings})
    if not items:
        return ""
    body = "".join(
        f'<dt id="{html.escape(link[1:])}">{html.escape(title)}</dt>'
        + "".join(f"<dd><code>{html.escape(key)}</code> {html.escape(told)}</dd>" for key, told in found.items())
        for link, (title, found) in items.items()
    )
    return f'<section class="definitions"><h2>Definitions</h2><p class="why">{_NOTATION}</p><dl>{body}</dl></section>'


def card(entry: Panel | Absent) -> str:
    """A figure's place, or the reason why there is none."""
    title = text(entry.title)
    if isinstance(entry, Absent):
        return f'<section class="card absent"><h3>{title}</h3><p>{text(entry.reason, 600)}</p></section>'
    return f'<section class="card"><h3>{title}</h3>{_told(entry)}{_plot(entry)}</section>'


def _group(entries: Sequence[Panel | Absent], title: str) -> str:
    first = next((entry for entry in entries if isinstance(entry, Panel)), None)
    told = _told(first, noted=False) if first else ""
    cells = []
    for entry in entries:
        if isinstance(entry, Panel):
            note = f'<p class="note">{text(entry.note, 600)}</p>' if entry.note else ""
            cells.append(f"<div><h4>{text(entry.run)}</h4>{_plot(entry)}{note}</div>")
        else:
            cells.append(f"<div><h4>{text(entry.title)}</h4><p>{text(entry.reason, 600)}</p></div>")
    return (
        f'<section class="card"><h3>{html.escape(title)}</h3>{told}<div class="side">{"".join(cells)}</div></section>'
    )


def _told(panel: Panel, *, noted: bool = True) -> str:
    note = f'<p class="note">{text(panel.note, 600)}</p>' if noted and panel.note else ""
    link = f' <a href="{html.escape(panel.link)}">Definition</a>' if panel.link else ""
    return f"<p>{text(panel.sentence, 600)}{link}</p>{note}"


def _plot(panel: Panel) -> str:
    tall = " tall" if panel.tall else ""
    name = html.escape(plain(panel.title, 100))
    return f'<div class="plot{tall}" id="plot-{html.escape(panel.key)}" role="group" aria-label="{name}"></div>'


_NOTATION = (
    "d_t is the trainer's log-probability of token t minus the rollout's, in nats, and r_t = exp(d_t) its ratio; "
    "D_i is the sum of d_t over completion i, and R_i = exp(D_i) its ratio. Only valid tokens count: masked in, with "
    "two finite log-probabilities. Every number pools all ranks and micro-batches of its window, unless it "
    "says that it was read from another trainer's."
)
