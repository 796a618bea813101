"""The worst tokens and rows of a run, on the page and in the terminal. Their texts come from a model: any text."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from ratioscope.report.page import parts
from ratioscope.runs.worst import parts_of, row_name
from ratioscope.text import count, number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from ratioscope.runs.timeline import Timeline
    from ratioscope.state.worst import WorstRow, WorstToken

TERMINAL_TOKENS = 8
"""Tokens that the terminal shows."""

_TERMINAL_TEXT = 24
_WHY = (
    "The tokens on which trainer and rollout disagree most, by |d_t|, exact over all ranks. Spaces at the ends of a "
    "text are shown as ␣, line breaks as ↵, and what cannot be seen as its code; � is part of a character. Tokens of "
    "one completion have the same row."
)
_NO_TEXT = " Their texts were not kept: pass decode=tokenizer to the recorder; the TRL callback does it by itself."
_PLACE = ("Row", "Advantage", "Rank")
_HEAD = ("Token in its context", "Id", "Step", "d_t", "Ratio", "Trainer", "Rollout", "Position", *_PLACE)
_ROW_HEAD = ("Step", "Mean |d_t|", "D_i", "Tokens", *_PLACE)


def worst_section(timeline: Timeline) -> str:
    """The section of the page as HTML; empty for a run of which no worst token is known."""
    run, last = timeline.worst, timeline.worst.last
    if not run.tokens:
        return ""
    told = any(at.token.text is not None for at in run.tokens) or all(at.token.token_id is None for at in run.tokens)
    why = html.escape(_WHY if told else _WHY + _NO_TEXT)
    body = [
        f'<section class="worst"><h2>Worst tokens</h2><p class="why">{why}</p>',
        _tokens((_when(at.step, at.split), at.token) for at in run.tokens),
    ]
    if last is not None:
        title = f"The last window's: {count(len(last.tokens), 'token')} of step {last.step:,}"
        body.append(_folded(title, _tokens((_when(last.step, "train"), token) for token in last.tokens)))
    if run.rows:
        rows = _rows((_when(at.step, at.split), at.row) for at in run.rows)
        body.append(_folded(f"Worst rows: {len(run.rows)} by mean |d_t|", rows))
    return "".join([*body, "</section>"])


def worst_table(timeline: Timeline) -> Table | None:
    """The first of the run's worst tokens for a console of ``rich``; None where there are none."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    found = timeline.worst.tokens[:TERMINAL_TOKENS]
    if not found:
        return None
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(Text("worst tokens"))
    for title in ("step", "d", "id", "position"):
        table.add_column(Text(title), justify="right")
    for step, split, token in found:
        before, text, after = parts_of(token)
        shown = Text(before[-_TERMINAL_TEXT:]).append(_short(text), "bold reverse").append(after[:_TERMINAL_TEXT])
        place = f"{token.position + 1:,} of {token.row_tokens:,}"
        cells = (_when(step, split), number(token.log_ratio), "–" if token.token_id is None else str(token.token_id))
        table.add_row(shown, *map(Text, (*cells, place)))
    return table


def _tokens(found: Iterable[tuple[str, WorstToken]]) -> str:
    rows = []
    for when, token in found:
        before, text, after = (html.escape(part) for part in parts_of(token))
        context = f'<code class="tokens"><bdi>{before}</bdi><mark><bdi>{text}</bdi></mark><bdi>{after}</bdi></code>'
        known = "–" if token.token_id is None else str(token.token_id)
        numbers = map(number, (token.log_ratio, token.ratio, token.train_logp, token.rollout_logp))
        place = (f"{token.position + 1:,} of {token.row_tokens:,}", *_place(token))
        rows.append((context, known, when, *numbers, *place))
    return parts.table(_HEAD, rows)


def _rows(found: Iterable[tuple[str, WorstRow]]) -> str:
    rows = [(when, *map(number, (row.abs_mean, row.log_ratio)), f"{row.tokens:,}", *_place(row)) for when, row in found]
    return parts.table(_ROW_HEAD, rows)


def _place(found: WorstToken | WorstRow) -> tuple[str, str, str]:
    return f"<code>{row_name(found.row)}</code>", number(found.advantage), str(found.rank)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{body}</details>"


def _when(step: int, split: str) -> str:
    return f"{step:,}" if split == "train" else f"{step:,} ({html.escape(split)})"


def _short(text: str) -> str:
    return text if len(text) <= _TERMINAL_TEXT else f"{text[:_TERMINAL_TEXT]}…"
