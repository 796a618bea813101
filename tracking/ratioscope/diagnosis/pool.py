"""Pool: neighbouring windows as one, with the statistics that checks ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ratioscope.diagnosis.findings import Unchecked
from ratioscope.metrics.metric import PREFIX
from ratioscope.state.histogram import representatives

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.runs.pooled import Part
    from ratioscope.summary.host import HostSummary

_ABS = np.abs(representatives())


@dataclass(frozen=True, eq=False)
class Pool:
    """One window of training, or several neighbouring ones, with the statistics that checks ask for.

    Attributes:
        part: the windows, merged.
    """

    part: Part

    @property
    def first(self) -> int:
        """Step of the first window."""
        return self.part.first

    @property
    def last(self) -> int:
        """Step of the last window."""
        return self.part.last

    @property
    def windows(self) -> int:
        """Number of windows."""
        return self.part.windows

    @property
    def summary(self) -> HostSummary | None:
        """Merged state; None where only scalars are known."""
        return self.part.summary

    @cached_property
    def scalars(self) -> Mapping[str, float]:
        """Every statistic that has data."""
        return self.part.known if self.summary is None else self.summary.metrics()

    def get(self, name: str) -> float | None:
        """A statistic by its key, which lacks ``ratioscope/``."""
        return self.scalars.get(PREFIX + name)

    def need(self, name: str) -> float:
        """Returns a statistic like :meth:`get`.

        Raises:
            Unchecked: if it has no data here.
        """
        value = self.get(name)
        if value is None:
            msg = f"{PREFIX}{name} is not in the record"
            raise Unchecked(msg)
        return value

    @property
    def state(self) -> HostSummary:
        """The merged state.

        Raises:
            Unchecked: if only scalars are known.
        """
        if self.summary is None:
            msg = "needs ratioscope's journal: no other log has histograms of this accuracy and counts by place"
            raise Unchecked(msg)
        return self.summary

    @property
    def tokens(self) -> float:
        """Valid tokens; 0 if they were not counted."""
        return self.get("counts/tokens") or 0.0

    def enough(self, tokens: int) -> float:
        """Valid tokens.

        Raises:
            Unchecked: if they are fewer.
        """
        if self.summary is None and not self.tokens:
            msg = "the number of tokens is not in the record"
            raise Unchecked(msg)
        if self.tokens < tokens:
            msg = f"{self.tokens:.0f} tokens are too few; needs {tokens}"
            raise Unchecked(msg)
        return self.tokens

    def beyond(self, cut: float, *, histogram: str = "token_log_ratio") -> int:
        """Counts the absolute log-ratios at or above a cut, to the accuracy of a bucket (1.6 %)."""
        return int(self.state.histogram(histogram)[cut <= _ABS].sum())

    def below(self, cut: float) -> int:
        """Counts the log-ratios of tokens at or below a negative cut, to the accuracy of a bucket."""
        return int(self.state.histogram("token_log_ratio")[: int(np.searchsorted(representatives(), cut))].sum())

    def abs_quantile(self, q: float) -> float:
        """Quantile of the absolute log-ratio of tokens, to the accuracy of a bucket."""
        order = np.argsort(_ABS, kind="stable")
        cumulative = np.cumsum(self.state.histogram("token_log_ratio")[order])
        at = int(np.searchsorted(cumulative, q * cumulative[-1]))
        return float(_ABS[order][min(at, len(order) - 1)])

    @property
    def abs_mean(self) -> float:
        """Mean absolute log-ratio of tokens, in nats."""
        short = self.get("log_ratio/abs_mean")
        return self.need("token/log_ratio/abs_mean") if short is None else short

    @property
    def measure(self) -> str:
        """Name of the measure in :attr:`mismatch`: mean |d|, or its substitute where only k3 is known."""
        known = any(self.get(name) is not None for name in ("log_ratio/abs_mean", "token/log_ratio/abs_mean"))
        return "mean |d|" if known or self.get("kl/k3") is None else "sqrt(2 k3), about the root mean square of d,"

    @property
    def mismatch(self) -> float:
        """Mismatch of the engines in nats, comparable only with other windows of the same run.

        Raises:
            Unchecked: if nothing says so.
        """
        return self.abs_mean if self.measure == "mean |d|" else math.sqrt(2.0 * max(self.need("kl/k3"), 0.0))

    @property
    def mismatch_error(self) -> float:
        """Standard error of it, of tokens that are independent; a tenth of it where the spread is unknown."""
        mean, std = self.get("token/log_ratio/mean"), self.get("token/log_ratio/std")
        if mean is None or std is None or not self.tokens or self.measure != "mean |d|":
            return self.mismatch / 10.0
        variance = std**2 + mean**2 - self.abs_mean**2
        return math.sqrt(max(variance, 0.0) / self.tokens)
