"""SkyRL: its off-policy correction, whole and in parts."""

from __future__ import annotations

from functools import partial
from typing import Any

from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import Preset, rejecting
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage


def _off_policy_correction(  # noqa: PLR0913  # the framework's own options
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
    stages += rejecting("ratio", "token", "drop", *bounds) if masks_tokens else ()
    if tis_ratio_type is not None:
        check_choice("tis_ratio_type", tis_ratio_type, ("token", "sequence"))
        token = tis_ratio_type == "token"
        cap = token_tis_ratio_clip_high if token else sequence_tis_ratio_clip_high
        stages += (Stage("ratio", "token" if token else "product", "truncate", None, cap),)
    if sequence_mask_metric is not None:
        check_choice("sequence_mask_metric", sequence_mask_metric, ("geometric", "product"))
        geometric = sequence_mask_metric == "geometric"
        low, high = (geo_mask_low, geo_mask_high) if geometric else (product_mask_low, product_mask_high)
        stages += (Stage("ratio", "geometric" if geometric else "product", "drop", low, high),)
    weight: Any = tis_ratio_type or "one"
    return StagedCorrection(stages, weight, log_clamp=20.0)


_SOURCE = "skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py"
_OUTLIER = ("outlier_token_is_threshold_low", "outlier_token_is_threshold_high")
_TOKEN_MASK = ("token_mask_is_threshold_low", "token_mask_is_threshold_high")
_rule = _off_policy_correction
_token, _sequence = partial(_rule, tis_ratio_type="token"), partial(_rule, tis_ratio_type="sequence")
_geometric, _product = (partial(_rule, sequence_mask_metric=metric) for metric in ("geometric", "product"))

PRESETS = (
    Preset("skyrl/off_policy_correction", _SOURCE, _rule, "Every option at once", {"tis_ratio_type": "token"}),
    Preset("skyrl/token", _SOURCE, _token, names=("token_tis_ratio_clip_high",)),
    Preset("skyrl/sequence", _SOURCE, _sequence, names=("sequence_tis_ratio_clip_high",)),
    Preset("skyrl/outlier", _SOURCE, _rule, "A veto", {_OUTLIER[0]: 0.2, _OUTLIER[1]: 100.0}, _OUTLIER),
    Preset("skyrl/token_mask", _SOURCE, _rule, "Both bounds", {_TOKEN_MASK[0]: 0.5, _TOKEN_MASK[1]: 2.0}, _TOKEN_MASK),
    Preset("skyrl/geometric", _SOURCE, _geometric, names=("geo_mask_low", "geo_mask_high")),
    Preset("skyrl/product", _SOURCE, _product, names=("product_mask_low", "product_mask_high")),
)
