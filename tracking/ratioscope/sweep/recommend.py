"""Rules to try on a stored run, the run to try them on, and the recommendation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from ratioscope.correction.bounds import Correction
from ratioscope.runs.pooled import Part
from ratioscope.sweep.outcome import recorded, sweep_view
from ratioscope.text import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.correction.rule import Rule
    from ratioscope.metrics.view import View
    from ratioscope.runs.pooled import PooledRun
    from ratioscope.sweep.outcome import Outcome

MAX_MODIFIED = 0.01
"""Largest fraction of ratios that a recommended rule may change."""
MIN_ESS = 0.9
"""Smallest effective sample size, as a fraction, that a recommended rule may leave."""
SCOPE = "It speaks of the weights; what is good for learning only training shows."
"""Sentence beside every recommendation."""

_UNITS = {"token": "tokens", "sequence": "sequences"}


@dataclass(frozen=True)
class SweptRun:
    """Windows of one run as one, to try rules on.

    Attributes:
        view: their merged state.
        windows: how many they are.
        steps: step of the first and of the last.
        rules: every rule that was in force, in order; None where nothing was corrected.
    """

    view: View
    windows: int
    steps: tuple[int, int]
    rules: tuple[Rule | None, ...]

    @property
    def own(self) -> Rule | None:
        """The rule of the last window."""
        return self.rules[-1]

    @property
    def mode_rule(self) -> Correction | None:
        """The rule of the last window if it has bounds, to compare other thresholds with; None if it has stages."""
        return None if self.own is None else self.own.bounds

    def outcome(self, rule: Rule) -> Outcome:
        """Returns a rule's outcome: counted by the training if no other rule was in force, else computed."""
        counted = recorded(self.view) if self.rules == (rule,) else None
        return sweep_view(self.view, rule) if counted is None else counted


def pool_of(pooled: PooledRun) -> SweptRun | None:
    """Merges all windows of a run, also of different rules; None if there is no window."""
    if not pooled.parts or pooled.steps is None:
        return None
    summary = reduce(Part.merge, pooled.parts).summary
    return None if summary is None else SweptRun(summary.view(), pooled.windows, pooled.steps, pooled.rules)


def grid(
    mode: str, *, lowers: Sequence[float | None], uppers: Sequence[float | None], own: Correction | None = None
) -> list[Correction]:
    """Rules of one mode with every pair of bounds in order and not both open, and the run's own if it has the mode.

    Args:
        mode: one of :data:`ratioscope.correction.bounds.MODES`.
        lowers: lower bounds to try.
        uppers: upper bounds to try.
        own: the run's own rule.
    """
    level, _, action = mode.partition("_")
    rules = {own: None} if own is not None and own.mode == mode else {}
    for upper in uppers:
        for lower in lowers:
            nothing = lower is None and upper is None
            crossed = lower is not None and upper is not None and lower >= upper
            if not nothing and not crossed:
                rules[Correction(level, action, lower, upper)] = None  # type: ignore[arg-type]
    return sorted(rules, key=_tightness)


def _tightness(rule: Correction) -> tuple[float, float]:
    """Sorts the smallest cap first, then the largest lower bound."""
    return (math.inf if rule.upper is None else rule.upper, math.inf if rule.lower is None else -rule.lower)


@dataclass(frozen=True)
class Advice:
    """A rule to look at, and why; no rule where none will do.

    Attributes:
        outcome: what the named rule does.
        text: one sentence or two.
    """

    outcome: Outcome | None
    text: str


def advise(outcomes: Sequence[Outcome], *, max_modified: float = MAX_MODIFIED, min_ess: float = MIN_ESS) -> Advice:
    """Names the tightest rule that changes little and leaves the weights even; bounds count, not guesses.

    Args:
        outcomes: of rules of one level.
        max_modified: largest fraction of ratios that may be changed.
        min_ess: smallest effective sample size of the weights that are left, as a fraction.
    """
    known = [outcome for outcome in outcomes if outcome.modified and outcome.ess]
    if not known:
        return Advice(None, "No recommendation: no swept rule leaves finite weights to go by.")
    unit = _UNITS[known[0].correction.level]
    limits = f"changes at most {percent(max_modified)} of {unit} and keeps ESS at {min_ess:g} or more"
    fit = [one for one in known if _fits(one, max_modified, min_ess)]
    if fit:
        best = min(fit, key=lambda outcome: _tightness(outcome.correction))
        text = f"{_named(best)} keeps ESS at {_ess(best)} and changes {_modified(best)} of {unit}: the tightest of "
        return Advice(best, f"{text}those swept that {limits}.")
    least = min(known, key=lambda outcome: outcome.modified.value if outcome.modified else math.inf)
    evenest = max(known, key=lambda outcome: outcome.ess.value if outcome.ess else 0.0)
    text = (
        f"None of the swept rules {limits}. {_named(least)} changes least, {_modified(least)}, with ESS {_ess(least)}"
    )
    if evenest is least:
        return Advice(None, f"{text}, the most of all.")
    named = _named(evenest)
    trade = f"{named[0].lower()}{named[1:]} keeps most ESS, {_ess(evenest)}, but changes {_modified(evenest)}"
    return Advice(None, f"{text}; {trade}. To change fewer costs ESS here.")


def _fits(outcome: Outcome, max_modified: float, min_ess: float) -> bool:
    little = outcome.modified is not None and outcome.modified.high <= max_modified
    return little and outcome.ess is not None and outcome.ess.low >= min_ess


def _named(outcome: Outcome) -> str:
    rule = outcome.correction
    if rule.lower is None:
        return "Leaving all as it is" if rule.upper is None else f"Cap {rule.upper:g}"
    return f"Lower bound {rule.lower:g}" if rule.upper is None else f"Range {rule.lower:g} to {rule.upper:g}"


def _ess(outcome: Outcome) -> str:
    return f"{outcome.ess.value:.3g}" if outcome.ess else ""


def _modified(outcome: Outcome) -> str:
    return percent(outcome.modified.value) if outcome.modified else ""
