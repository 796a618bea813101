"""Summaries (smallest, largest, mean) that W&B keeps of a statistic beside its last value, to sort its runs table by.

Metrics are defined by exact names, and only ratioscope's own: a glob could take another's metric away from the axis
that its owner chose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.metrics import catalogue
from ratioscope.metrics.metric import FRACTION, PREFIX, RAW

if TYPE_CHECKING:
    from collections.abc import Iterable

    import wandb

TRAIN = "train/"
"""Prefix that transformers' ``WandbCallback`` adds to keys of the trainer's log."""

_LOW_IS_BAD = (
    f"{RAW}/min",
    *(f"{PREFIX}{key}" for key in ("raw/p01", "ess/raw", "ess/corrected", "calibration/slope")),
    *(f"{PREFIX}{level}/ess/{which}" for level in ("token", "sequence") for which in ("raw", "corrected")),
    *(f"{PREFIX}{level}/raw/{which}" for level in ("token", "sequence") for which in ("min", "p01")),
)
_HIGH_IS_BAD = (
    f"{RAW}/max",
    *(f"{PREFIX}{key}" for key in ("raw/p99", "kl/k1", "kl/k2", "kl/k3", "log_ratio/abs_mean", "row/abs_mean_max")),
    *(f"{PREFIX}{key}" for key in ("tokens/invalid", "rows/empty", "outside/0.9_1.1", "outside/0.5_2")),
    *(f"{PREFIX}counts/{what}" for what in ("rows_empty", "nan", "inf", "positive_logp", "missing", "overflow")),
    *(f"{PREFIX}{level}/raw/{which}" for level in ("token", "sequence") for which in ("max", "p99")),
    *(
        f"{PREFIX}{level}/log_ratio/{which}"
        for level in ("token", "sequence")
        for which in ("std", "abs_mean", "abs_max")
    ),
    *(f"{PREFIX}{level}/max_weight_share" for level in ("token", "sequence")),
)
_SHARE = (FRACTION, *(f"{PREFIX}modified/{which}" for which in ("fraction", "low", "high", "truncated", "masked")))

SUMMARIES: dict[str, str] = {
    **dict.fromkeys(_LOW_IS_BAD, "min,last"),
    **dict.fromkeys(_HIGH_IS_BAD, "max,last"),
    **dict.fromkeys(_SHARE, "max,mean,last"),
}
"""W&B's ``summary`` argument for each statistic whose extreme matters."""


class Summaries:
    """Defines the metrics of one run when they first appear.

    Args:
        run: a live run.
        step_metric: the axis that the run's glob gives all metrics, which an exact name has to repeat; None if the run
            has no such glob.
        headline_reported: whether the trainer logs the headline, so that it never passes through the tracker.
    """

    def __init__(self, run: wandb.Run, *, step_metric: str | None, headline_reported: bool) -> None:
        self._run = run
        self._axis = step_metric
        self._known: set[str] = set()
        if headline_reported:
            self.define(TRAIN + key for key in sorted(catalogue.keys("headline")))

    def define(self, keys: Iterable[str]) -> None:
        """Defines new metrics that have a summary. Call it before their first value is logged."""
        for key in keys:
            if key in self._known:
                continue
            self._known.add(key)
            summary = SUMMARIES.get(key.removeprefix(TRAIN))
            if summary is not None:
                synced = True if self._axis else None
                self._run.define_metric(key, summary=summary, step_metric=self._axis, step_sync=synced)
