"""Sentences of a verdict, with the thresholds behind them.

The thresholds show where to look; each stands here with its reason.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from ratioscope.report.verdict import data_quality
from ratioscope.report.verdict.line import MISMATCH, Line, Tone, curve, rule
from ratioscope.text import count, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratioscope.runs.timeline import Curve, Timeline

MODIFIED_WARNING, MODIFIED_BAD = 0.1, 0.5
"""Modified fraction: a tenth changes the loss noticeably; above a half the rule decides more than the data."""

MISMATCH_NOTE, MISMATCH_WARNING, MISMATCH_BAD = 0.05, 0.1, 1.0
"""Mean |log-ratio| of tokens in nats. Engines in bfloat16 with the same weights differ by 0.01 to 0.04; 0.1 came with
truncated sampling and 0.2 with weights that were not synchronised; 1 means that other tokens are compared."""

ESS_NOTE, ESS_WARNING, ESS_BAD = 0.5, 0.3, 0.1
"""Effective sample size as a fraction: importance samplers resample below 0.5 by convention; other trainers warn at
0.3 and fail at 0.1."""

COLLAPSED = 1.5
"""Largest effective number of sequences at which one sequence dominates the batch."""

STEADY, GROWN = 1.25, 2.0
"""Factor between the first and the last fifth of a run up to which the mismatch is steady, and from which its growth is
a warning."""

FEWEST_WINDOWS, FEWEST_OF_A_FIFTH = 10, 3
"""Windows of a run, and of its first and last fifth: with fewer, one odd window would decide."""

_FOREIGN_LACKS = {
    "the distribution of the raw ratios": ("ratioscope/raw/p50",),
    "the share of ratios that the correction changes": ("ratioscope/modified/fraction", "ratioscope/modified/high"),
    "the effective sample size": ("ratioscope/ess/raw", "ratioscope/ess/corrected"),
    "the KL between the engines": ("ratioscope/kl/k1", "ratioscope/kl/k3"),
    "the mean |log-ratio| of tokens": (MISMATCH,),
    "the tokens left out, and why": ("ratioscope/tokens/invalid",),
}
"""Facts that a third-party log may lack, and the statistics of which any one gives the fact."""


def sentences(timeline: Timeline) -> Iterator[Line]:
    """Yields every sentence, in the order of reading."""
    if not timeline.windows.get("train"):
        evaluations = sum(timeline.windows.values())
        rest = f"; {count(evaluations, 'window')} of evaluations" if evaluations else ""
        yield Line("warning", f"No window of training was recorded{rest}: nothing can be said.")
        return
    yield from data_quality.events(timeline)
    yield from _foreign(timeline) if timeline.foreign else data_quality.without_tokens(timeline)
    if curve(timeline, MISMATCH) is None and not timeline.foreign:
        return
    if not timeline.foreign or curve(timeline, "ratioscope/modified/fraction"):
        yield _modified(timeline)
    if (equal := data_quality.identical(timeline)) is not None:
        yield equal
    if equal is None or equal.level != "bad":
        yield from _mismatch(timeline)
        yield from _growth(timeline)
        yield from _effective(timeline)
        yield from _collapse(timeline)
    yield from data_quality.left_out(timeline)


def _foreign(timeline: Timeline) -> Iterator[Line]:
    """Names the sources of a third-party run, and what its log does not contain."""
    frameworks = ", ".join(dict.fromkeys(name.framework for name in timeline.foreign.values()))
    similar = sum(name.relation == "near" for name in timeline.foreign.values())
    text = f"Not ratioscope's own log: {count(len(timeline.foreign), 'number')} of {frameworks}"
    differing = f", {similar} of which stand in for ratioscope's and differ as the table says" if similar else ""
    yield Line("note", f"{text}{differing}.")
    lacks = [fact for fact, keys in _FOREIGN_LACKS.items() if not any(curve(timeline, key) for key in keys)]
    if lacks:
        yield Line("note", f"Not in this log, and therefore unknown: {'; '.join(lacks)}.")


def _modified(timeline: Timeline) -> Line:
    """Describes the modified fraction, newest and worst."""
    modified = curve(timeline, "ratioscope/modified/fraction")
    settings = rule(timeline)
    if modified is None:
        off = settings.get("enabled") is False
        return Line(
            "note", "No correction: ratios are only watched." if off else "The modified fraction was not measured."
        )
    now, worst = modified.values[-1], max(modified.values)
    what = "sequences" if settings.get("level") == "sequence" else "tokens" if settings.get("level") else "ratios"
    text = f"The correction changes {percent(now)} of {what} at step {modified.steps[-1]}{_sides(timeline, now)}"
    if worst > now:
        text += f"; at worst {percent(worst)}, at step {modified.steps[modified.values.index(worst)]}"
    elif len(modified.values) > 1:
        text += ", the largest share so far"
    tone = _tone(now, note=0.0, warning=MODIFIED_WARNING, bad=MODIFIED_BAD)
    if tone == "note" and worst > MODIFIED_BAD:
        tone = "warning"
    # Never "good": a correction that changes nothing may have bounds that do not reach the problem.
    return Line("note" if tone == "good" else tone, f"{text}.")


def _sides(timeline: Timeline, now: float) -> str:
    """Describes the bounds that the newest window crossed."""
    settings, parts = rule(timeline), []
    for side, name, word in (("low", "lower", "below"), ("high", "upper", "above")):
        share, bound = curve(timeline, f"ratioscope/modified/{side}"), settings.get(name)
        if share and share.values[-1] > 0:
            limit = number(bound) if isinstance(bound, int | float) else f"the {name} bound"
            parts.append((share.values[-1], f"{word} {limit}"))
    if not parts or now == 0:
        return ""
    if len(parts) == 1:
        return f", all {parts[0][1]}"
    return ": " + " and ".join(f"{percent(value)} {side}" for value, side in parts)


def _mismatch(timeline: Timeline) -> Iterator[Line]:
    """Describes the newest mean |log-ratio| and the range of the token ratios."""
    mismatch = curve(timeline, MISMATCH)
    if mismatch is None:
        return
    now = mismatch.values[-1]
    text = f"The mean |log-ratio| of tokens is {number(now)} nats at step {mismatch.steps[-1]}{_origin(mismatch)}"
    low, high = (curve(timeline, f"ratioscope/token/raw/{name}") for name in ("p01", "p99"))
    if low and high:
        text += f"; 98 % of the token ratios lie in {number(low.values[-1])} to {number(high.values[-1])}"
    tone = _tone(now, note=MISMATCH_NOTE, warning=MISMATCH_WARNING, bad=MISMATCH_BAD)
    # A few tokens can have equal log-probabilities by chance.
    yield Line("note" if now == 0 else tone, f"{text}.")


def _origin(statistic: Curve) -> str:
    """Names the third-party statistic that the number was read from; empty for a statistic of ratioscope."""
    return f", read from {statistic.origin}" if statistic.origin else ""


def _growth(timeline: Timeline) -> Iterator[Line]:
    """Compares the median mismatch of the first and the last fifth of the windows."""
    mismatch = curve(timeline, MISMATCH)
    if mismatch is None or len(mismatch.values) < FEWEST_WINDOWS:
        return
    fifth = max(FEWEST_OF_A_FIFTH, len(mismatch.values) // 5)
    first, last = median(mismatch.values[:fifth]), median(mismatch.values[-fifth:])
    steps = mismatch.steps
    text = f"median {number(first)} nats in steps {steps[0]} to {steps[fifth - 1]}"
    text += f", {number(last)} in {steps[-fifth]} to {steps[-1]}"
    if first == 0:
        if last > 0:
            yield Line("warning", f"The mismatch between the engines grew from nothing: {text}.")
        return
    factor = last / first
    if factor > STEADY:
        tone: Tone = "warning" if factor >= GROWN else "note"
        yield Line(tone, f"The mismatch between the engines grew {number(factor)} times: {text}.")
    elif factor < 1 / STEADY:
        yield Line("note", f"The mismatch between the engines fell to {number(factor)} times the first: {text}.")
    else:
        yield Line("good", f"The mismatch between the engines is steady, {number(factor)} times the first: {text}.")


def _effective(timeline: Timeline) -> Iterator[Line]:
    """Describes the newest and the worst effective sample size, after the rule if there is one."""
    raw, corrected = curve(timeline, "ratioscope/ess/raw"), curve(timeline, "ratioscope/ess/corrected")
    ess = corrected or raw
    if ess is None:
        return
    now, worst, step = ess.values[-1], min(ess.values), ess.steps[-1]
    if corrected:
        text = f"The correction leaves {percent(now)} of the effective sample size at step {step}{_origin(corrected)}"
        text += f" ({percent(raw.values[-1])} before it)" if raw and raw.steps[-1] == step else ""
    else:
        text = f"The effective sample size of the raw ratios is {percent(now)} at step {step}"
    if worst < now:
        text += f"; at worst {percent(worst)}, at step {ess.steps[ess.values.index(worst)]}"
    yield Line(_tone(-now, note=-ESS_NOTE, warning=-ESS_WARNING, bad=-ESS_BAD), f"{text}.")


def _collapse(timeline: Timeline) -> Iterator[Line]:
    """Reports windows in which one sequence weight dominates, at the level of a sequence mode."""
    rows = curve(timeline, "ratioscope/counts/rows")
    if rule(timeline).get("level") != "sequence" or rows is None:
        return
    n_rows = dict(zip(rows.steps, rows.values, strict=True))
    tones: dict[str, tuple[Tone, Tone]] = {"corrected": ("bad", "warning"), "raw": ("warning", "note")}
    for name, (tone_now, tone_before) in tones.items():
        ess = curve(timeline, f"ratioscope/ess/{name}")
        pairs = zip(ess.steps, ess.values, strict=True) if ess else ()
        effective = [(step, value * n_rows[step]) for step, value in pairs if step in n_rows]
        # One of fewer than four sequences is a large share anyway.
        collapsed = [(step, n) for step, n in effective if n <= COLLAPSED and n_rows[step] >= 4]
        if collapsed:
            step, n = collapsed[-1]
            text = f"One sequence carries the batch in {len(collapsed):,} of {count(len(effective), 'window')}"
            worth = f"at step {step} the {name} weights are worth {number(n)} of {n_rows[step]:.0f} sequences"
            yield Line(tone_now if step == effective[-1][0] else tone_before, f"{text}: {worth}.")
            return


def _tone(value: float, *, note: float, warning: float, bad: float) -> Tone:
    return "bad" if value > bad else "warning" if value > warning else "note" if value > note else "good"
