"""SkyRL, AReaL, ROLL, XTuner: rejection at several levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.correction.bounds import Correction
from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import Preset, only, pair, ratio_stage, rejecting
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage, StageLevel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEVELS: dict[str, StageLevel] = {
    "token": "token",
    "segment": "segment",
    "sequence": "product",
    "geometric": "geometric",
}

_OF_DIFFERENCES = {"token": "token", "segment": "segment", "sequence": "sum", "geometric": "mean"}
"""The same levels of what is no ratio."""


def skyrl(
    *,
    outlier_token_is_threshold_low: float | None = None,
    outlier_token_is_threshold_high: float | None = None,
    token_mask_is_threshold_low: float | None = None,
    token_mask_is_threshold_high: float | None = None,
    tis_ratio_type: str | None = None,
    token_tis_ratio_clip_high: float = 2.0,
    sequence_tis_ratio_clip_high: float = 5.0,
    sequence_mask_metric: str | None = None,
    geo_mask_low: float = 0.99,
    geo_mask_high: float = 1.01,
    product_mask_low: float = 0.5,
    product_mask_high: float = 2.0,
) -> StagedCorrection:
    """SkyRL's ``OffPolicyCorrectionConfig``, in its order."""
    bounds = token_mask_is_threshold_low, token_mask_is_threshold_high
    masks_tokens = None not in bounds  # SkyRL wants both
    of_rows = tis_ratio_type == "sequence" or sequence_mask_metric is not None
    if masks_tokens and of_rows:
        msg = "got token_mask_is_threshold_* with a rule for rows; expected one of them. SkyRL takes a row's ratio of "
        msg += "the tokens that its mask leaves, and our stages all decide on the raw values."
        raise ValueError(msg)
    stages = rejecting("ratio", "any", "drop", outlier_token_is_threshold_low, outlier_token_is_threshold_high)
    stages += rejecting("ratio", "token", "drop", *bounds) if masks_tokens else []
    if tis_ratio_type is not None:
        check_choice("tis_ratio_type", tis_ratio_type, ("token", "sequence"))
        token = tis_ratio_type == "token"
        cap = token_tis_ratio_clip_high if token else sequence_tis_ratio_clip_high
        stages.append(ratio_stage("token" if token else "product", "truncate", None, cap))
    if sequence_mask_metric is not None:
        check_choice("sequence_mask_metric", sequence_mask_metric, ("geometric", "product"))
        geometric = sequence_mask_metric == "geometric"
        low, high = (geo_mask_low, geo_mask_high) if geometric else (product_mask_low, product_mask_high)
        stages.append(ratio_stage("geometric" if geometric else "product", "drop", low, high))
    weight: Any = tis_ratio_type or "one"
    return Correction.of(stages, weight=weight, log_clamp=20.0)


