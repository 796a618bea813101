"""Timelines of made-up runs, without a journal."""

from __future__ import annotations

from typing import Any

import numpy as np

from ratioscope.runs.timeline import Timeline
from ratioscope.state.histogram import Bins
from tests.support.tracker_rows import normal_bins

HOSTILE = '<script>alert(1)</script><a href="x">&lt;%{x} $x$</a>\u2028\u202e\ud800</title><!--'
"""Hostile name of a run."""

RAW = "sampling/raw_importance_sampling_ratio"


def config_of(level: str = "token", **extra: Any) -> dict[str, Any]:
    """Returns a run config with a rule."""
    rule = {"enabled": True, "mode": f"{level}_truncate", "level": level, "action": "truncate"}
    return {"correction": {**rule, "lower": 0.9, "upper": 1.1}, "versions": {"torch": "2.13.0"}, **extra}


def scalars_at(index: int) -> dict[str, float]:
    """Returns statistics that differ in every window."""
    wave = 1e-3 * np.sin(index / 50) + 1e-6 * index
    ratios = {name: float(np.exp(z * (0.02 + wave))) for name, z in _QUANTILES.items()}
    found = {f"ratioscope/{at}/{name}": value for at in ("token/raw", "sequence/raw") for name, value in ratios.items()}
    return found | {
        f"{RAW}/min": 0.8 - wave,
        f"{RAW}/max": 1.2 + wave,
        "ratioscope/modified/low": 0.01 + wave,
        "ratioscope/modified/high": 0.02 + wave,
        "ratioscope/modified/fraction": 0.03 + 2 * wave,
        "ratioscope/ess/raw": 0.97 - wave,
        "ratioscope/ess/corrected": 0.99 - wave,
        "ratioscope/kl/k1": wave,
        "ratioscope/kl/k3": 0.001 + wave,
        "ratioscope/log_ratio/abs_mean": 0.01 + wave,
        "ratioscope/sequence/log_ratio/mean": wave,
        "ratioscope/sequence/log_ratio/std": 0.1 + wave,
        "ratioscope/sequence/max_weight_share": 0.1 + wave,
        "ratioscope/tokens/invalid": 0.0,
        "ratioscope/rows/empty": 0.0,
        "ratioscope/counts/tokens": 1000.0,
        "ratioscope/counts/rows": 8.0,
        "ratioscope/counts/nan": float(index % 7 == 0),
    }


def make_timeline(
    n: int, *, name: str = "a run", level: str = "token", evaluations: bool = False, **config: Any
) -> Timeline:
    """Makes a run of ``n`` windows, one per step."""
    timeline = Timeline(name=name, source=f"runs/{name}", config=config_of(level, **config))
    bins = [normal_bins(seed, spread=0.02, exponent=-8) for seed in range(8)]
    for index in range(n):
        drawn = bins[index % 8]
        keys = ("token_log_ratio", "sequence_log_ratio", "corrected_log_ratio")
        histograms = {f"ratioscope/hist/{key}": Bins(drawn.counts, drawn.edges) for key in keys}
        timeline.add(index + 1, "train", 1.7e9 + index, scalars_at(index), histograms)
        if evaluations and index % 10 == 9:
            scalars = {f"eval/{key}": value for key, value in scalars_at(index).items()}
            timeline.add(index + 1, "eval", 1.7e9 + index, scalars, {})
    return timeline


def make_nan_timeline(n: int = 3) -> Timeline:
    """Makes a run without any valid token."""
    timeline = Timeline(name="nothing but NaN", source="runs/nan", config=config_of())
    for index in range(n):
        scalars = {
            "ratioscope/tokens/invalid": 1.0,
            "ratioscope/rows/empty": 1.0,
            "ratioscope/counts/tokens": 0.0,
            "ratioscope/counts/rows": 0.0,
            "ratioscope/counts/rows_empty": 4.0,
            "ratioscope/counts/nan": 64.0,
        }
        timeline.add(index + 1, "train", 1.7e9 + index, scalars, {})
    return timeline


_QUANTILES = {"p01": -2.33, "p05": -1.64, "p50": 0.0, "p95": 1.64, "p99": 2.33}
