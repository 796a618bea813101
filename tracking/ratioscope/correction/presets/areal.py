"""AReaL: rejection sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.correction.bounds import Correction
from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import Preset, ratio_stage, rejecting

if TYPE_CHECKING:
    from ratioscope.correction.staged import StagedCorrection


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
        return Correction.of([ratio_stage("geometric" if rows else "token", "truncate", lower, upper)], weight=weight)
    if metric == "ratio":
        over = {"sum": "product", "mean": "geometric", "max": "max"}[agg]
        return Correction.of(rejecting("ratio", over if rows else "token", "drop", lower, upper), weight=weight)
    if metric == "kl_k1":
        if rows and agg == "max":
            msg = "got metric='kl_k1' with agg='max'; expected sum or mean, since its k1 is +l and ours -l, whose "
            msg += "largest are other tokens"
            raise ValueError(msg)
        low = None if lower is None else -lower
        return Correction.of(rejecting("k1", agg if rows else "token", "drop", -upper, low), weight=weight)
    statistic = {"kl_k2": "k2", "kl_k3": "reversed_k3", "binary_kl": "binary_kl"}[metric]
    return Correction.of(rejecting(statistic, agg if rows else "token", "drop", lower, upper), weight=weight)


def presets() -> list[Preset]:
    """Returns the presets of this framework."""
    source, rule = "areal/utils/data.py, areal/utils/functional.py", _rejection_sampling
    two = {"upper": 2.0, "lower": 0.5}
    return [
        Preset("areal/rejection_sampling", source, rule, "mask drops; kl_k3 is the reversed one; kl_k1 bounds +l", two),
        Preset(
            "areal/token_mask",
            source,
            rule,
            "",
            two,
            names=(
                "metric",
                "upper",
                "lower",
            ),
        ),
        Preset(
            "areal/token_clamp",
            source,
            rule,
            "",
            two,
            fixed={"action": "clamp"},
            names=(
                "upper",
                "lower",
            ),
        ),
        Preset(
            "areal/sequence_mask",
            source,
            rule,
            "Of the ratio: the weight is the geometric mean, also where agg=sum decides by the product",
            fixed={"level": "sequence"},
            names=(
                "metric",
                "agg",
                "upper",
                "lower",
            ),
        ),
        Preset(
            "areal/sequence_clamp",
            source,
            rule,
            fixed={"level": "sequence", "action": "clamp"},
            names=(
                "upper",
                "lower",
            ),
        ),
    ]
