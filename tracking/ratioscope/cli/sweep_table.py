"""Tables of ``ratioscope sweep`` in a terminal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ratioscope.metrics import formulas
from ratioscope.sweep.recommend import SCOPE
from ratioscope.text import count, percent, plain, steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from ratioscope.correction.bounds import Correction
    from ratioscope.correction.rule import Rule
    from ratioscope.sweep.bounds import Bounded
    from ratioscope.sweep.outcome import Outcome
    from ratioscope.sweep.recommend import Advice, SweptRun

_NONE = "–"
_OWN = "this run"


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        pooled: the swept windows.
        outcomes: outcome of each rule over all windows, by mode.
        windows: step and outcomes of each window, by mode; None unless requested.
        advice: the recommendation.
    """

    pooled: SweptRun
    outcomes: dict[str, list[Outcome]]
    windows: list[tuple[int, dict[str, list[Outcome]]]] | None
    advice: Advice


def render(path: str, sweep: Sweep) -> RenderableType:
    """Returns heading, one table per mode, and the recommendation, for a console of ``rich``.

    Args:
        path: path of the journal.
        sweep: the sweep; if it has outcomes of each window, the tables show those instead of all windows together.
    """
    from rich.console import Group
    from rich.text import Text

    own = sweep.pooled.own
    parts: list[RenderableType] = [_heading(path, sweep.pooled)]
    for mode, outcomes in sweep.outcomes.items():
        parts += [Text(), _mode_line(mode, sweep.pooled)]
        if sweep.windows is None:
            parts += [Text(), _table(outcomes, own)]
        else:
            explanation = Text("of single windows: the median, and the worst with its step", "dim")
            windows = [(step, by_mode[mode]) for step, by_mode in sweep.windows]
            parts += [explanation, Text(), _worst_table(outcomes, windows, own)]
    if sweep.advice.text:
        parts += [Text(), Text(f"{sweep.advice.text} {SCOPE}")]
    return Group(*parts)


def _heading(path: str, pooled: SweptRun) -> RenderableType:
    from rich.text import Text

    rule = "no correction" if pooled.own is None else plain(pooled.own.words(), 400)
    facts = [count(pooled.windows, "window"), steps(*pooled.steps), rule]
    if len(pooled.rules) > 1:
        facts.append(f"the last of {len(pooled.rules)} rules")
    return Text(str(path), "bold").append("  " + " · ".join(facts), "dim not bold")


def _mode_line(mode: str, pooled: SweptRun) -> RenderableType:
    from rich.text import Text

    level = mode.partition("_")[0]
    n, view = pooled.view.counts[f"{level}/n"], pooled.view
    mean, ess = view.ratio_mean(level), formulas.ess_raw(view, level)
    raw = f" · raw mean {_number(mean)}, ESS {_number(ess)}" if n else ""
    return Text(mode, "bold").append(f"  {count(n, level)}{raw}", "dim not bold")


def _new_table(*columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("", style="bold", no_wrap=True)
    return table


def _add_row(table: Table, rule: Correction, cells: Sequence[str], own: Rule | None) -> None:
    """Adds the row of a rule; the run's own rule is bold and marked."""
    bounds = (_NONE if bound is None else f"{bound:.6g}" for bound in (rule.lower, rule.upper))
    is_own = rule == own
    table.add_row(*bounds, *cells, _OWN if is_own else "", style="bold" if is_own else None)


def _table(outcomes: Sequence[Outcome], own: Rule | None) -> Table:
    """Returns one row per rule, over all windows together."""
    has_lower = any(outcome.correction.lower is not None for outcome in outcomes)
    table = _new_table("min", "max", "modified %", *(("below %", "above %") if has_lower else ()), "mean", "ESS")
    for outcome in outcomes:
        shares = (outcome.modified, outcome.below, outcome.above) if has_lower else (outcome.modified,)
        cells = [*map(_share, shares), _weight(outcome.mean), _weight(outcome.ess)]
        _add_row(table, outcome.correction, cells, own)
    return table


def _worst_table(
    outcomes: Sequence[Outcome], windows: Sequence[tuple[int, Sequence[Outcome]]], own: Rule | None
) -> Table:
    """Returns one row per rule, with its median and worst window."""
    table = _new_table("min", "max", "modified %", "worst", "step", "ESS", "worst", "step")
    for index, outcome in enumerate(outcomes):
        each = [(step, of_window[index]) for step, of_window in windows]
        modified = [(result.modified.value, step) for step, result in each if result.modified]
        ess = [(result.ess.value, step) for step, result in each if result.ess]
        cells = []
        for values, worst, written in ((modified, max, _percent), (ess, min, _number)):
            if not values:
                cells += [_NONE] * 3
                continue
            value, step = worst(values, key=lambda pair: pair[0])
            cells += [written(median(pair[0] for pair in values)), written(value), str(step)]
        _add_row(table, outcome.correction, cells, own)
    return table


def _number(value: float | None) -> str:
    """Writes four decimals, or four significant digits for very small and large values."""
    if value is None:
        return _NONE
    return f"{value:.4f}" if 0.001 <= abs(value) < 100.0 else f"{value:.4g}"


def _percent(value: float) -> str:
    return percent(value).removesuffix(" %")  # the column's title has the sign


def _share(number: Bounded | None) -> str:
    """Writes a fraction in percent, and its error."""
    if number is None:
        return _NONE
    return _with_error(_percent(number.value), 100.0 * number.value, 100.0 * number.error)


def _weight(number: Bounded | None) -> str:
    """Writes a mean weight or an effective sample size, and its error."""
    return _NONE if number is None else _with_error(_number(number.value), number.value, number.error)


def _with_error(text: str, value: float, error: float) -> str:
    """Rounds a number to the first digit of its error; the displayed error includes the rounding.

    Args:
        text: the number for an error below its last digit.
        value: the number.
        error: largest difference to the true number.
    """
    decimals = len(text.partition(".")[2])
    if "e" in text or error < 0.5 * 10.0**-decimals:
        return text
    digits = max(0, -math.floor(math.log10(error)))
    rounded = round(value, digits)
    error += abs(rounded - value)
    return f"{rounded:.{digits}f} ±{math.ceil(error * 10.0**digits - 1e-6) / 10.0**digits:.{digits}f}"
