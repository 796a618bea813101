"""What a run's numbers stand on: sentences about what was not measured, or not in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.report.verdict.line import APART, Line, curve, total
from ratioscope.text import count, percent, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratioscope.runs.timeline import Timeline

IDENTICAL_TOKENS = 100
"""Valid tokens above which equality to the last bit is no accident, as in ``ratioscope/identical``."""

TOLD = "finding "
"""How the line of an :class:`~ratioscope.event.Event` begins."""


def events(timeline: Timeline) -> Iterator[Line]:
    """What the recorder noted beside its numbers."""
    kinds: dict[str, list[tuple[int, str]]] = {"differing": [], "failed": [], "other": []}
    for step, text in timeline.events:
        if text.startswith(TOLD):  # what a diagnosis told meanwhile is in the list of events; the lines here judge anew
            continue
        differing, failed = "weights are not what the rule gives" in text, text.startswith("observations that failed")
        kinds["differing" if differing else "failed" if failed else "other"].append((step, text))
    if found := kinds["differing"]:
        text = f"The trainer's weights are not what the rule gives in {_windows(found)}"
        yield Line("bad", f"{text}; what follows from weights is left out there.")
    if found := kinds["failed"]:
        yield Line("warning", f"Observations failed in {_windows(found)}; they are in no number here.")
    if found := kinds["other"]:
        yield Line("note", f"Noted in {_windows(found)}: {plain(found[-1][1], 200)}")


def _windows(found: list[tuple[int, str]]) -> str:
    return f"{count(len(found), 'window')}, last at step {found[-1][0]}"


def without_tokens(timeline: Timeline) -> Iterator[Line]:
    """Windows in which nothing could be measured."""
    tokens = curve(timeline, "ratioscope/counts/tokens")
    empty = [step for step, n in zip(tokens.steps, tokens.values, strict=True) if n == 0] if tokens else []
    if curve(timeline, APART) is None:
        windows = count(timeline.windows["train"], "window")
        yield Line("bad", f"No valid token in {windows}: nothing was measured.")
    elif empty:
        windows = f"{len(empty):,} of {count(timeline.windows['train'], 'window')}"
        yield Line("warning", f"No valid token in {windows}, last at step {empty[-1]}: nothing was measured there.")


def identical(timeline: Timeline) -> Line | None:
    """Log-probabilities that are compared with themselves; bad if that is so in every window."""
    apart, tokens = curve(timeline, APART), curve(timeline, "ratioscope/counts/tokens")
    if apart is None or tokens is None:
        return None
    n = dict(zip(tokens.steps, tokens.values, strict=True))
    pairs = list(zip(apart.steps, apart.values, strict=True))
    equal = [step for step, value in pairs if value == 0 and n.get(step, 0) > IDENTICAL_TOKENS]
    if not equal:
        return None
    text = "Trainer and rollout log-probabilities are equal to the last bit"
    end = "two engines differ in some, so it is likely that nothing is measured"
    if len(equal) == len(pairs):
        return Line("bad", f"{text} in all of {count(len(pairs), 'window')}: {end}.")
    windows = f"{len(equal):,} of {count(len(pairs), 'window')}"
    return Line("warning", f"{text} in {windows}, last at step {equal[-1]}: {end} there.")


def left_out(timeline: Timeline) -> Iterator[Line]:
    """How much of the batch is in no number, or is infinite for the trainer."""
    invalid = sum(total(timeline, name) for name in ("missing", "nan", "inf", "positive_logp"))
    if invalid:
        share = percent(invalid / (invalid + total(timeline, "tokens")))
        tokens = f"{count(invalid, 'token')} ({share})"
        yield Line("warning", f"{tokens} had no usable log-probability and {_are(invalid)} in no other number.")
    if rows := total(timeline, "rows_empty"):
        yield Line("note", f"{count(rows, 'row')} had no valid token and {_are(rows)} in no other number.")
    if overflow := total(timeline, "overflow"):
        text = f"{count(overflow, 'ratio')} {_are(overflow)} beyond float32 (log-ratio above 88.72)"
        yield Line("warning", f"{text}: infinite for the trainer.")


def _are(n: int) -> str:
    return "is" if n == 1 else "are"
