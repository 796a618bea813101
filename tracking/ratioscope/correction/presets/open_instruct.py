"""open-instruct: truncation, and masks by ratio or by total variation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.correction.bounds import Correction
from ratioscope.correction.presets.preset import Preset, rejecting
from ratioscope.correction.stages import Stage

if TYPE_CHECKING:
    from ratioscope.correction.staged import StagedCorrection
    from ratioscope.correction.stages import StageLevel


def _rho(
    *,
    rho_clamp_lower_bound: float = 0.0,
    rho_clamp_upper_bound: float = 2.0,
    rho_mask_lower_bound: float = 0.0,
    rho_mask_upper_bound: float = 0.0,
    rho_mask_sequence_level: bool = False,
    rho_mask_tv_divergence: bool = False,
) -> StagedCorrection:
    """open-instruct's ``rho`` correction; a bound of 0 is none."""
    clamp = rho_clamp_lower_bound or None, rho_clamp_upper_bound or None
    mask = rho_mask_lower_bound or None, rho_mask_upper_bound or None
    if rho_mask_sequence_level and rho_mask_tv_divergence:
        msg = "got rho_mask_sequence_level and rho_mask_tv_divergence; expected one of them"
        raise ValueError(msg)
    level: StageLevel = "geometric" if rho_mask_sequence_level else "token"
    stages = rejecting("ratio", level, "truncate", *clamp)
    if rho_mask_tv_divergence and mask != (None, None):
        stages.append(Stage("total_variation", "mean", "zero", *mask, advantage="outward"))
    else:
        stages += rejecting("ratio", level, "zero", *mask)
    return Correction.of(stages, weight="geometric" if rho_mask_sequence_level else "token", log_clamp=10.0)


def presets() -> list[Preset]:
    """Returns the presets of this framework."""
    source = "open_instruct/grpo_utils.py"
    return [
        Preset("open-instruct/rho", source, _rho, "Truncates, then zeroes; a bound of 0 is none"),
        Preset(
            "open-instruct/clamp",
            source,
            _rho,
            names=(
                "rho_clamp_lower_bound",
                "rho_clamp_upper_bound",
            ),
        ),
        Preset(
            "open-instruct/mask",
            source,
            _rho,
            "Without the clamp",
            {"rho_mask_lower_bound": 0.5, "rho_mask_upper_bound": 2.0},
            fixed={"rho_clamp_upper_bound": 0.0},
            names=(
                "rho_mask_lower_bound",
                "rho_mask_upper_bound",
            ),
        ),
        Preset(
            "open-instruct/sequence",
            source,
            _rho,
            "rho_mask_sequence_level: decides by the geometric mean, which the weight then is",
            {"rho_mask_lower_bound": 0.9, "rho_mask_upper_bound": 1.1},
            fixed={"rho_clamp_upper_bound": 0.0, "rho_mask_sequence_level": True},
            names=(
                "rho_mask_lower_bound",
                "rho_mask_upper_bound",
            ),
        ),
        Preset(
            "open-instruct/tv",
            source,
            _rho,
            "VACO: a row's mean |r - 1|, and only tokens that are pushed outward",
            {"rho_mask_upper_bound": 2.0},
            fixed={"rho_clamp_upper_bound": 0.0, "rho_mask_tv_divergence": True},
            names=(
                "rho_mask_lower_bound",
                "rho_mask_upper_bound",
            ),
        ),
    ]