def areal(
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


def roll(
    *,
    weight_type: str | None = "token",
    upper_bound: float | None = 1.2,
    filters: Sequence[Mapping[str, Any]] = (),
) -> StagedCorrection:
    """ROLL's ``train_infer_correction``; each filter has the fields of its ``TrainInferFilterConfig``."""
    stages: list[Stage] = []
    if weight_type is not None:
        check_choice("weight_type", weight_type, tuple(LEVELS))
        stages += rejecting("ratio", LEVELS[weight_type], "truncate", None, upper_bound)
    defaults = {
        "agg_type": "token",
        "ratio_enabled": True,
        "ratio_low": 0.8,
        "ratio_high": 1.2,
        "diff_enabled": False,
        "diff_low": -0.2,
        "diff_high": 0.2,
    }
    for each in filters:
        for name in each:
            check_choice("filter option", name, tuple(defaults))
        one = {**defaults, **each}
        check_choice("agg_type", one["agg_type"], tuple(LEVELS))
        if one["ratio_enabled"]:
            stages += rejecting("ratio", LEVELS[one["agg_type"]], "drop", one["ratio_low"], one["ratio_high"])
        if one["diff_enabled"]:
            over = _OF_DIFFERENCES[one["agg_type"]]
            stages += rejecting("probability_difference", over, "drop", one["diff_low"], one["diff_high"])
    weight: Any = weight_type or "one"
    return Correction.of(stages, weight=weight)


def xtuner(
    *,
    rollout_is_threshold: tuple[float, float],
    rollout_is_level: str = "token",
    rollout_is_mode: str = "truncate",
    rollout_is_mask_threshold: tuple[float, float] | None = None,
    rollout_is_veto_threshold: tuple[float, float] | None = None,
) -> StagedCorrection:
    """XTuner's ``RolloutImportanceSampling``; each threshold is (upper, lower)."""
    levels: dict[str, StageLevel] = {"token": "token", "sequence": "product", "geometric": "geometric"}
    check_choice("rollout_is_level", rollout_is_level, tuple(levels))
    check_choice("rollout_is_mode", rollout_is_mode, ("truncate", "mask", "both"))
    level = levels[rollout_is_level]
    own = _lower_first("rollout_is_threshold", rollout_is_threshold)
    mask = own
    if rollout_is_mask_threshold is not None:
        mask = _lower_first("rollout_is_mask_threshold", rollout_is_mask_threshold)
    stages = [ratio_stage(level, "drop", *mask)] if rollout_is_mode in {"mask", "both"} else []
    if rollout_is_mode in {"truncate", "both"}:
        stages.append(ratio_stage(level, "truncate", *own))
    if rollout_is_veto_threshold is not None:
        stages.append(ratio_stage("any", "drop", *_lower_first("rollout_is_veto_threshold", rollout_is_veto_threshold)))
    weight: Any = rollout_is_level
    return Correction.of(stages, weight=weight, log_clamp=20.0)


def _lower_first(name: str, value: Any) -> tuple[float, float]:
    upper, lower = pair(name, value)
    if upper <= lower:
        msg = f"got {name}={value!r}; expected (upper, lower), as XTuner's own check has it"
        raise ValueError(msg)
    return lower, upper


def presets() -> list[Preset]:
    """Those of this file."""
    sky = "skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py"
    xt = "xtuner/v1/rl/base/rollout_is.py"
    are = "areal/utils/data.py, areal/utils/functional.py"
    filters = "Filters drop; a segment, such as a turn, has the geometric mean of its ratios"
    turns = {"weight_type": "segment", "filters": ({"agg_type": "token"},)}
    two = {"upper": 2.0, "lower": 0.5}
    outlier = ("outlier_token_is_threshold_low", "outlier_token_is_threshold_high")
    tokens = ("token_mask_is_threshold_low", "token_mask_is_threshold_high")
    return [
        Preset("skyrl/off_policy_correction", sky, skyrl, "Every option at once", {"tis_ratio_type": "token"}),
        Preset("skyrl/token", sky, only(skyrl, {"tis_ratio_type": "token"}, "token_tis_ratio_clip_high")),
        Preset("skyrl/sequence", sky, only(skyrl, {"tis_ratio_type": "sequence"}, "sequence_tis_ratio_clip_high")),
        Preset("skyrl/outlier", sky, only(skyrl, {}, *outlier), "A veto", {outlier[0]: 0.2, outlier[1]: 100.0}),
        Preset("skyrl/token_mask", sky, only(skyrl, {}, *tokens), "Both bounds", {tokens[0]: 0.5, tokens[1]: 2.0}),
        Preset(
            "skyrl/geometric", sky, only(skyrl, {"sequence_mask_metric": "geometric"}, "geo_mask_low", "geo_mask_high")
        ),
        Preset(
            "skyrl/product",
            sky,
            only(skyrl, {"sequence_mask_metric": "product"}, "product_mask_low", "product_mask_high"),
        ),
        Preset("areal/rejection_sampling", are, areal, "mask drops; kl_k3 is the reversed one; kl_k1 bounds +l", two),
        Preset("areal/token_mask", are, only(areal, {}, "metric", "upper", "lower"), "", two),
        Preset("areal/token_clamp", are, only(areal, {"action": "clamp"}, "upper", "lower"), "", two),
        Preset(
            "areal/sequence_mask",
            are,
            only(areal, {"level": "sequence"}, "metric", "agg", "upper", "lower"),
            "Of the ratio: the weight is the geometric mean, also where agg=sum decides by the product",
        ),
        Preset("areal/sequence_clamp", are, only(areal, {"level": "sequence", "action": "clamp"}, "upper", "lower")),
        Preset("roll/train_infer_correction", "roll/utils/train_infer_corrections.py", roll, filters, turns),
        Preset(
            "xtuner/rollout_is",
            xt,
            xtuner,
            "Thresholds are (upper, lower), against its docstring; without the first it corrects nothing",
            {"rollout_is_threshold": (2.0, 0.5), "rollout_is_veto_threshold": (100.0, 0.2)},
        ),
    ]
