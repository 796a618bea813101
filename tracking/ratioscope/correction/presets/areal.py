"""AReaL: rejection sampling."""

from __future__ import annotations

from functools import partial
from typing import Any

from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import Preset, rejecting
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage


def _rejection_sampling(
    *,
    level: str = "token",
    action: str = "mask",
    metric: str = "ratio",
    agg: str = "mean",
    upper: float = 5.0,
    lower: float | None = None,
) -> StagedCorrection:
    """AReaL's ``RejectionSamplingConfig``."""
    check_choice("level", level, ("token", "sequence"))
    check_choice("action", action, ("mask", "clamp"))
    check_choice("metric", metric, ("ratio", "kl_k1", "kl_k2", "kl_k3", "binary_kl"))
    check_choice("agg", agg, ("sum", "mean", "max"))
    rows = level == "sequence"
    weight: Any = "geometric" if rows and metric == "ratio" else "token"
    if action == "clamp":
        if metric != "ratio" or (rows and agg != "mean"):
            msg = f"got action='clamp' of metric={metric!r} and agg={agg!r}; expected metric='ratio', over a row its "
            msg += "mean, which the weight is"
            raise ValueError(msg)
        return StagedCorrection((Stage("ratio", "geometric" if rows else "token", "truncate", lower, upper),), weight)
    if metric == "ratio":
        over = {"sum": "product", "mean": "geometric", "max": "max"}[agg]
        return StagedCorrection(rejecting("ratio", over if rows else "token", "drop", lower, upper), weight)
    if metric == "kl_k1":
        if rows and agg == "max":
            msg = "got metric='kl_k1' with agg='max'; expected sum or mean, since its k1 is +l and ours -l, whose "
            msg += "largest are other tokens"
            raise ValueError(msg)
        low = None if lower is None else -lower
        return StagedCorrection(rejecting("k1", agg if rows else "token", "drop", -upper, low), weight)
    statistic = {"kl_k2": "k2", "kl_k3": "reversed_k3", "binary_kl": "binary_kl"}[metric]
    return StagedCorrection(rejecting(statistic, agg if rows else "token", "drop", lower, upper), weight)


_SOURCE = "areal/utils/data.py, areal/utils/functional/functional.py"
_BAND = {"upper": 2.0, "lower": 0.5}
_BOUNDS = ("upper", "lower")
_rows, _clamp = partial(_rejection_sampling, level="sequence"), partial(_rejection_sampling, action="clamp")
_options = "mask drops; kl_k3 is the reversed one; kl_k1 bounds +l"
_by_rows = "Of the ratio: the weight is the geometric mean, also where agg=sum decides by the product"

PRESETS = (
    Preset("areal/rejection_sampling", _SOURCE, _rejection_sampling, _options, _BAND),
    Preset("areal/token_mask", _SOURCE, _rejection_sampling, "", _BAND, ("metric", *_BOUNDS)),
    Preset("areal/token_clamp", _SOURCE, _clamp, "", _BAND, _BOUNDS),
    Preset("areal/sequence_mask", _SOURCE, _rows, _by_rows, names=("metric", "agg", *_BOUNDS)),
    Preset("areal/sequence_clamp", _SOURCE, partial(_rows, action="clamp"), names=_BOUNDS),
)
