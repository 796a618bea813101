"""The sentences of a verdict, and the thresholds behind them.

Each threshold stands here with its reason. None of them is a law: they say where to look.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from ratioscope.report.verdict import data_quality, elsewhere
from ratioscope.report.verdict.line import APART, Level, Line, curve, rule
from ratioscope.text import count, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratioscope.runs.timeline import Curve, Timeline

MODIFIED_WARNING, MODIFIED_BAD = 0.1, 0.5
"""Modified fraction: a tenth is felt in the loss; beyond a half the rule decides more than the data."""

APART_NOTE, APART_WARNING, APART_BAD = 0.05, 0.1, 1.0
"""Mean |log-ratio| of tokens in nats. Engines in bfloat16 that hold the same weights are 0.01 to 0.04 apart; 0.1 came
with truncated sampling and 0.2 with weights that were not synchronised; 1 means that other tokens are compared."""

ESS_NOTE, ESS_WARNING, ESS_BAD = 0.5, 0.3, 0.1
"""Effective sample size as a fraction: below 0.5 importance samplers resample by convention, 0.3 and 0.1 are where
other trainers of this kind warn and fail."""

COLLAPSED = 1.5
"""Effective number of sequences up to which one of them carries the batch."""

STEADY, GROWN = 1.25, 2.0
"""Factor between the first and the last fifth of a run up to which the distance counts as steady, and from which its
growth is a warning."""

FEWEST_WINDOWS, FEWEST_OF_A_FIFTH = 10, 3
"""Windows of a run, and of what counts as its first and last fifth: with fewer, one odd window decides."""


def sentences(timeline: Timeline) -> Iterator[Line]:
    """Every sentence, in the order of reading."""
    if not timeline.windows.get("train"):
        evaluations = sum(timeline.windows.values())
        rest = f"; {count(evaluations, 'window')} of evaluations" if evaluations else ""
        yield Line("warning", f"No window of training was recorded{rest}: nothing can be said.")
        return
    yield from data_quality.events(timeline)
    if timeline.foreign:
        yield from elsewhere.lines(timeline)
    else:
        yield from data_quality.without_tokens(timeline)
    if curve(timeline, APART) is None and not timeline.foreign:
        return
    if not timeline.foreign or curve(timeline, "ratioscope/modified/fraction"):
        yield from _modified(timeline)
    if (equal := data_quality.identical(timeline)) is not None:
        yield equal
    if equal is None or equal.level != "bad":
        yield from _apart(timeline)
        yield from _growth(timeline)
        yield from _effective(timeline)
        yield from _collapse(timeline)
    yield from data_quality.left_out(timeline)


def _modified(timeline: Timeline) -> Iterator[Line]:
    modified = curve(timeline, "ratioscope/modified/fraction")
    settings = rule(timeline)
    if modified is None:
        off = settings.get("enabled") is False
        why = "No correction: ratios are only watched." if off else "What the correction changes was not measured."
        yield Line("note", why)
        return
    now, worst = modified.values[-1], max(modified.values)
    what = "sequences" if settings.get("level") == "sequence" else "tokens" if settings.get("level") else "ratios"
    text = f"The correction changes {percent(now)} of {what} at step {modified.steps[-1]}{_sides(timeline, now)}"
    if worst > now:
        text += f"; at worst {percent(worst)}, at step {modified.steps[modified.values.index(worst)]}"
    elif len(modified.values) > 1:
        text += "; never more before"
    level = _level(now, note=0.0, warning=MODIFIED_WARNING, bad=MODIFIED_BAD)
    if level == "note" and worst > MODIFIED_BAD:
        level = "warning"
    # Never "good": a correction with nothing to do may also be one whose bounds do not reach what is wrong.
    yield Line("note" if level == "good" else level, f"{text}.")


def _sides(timeline: Timeline, now: float) -> str:
    """Which bounds the newest window crossed."""
    settings, parts = rule(timeline), []
    for side, name, word in (("low", "lower", "below"), ("high", "upper", "above")):
        found, bound = curve(timeline, f"ratioscope/modified/{side}"), settings.get(name)
        if found and found.values[-1] > 0:
            limit = number(bound) if isinstance(bound, int | float) else f"the {name} bound"
            parts.append((found.values[-1], f"{word} {limit}"))
    if not parts or now == 0:
        return ""
    if len(parts) == 1:
        return f", all {parts[0][1]}"
    return ": " + " and ".join(f"{percent(value)} {where}" for value, where in parts)


def _apart(timeline: Timeline) -> Iterator[Line]:
    apart = curve(timeline, APART)
    if apart is None:
        return
    now = apart.values[-1]
    text = (
        f"The engines are {number(now)} nats apart at step {apart.steps[-1]} (mean |log-ratio| of tokens{_as(apart)})"
    )
    low, high = (curve(timeline, f"ratioscope/token/raw/{name}") for name in ("p01", "p99"))
    if low and high:
        text += f"; 98 % of the token ratios lie in {number(low.values[-1])} to {number(high.values[-1])}"
    level = _level(now, note=APART_NOTE, warning=APART_WARNING, bad=APART_BAD)
    # Log-probabilities of too few tokens can be equal without saying anything.
    yield Line("note" if now == 0 else level, f"{text}.")


def _as(found: Curve) -> str:
    """Whose number it is, unless it is our own."""
    return f", as {found.origin} has it" if found.origin else ""


def _growth(timeline: Timeline) -> Iterator[Line]:
    apart = curve(timeline, APART)
    if apart is None or len(apart.values) < FEWEST_WINDOWS:
        return
    fifth = max(FEWEST_OF_A_FIFTH, len(apart.values) // 5)
    first, last = median(apart.values[:fifth]), median(apart.values[-fifth:])
    spans = f"steps {apart.steps[0]} to {apart.steps[fifth - 1]}", f"{apart.steps[-fifth]} to {apart.steps[-1]}"
    text = f"median {number(first)} nats in {spans[0]}, {number(last)} in {spans[1]}"
    if first == 0:
        if last > 0:
            yield Line("warning", f"The distance between the engines grew from nothing: {text}.")
        return
    factor = last / first
    if factor > STEADY:
        level: Level = "warning" if factor >= GROWN else "note"
        yield Line(level, f"The distance between the engines grew {number(factor)} times: {text}.")
    elif factor < 1 / STEADY:
        yield Line("note", f"The distance between the engines fell to {number(factor)} times the first: {text}.")
    else:
        yield Line("good", f"The distance between the engines is steady, {number(factor)} times the first: {text}.")


def _effective(timeline: Timeline) -> Iterator[Line]:
    raw, left = curve(timeline, "ratioscope/ess/raw"), curve(timeline, "ratioscope/ess/corrected")
    shown = left or raw
    if shown is None:
        return
    now, worst = shown.values[-1], min(shown.values)
    step = shown.steps[-1]
    if left:
        text = f"The correction leaves {percent(now)} of the effective sample size at step {step}{_as(left)}"
        text += f" ({percent(raw.values[-1])} before it)" if raw and raw.steps[-1] == step else ""
    else:
        text = f"The effective sample size of the raw ratios is {percent(now)} at step {step}"
    if worst < now:
        text += f"; at worst {percent(worst)}, at step {shown.steps[shown.values.index(worst)]}"
    yield Line(_level(-now, note=-ESS_NOTE, warning=-ESS_WARNING, bad=-ESS_BAD), f"{text}.")


def _collapse(timeline: Timeline) -> Iterator[Line]:
    """Sequence weights of which one is nearly all."""
    rows = curve(timeline, "ratioscope/counts/rows")
    if rule(timeline).get("level") != "sequence" or rows is None:
        return
    n = dict(zip(rows.steps, rows.values, strict=True))
    graveness: dict[str, tuple[Level, Level]] = {"corrected": ("bad", "warning"), "raw": ("warning", "note")}
    for name, (now, before) in graveness.items():
        found = curve(timeline, f"ratioscope/ess/{name}")
        pairs = [(s, v * n[s]) for s, v in zip(found.steps, found.values, strict=True) if s in n] if found else []
        fallen = [(step, effective) for step, effective in pairs if effective <= COLLAPSED and n[step] >= 4]
        if fallen:
            step, effective = fallen[-1]
            text = f"One sequence carries the batch in {len(fallen):,} of {count(len(pairs), 'window')}"
            at = f"at step {step} the {name} weights are worth {number(effective)} of {n[step]:.0f} sequences"
            yield Line(now if step == pairs[-1][0] else before, f"{text}: {at}.")
            return


def _level(value: float, *, note: float, warning: float, bad: float) -> Level:
    return "bad" if value > bad else "warning" if value > warning else "note" if value > note else "good"
