"""Metric: one statistic of a summary, and the detail at which it is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ratioscope.metrics.view import View

PREFIX = "ratioscope/"
"""First part of the key of everything that only ratioscope logs; keys of evaluation have ``eval/`` before it."""

RAW = "sampling/raw_importance_sampling_ratio"
FRACTION = "sampling/frac_modified_importance_sampling_ratio"
"""Names of the raw ratio's statistics and of the modified fraction, as in TRL's own logs."""

Detail = Literal["headline", "standard", "full"]
"""Extent of what is sent: the trainer's own log; about 35 more for trackers; everything. Each has the one before."""

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
