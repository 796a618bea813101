"""What is computed from a summary, and how much of it is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

from ratioscope.view import View

if TYPE_CHECKING:
    from ratioscope.summary import RatioSummary

Detail = Literal["headline", "standard", "full"]
"""How much is sent: what enters the trainer's own log; about 35 more for trackers; everything. Each holds the last."""

Formula = Callable[[View], float | None]
"""A statistic's value from a summary on the host; None where there is no data."""


@dataclass(frozen=True)
class Metric:
    """One statistic.

    Attributes:
        key: full name, as trackers see it.
        meaning: one line for the reference page.
        detail: the smallest detail that includes it.
        formula: how it is computed.
    """

    key: str
    meaning: str
    detail: Detail
    formula: Formula


def compute(summary: RatioSummary, *, detail: str = "full") -> dict[str, float]:
    """Every statistic of the catalogue that has data, as finite Python floats.

    Raises:
        ValueError: if the detail is unknown.
    """
    from ratioscope.catalogue import CATALOGUE

    wanted = keys(detail)
    view = View.of(summary)
    values = {metric.key: metric.formula(view) for metric in CATALOGUE if metric.key in wanted}
    return {key: float(value) for key, value in values.items() if value is not None and math.isfinite(value)}


@cache
def keys(detail: str) -> frozenset[str]:
    """Keys that a detail includes.

    Raises:
        ValueError: if the detail is unknown.
    """
    from ratioscope.catalogue import CATALOGUE

    order = get_args(Detail)
    if detail not in order:
        msg = f"got detail={detail!r}; expected one of {', '.join(map(repr, order))}"
        raise ValueError(msg)
    return frozenset(metric.key for metric in CATALOGUE if order.index(metric.detail) <= order.index(detail))
