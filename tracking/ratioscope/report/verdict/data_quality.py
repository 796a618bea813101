"""Sentences about data quality: windows and tokens that were not measured, or only in part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.report.verdict.line import MISMATCH, Line, curve, total
from ratioscope.text import count, percent, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratioscope.runs.timeline import Timeline

IDENTICAL_TOKENS = 100
"""Valid tokens above which bitwise equality cannot be chance, as in ``ratioscope/identical``."""

FINDING = "finding "
"""Beginning of a stored :class:`~ratioscope.event.Event` as text."""

_KINDS = {"differing": "weights are not what the rule gives", "failed": "observations that failed"}
"""Words that identify the kind of a recorder's note."""


def events(timeline: Timeline) -> Iterator[Line]:
    """Summarizes the notes of the recorder."""
    kinds: dict[str, list[tuple[int, str]]] = {"differing": [], "failed": [], "other": []}
    for step, text in timeline.events:
        # Findings of the training are listed among the events; the verdict diagnoses the whole run again.
        if not text.startswith(FINDING):
            kinds[next((kind for kind, words in _KINDS.items() if words in text), "other")].append((step, text))
    if notes := kinds["differing"]:
        text = f"The trainer's weights are not what the rule gives in {_windows(notes)}"
        yield Line("bad", f"{text}; statistics of weights are left out there.")
    if notes := kinds["failed"]:
        yield Line("warning", f"Observations failed in {_windows(notes)}; no number includes them.")
    if notes := kinds["other"]:
        yield Line("note", f"Noted in {_windows(notes)}: {plain(notes[-1][1], 200)}")


def _windows(notes: list[tuple[int, str]]) -> str:
    return f"{count(len(notes), 'window')}, last at step {notes[-1][0]}"


def without_tokens(timeline: Timeline) -> Iterator[Line]:
    """Reports windows without a valid token."""
    tokens = curve(timeline, "ratioscope/counts/tokens")
    empty = [step for step, n in zip(tokens.steps, tokens.values, strict=True) if n == 0] if tokens else []
    windows = count(timeline.windows["train"], "window")
    if curve(timeline, MISMATCH) is None:
        absent = "valid token" if tokens else "successful observation"
        yield Line("bad", f"No {absent} in {windows}: nothing was measured.")
    elif empty:
        text = f"No valid token in {len(empty):,} of {windows}, last at step {empty[-1]}"
        yield Line("warning", f"{text}: nothing was measured there.")


def identical(timeline: Timeline) -> Line | None:
    """Detects log-probabilities that are compared with themselves; bad if every window is so."""
    mismatch, tokens = curve(timeline, MISMATCH), curve(timeline, "ratioscope/counts/tokens")
    if mismatch is None or tokens is None:
        return None
    n_tokens = dict(zip(tokens.steps, tokens.values, strict=True))
    pairs = zip(mismatch.steps, mismatch.values, strict=True)
    equal = [step for step, value in pairs if value == 0 and n_tokens.get(step, 0) > IDENTICAL_TOKENS]
    if not equal:
        return None
    text = "Trainer and rollout log-probabilities are equal to the last bit in"
    why = "two engines differ in some bits, so probably nothing is measured"
    windows = count(len(mismatch.steps), "window")
    if len(equal) == len(mismatch.steps):
        return Line("bad", f"{text} all of {windows}: {why}.")
    return Line("warning", f"{text} {len(equal):,} of {windows}, last at step {equal[-1]}: {why} there.")


def left_out(timeline: Timeline) -> Iterator[Line]:
    """Reports tokens and completions without a valid log-ratio, and ratios that overflow the trainer's float32."""
    invalid = sum(total(timeline, name) for name in ("missing", "nan", "inf", "positive_logp"))
    if invalid:
        share = percent(invalid / (invalid + total(timeline, "tokens")))
        tokens = f"{count(invalid, 'token')} ({share})"
        yield Line("warning", f"{tokens} had no usable log-probability; no other number includes {_them(invalid)}.")
    if rows := total(timeline, "rows_empty"):
        yield Line("note", f"{count(rows, 'completion')} had no valid token; no other number includes {_them(rows)}.")
    if overflow := total(timeline, "overflow"):
        text = f"{count(overflow, 'ratio')} {'exceeds' if overflow == 1 else 'exceed'} float32 (log-ratio above 88.72)"
        yield Line("warning", f"{text}: infinite for the trainer.")


def _them(n: int) -> str:
    return "it" if n == 1 else "them"
