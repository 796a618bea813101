"""prime-rl: masks by probability difference."""

from __future__ import annotations

from ratioscope.correction.presets.preset import Preset
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage

_SOURCE = "src/prime_rl/trainer/rl/loss.py"


def _dppo(*, dppo_mask_high: float = 0.2, dppo_mask_low: float = 0.2) -> StagedCorrection:
    bounds = -dppo_mask_low, dppo_mask_high
    return StagedCorrection((Stage("probability_difference", "token", "zero", *bounds, advantage="outward"),))


def _ipo(*, ipo_threshold: float = 0.1) -> StagedCorrection:
    return StagedCorrection((Stage("abs_probability_difference", "token", "zero", upper=ipo_threshold),))


def _ref_kl() -> StagedCorrection:
    return StagedCorrection((Stage("probability_difference", "token", "zero", lower=-0.2),))


PRESETS = (
    Preset("prime-rl/dppo", _SOURCE, _dppo, "The default loss; masks its policy-gradient term alone"),
    Preset("prime-rl/ipo", _SOURCE, _ipo),
    Preset("prime-rl/ref_kl", _SOURCE, _ref_kl, "Where the trainer's probability fell by 0.2; no option"),
)
