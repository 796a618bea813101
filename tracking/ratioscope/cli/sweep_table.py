"""How ``ratioscope sweep`` looks in a terminal."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from ratioscope.metrics import formulas
from ratioscope.sweep.recommend import SCOPE
from ratioscope.text import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from ratioscope.correction.rule import Correction
    from ratioscope.sweep.bounds import Bounded
    from ratioscope.sweep.outcome import Outcome
    from ratioscope.sweep.recommend import SweptRun

    Outcomes = Mapping[str, Sequence[Outcome]]

_NONE = "–"
_OWN = "this run"


def render(
    path: str,
    pooled: SweptRun,
    outcomes: Outcomes,
    *,
    windows: Sequence[tuple[int, Outcomes]] | None = None,
    advice: str = "",
) -> RenderableType:
    """Heading, one table a mode, and the recommendation, for a console of ``rich``.

    Args:
        path: what was read.
        pooled: the windows as one.
        outcomes: of all windows together, by mode.
        windows: step and outcomes of each, to show those instead.
        advice: the recommendation; empty for none.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_heading(path, pooled)]
    for mode, listed in outcomes.items():
        parts += [Text(), _mode_line(mode, pooled), Text()]
        if windows is None:
            parts.append(_table(listed, pooled.own))
        else:
            parts.insert(-1, Text("of single windows: the median, and the worst with its step", "dim"))
            parts.append(_worst_table(listed, [(step, each[mode]) for step, each in windows], pooled.own))
    if advice:
        parts += [Text(), Text(f"{advice} {SCOPE}")]
    return Group(*parts)


def _heading(path: str, pooled: SweptRun) -> RenderableType:
    from rich.text import Text

    first, last = pooled.steps
    windows = f"{pooled.windows:,} window{'' if pooled.windows == 1 else 's'}"
    facts = [windows, f"step {first}" if first == last else f"steps {first} to {last}", _rule(pooled.own)]
    if len(pooled.rules) > 1:
        facts.append(f"the last of {len(pooled.rules)} rules")
    return Text(str(path), "bold").append("  " + " · ".join(facts), "dim not bold")


def _rule(rule: Correction | None) -> str:
    if rule is None:
        return "no correction"
    return plain(rule.words(), 400)


def _mode_line(mode: str, pooled: SweptRun) -> RenderableType:
    from rich.text import Text

    level = mode.partition("_")[0]
    n, view = pooled.view.counts[f"{level}/n"], pooled.view
    mean, ess = view.ratio_mean(level), formulas.ess_raw(view, level)
    raw = f" · raw mean {_number(mean)}, ESS {_number(ess)}" if n else ""
    return Text(mode, "bold").append(f"  {n:,} {level}{'' if n == 1 else 's'}{raw}", "dim not bold")


def _new_table(*columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("", style="bold", no_wrap=True)
    return table


def _table(outcomes: Sequence[Outcome], own: Correction | None) -> Table:
    """One row a rule."""
    sides = any(outcome.correction.lower is not None for outcome in outcomes)
    table = _new_table("min", "max", "modified %", *(("below %", "above %") if sides else ()), "mean", "ESS")
    for one in outcomes:
        shares = (one.modified, one.below, one.above) if sides else (one.modified,)
        cells = [*_bounds(one.correction), *map(_share, shares)]
        mine = one.correction == own
        cells += [_weight(one.mean), _weight(one.ess), _OWN if mine else ""]
        table.add_row(*cells, style="bold" if mine else None)
    return table


def _worst_table(
    outcomes: Sequence[Outcome], windows: Sequence[tuple[int, Sequence[Outcome]]], own: Correction | None
) -> Table:
    """One row a rule: median and worst window."""
    table = _new_table("min", "max", "modified %", "worst", "step", "ESS", "worst", "step")
    for at, outcome in enumerate(outcomes):
        each = [(step, listed[at]) for step, listed in windows]
        modified = [(one.modified.value, step) for step, one in each if one.modified]
        ess = [(one.ess.value, step) for step, one in each if one.ess]
        cells = [*_bounds(outcome.correction)]
        for values, worst, written in ((modified, max, _percent), (ess, min, _number)):
            if not values:
                cells += [_NONE] * 3
                continue
            value, step = worst(values, key=lambda pair: pair[0])
            cells += [written(median(pair[0] for pair in values)), written(value), str(step)]
        mine = outcome.correction == own
        table.add_row(*cells, _OWN if mine else "", style="bold" if mine else None)
    return table


def _bounds(rule: Correction) -> tuple[str, str]:
    lower, upper = (_NONE if bound is None else f"{bound:.6g}" for bound in (rule.lower, rule.upper))
    return lower, upper


def _number(value: float | None) -> str:
    """Four decimals, or as many significant digits where these would not do."""
    if value is None:
        return _NONE
    return f"{value:.4f}" if 0.001 <= abs(value) < 100.0 else f"{value:.4g}"


def _percent(value: float) -> str:
    return f"{100.0 * value:.3g}"


def _share(number: Bounded | None) -> str:
    """A fraction in percent, and its error."""
    if number is None:
        return _NONE
    return _with_error(_percent(number.value), 100.0 * number.value, 100.0 * number.error)


def _weight(number: Bounded | None) -> str:
    """A mean weight or an effective sample size, and its error."""
    return _NONE if number is None else _with_error(_number(number.value), number.value, number.error)


def _with_error(text: str, value: float, error: float) -> str:
    """A number to the first digit of its error, which covers what rounding adds.

    Args:
        text: how it is written where its digits do not show the error.
        value: the number.
        error: how far the true one may be.
    """
    decimals = len(text.partition(".")[2])
    if "e" in text or error < 0.5 * 10.0**-decimals:
        return text
    digits = max(0, -math.floor(math.log10(error)))
    shown = round(value, digits)
    error += abs(shown - value)
    return f"{shown:.{digits}f} ±{math.ceil(error * 10.0**digits - 1e-6) / 10.0**digits:.{digits}f}"
