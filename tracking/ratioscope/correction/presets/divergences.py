"""open-instruct and prime-rl: rejection by divergence and by the sign of the advantage."""

from __future__ import annotations

from ratioscope.correction.bounds import Correction
from ratioscope.correction.presets.preset import Preset, only, rejecting
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage, StageLevel


def open_instruct(
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


def _dppo(*, dppo_mask_high: float = 0.2, dppo_mask_low: float = 0.2) -> StagedCorrection:
    stage = Stage("probability_difference", "token", "zero", -dppo_mask_low, dppo_mask_high, advantage="outward")
    return Correction.of([stage])


def _ipo(*, ipo_threshold: float = 0.1) -> StagedCorrection:
    return Correction.of([Stage("abs_probability_difference", "token", "zero", upper=ipo_threshold)])


def _ref_kl() -> StagedCorrection:
    return Correction.of([Stage("probability_difference", "token", "zero", lower=-0.2)])


def presets() -> list[Preset]:
    """Those of this file."""
    oi, prime = "open_instruct/grpo_utils.py", "src/prime_rl/trainer/rl/loss.py"
    return [
        Preset("open-instruct/rho", oi, open_instruct, "Truncates, then zeroes; a bound of 0 is none"),
        Preset("open-instruct/clamp", oi, only(open_instruct, {}, "rho_clamp_lower_bound", "rho_clamp_upper_bound")),
        Preset(
            "open-instruct/mask",
            oi,
            only(open_instruct, {"rho_clamp_upper_bound": 0.0}, "rho_mask_lower_bound", "rho_mask_upper_bound"),
            "Without the clamp",
            {"rho_mask_lower_bound": 0.5, "rho_mask_upper_bound": 2.0},
        ),
        Preset(
            "open-instruct/sequence",
            oi,
            only(
                open_instruct,
                {"rho_clamp_upper_bound": 0.0, "rho_mask_sequence_level": True},
                "rho_mask_lower_bound",
                "rho_mask_upper_bound",
            ),
            "rho_mask_sequence_level: decides by the geometric mean, which the weight then is",
            {"rho_mask_lower_bound": 0.9, "rho_mask_upper_bound": 1.1},
        ),
        Preset(
            "open-instruct/tv",
            oi,
            only(
                open_instruct,
                {"rho_clamp_upper_bound": 0.0, "rho_mask_tv_divergence": True},
                "rho_mask_lower_bound",
                "rho_mask_upper_bound",
            ),
            "VACO: a row's mean |r - 1|, and only tokens that are pushed outward",
            {"rho_mask_upper_bound": 2.0},
        ),
        Preset("prime-rl/dppo", prime, _dppo, "The default loss; masks its policy-gradient term alone"),
        Preset("prime-rl/ipo", prime, _ipo),
        Preset(
            "prime-rl/ref_kl",
            prime,
            _ref_kl,
            "Where the trainer's probability fell by 0.2; no option",
        ),
    ]
