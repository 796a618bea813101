"""Formulas of the catalogue's metrics, made from names of slots and levels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.metrics import correlation, formulas

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratioscope.metrics.metric import Formula
    from ratioscope.metrics.view import View


def mean_of(total: str, n: str = "token/n", *, scale: float = 1.0) -> Formula:
    """Mean of a sum over a count, times a scale."""
    return lambda view: view.mean(total, n, scale=scale)


def fraction_of(part: str, n: str = "token/n") -> Formula:
    """Fraction of a count that another one is."""
    return lambda view: view.fraction(part, n)


def at_level(level: str | None, formula: Callable[[View, str], float | None]) -> Formula:
    """A formula at a level; None for the level of the mode."""
    return lambda view: formula(view, level or view.level)


def quantile_of(level: str | None, name: str) -> Formula:
    """Quantile of the ratio at a level; None for the level of the mode."""
    return lambda view: view.ratio_quantile(level or view.level, name)


def modified_on(side: str) -> Formula:
    """Fraction of the ratios that the rule modified on one side, ``"low"`` or ``"high"``."""
    return lambda view: formulas.modified_on(view, side)


def maximum_of(slot: str) -> Formula:
    """Largest value of a slot."""
    return lambda view: view.slot_max(slot)


def lag_of(lag: int) -> Formula:
    """Correlation of the log-probabilities of neighbouring tokens."""
    return lambda view: correlation.lag_pearson(view, lag)


def corrected_of(formula: Formula) -> Formula:
    """Withheld where nothing can be said of the weights."""
    return lambda view: view.corrected(formula(view))
