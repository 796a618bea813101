"""Worst tokens and completions of a run as rows of text, for the page and the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ratioscope.runs.worst import parts_of, row_name
from ratioscope.text import number

if TYPE_CHECKING:
    from ratioscope.state.worst import WorstRow, WorstToken


class TokenTexts(NamedTuple):
    """A token in its context, and its numbers; all of it may come from a model and is any text."""

    before: str
    token: str
    after: str
    token_id: str
    step: str
    log_ratio: str
    ratio: str
    train_logp: str
    rollout_logp: str
    position: str
    completion: str
    advantage: str
    rank: str


class CompletionTexts(NamedTuple):
    """Numbers of a completion."""

    step: str
    abs_mean: str
    log_ratio: str
    tokens: str
    completion: str
    advantage: str
    rank: str


def token_texts(step: int, split: str, token: WorstToken) -> TokenTexts:
    """Writes a worst token of the window at a step."""
    before, text, after = parts_of(token)
    return TokenTexts(
        before,
        text,
        after,
        token_id="–" if token.token_id is None else str(token.token_id),
        step=_step(step, split),
        log_ratio=number(token.log_ratio),
        ratio=number(token.ratio),
        train_logp=number(token.train_logp),
        rollout_logp=number(token.rollout_logp),
        position=f"{token.position + 1:,} of {token.row_tokens:,}",
        completion=row_name(token.row),
        advantage=number(token.advantage),
        rank=str(token.rank),
    )


def completion_texts(step: int, split: str, row: WorstRow) -> CompletionTexts:
    """Writes a worst completion of the window at a step."""
    numbers = (number(row.abs_mean), number(row.log_ratio), f"{row.tokens:,}")
    return CompletionTexts(_step(step, split), *numbers, row_name(row.row), number(row.advantage), str(row.rank))


def _step(step: int, split: str) -> str:
    return f"{step:,}" if split == "train" else f"{step:,} ({split})"
