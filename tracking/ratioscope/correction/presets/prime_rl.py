"""prime-rl: masks by probability difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.correction.bounds import Correction
from ratioscope.correction.presets.preset import Preset
from ratioscope.correction.stages import Stage

if TYPE_CHECKING:
    from ratioscope.correction.staged import StagedCorrection


def _dppo(*, dppo_mask_high: float = 0.2, dppo_mask_low: float = 0.2) -> StagedCorrection:
    stage = Stage("probability_difference", "token", "zero", -dppo_mask_low, dppo_mask_high, advantage="outward")
    return Correction.of([stage])


def _ipo(*, ipo_threshold: float = 0.1) -> StagedCorrection:
    return Correction.of([Stage("abs_probability_difference", "token", "zero", upper=ipo_threshold)])


def _ref_kl() -> StagedCorrection:
    return Correction.of([Stage("probability_difference", "token", "zero", lower=-0.2)])


def presets() -> list[Preset]:
    """Returns the presets of this framework."""
    source = "src/prime_rl/trainer/rl/loss.py"
    return [
        Preset("prime-rl/dppo", source, _dppo, "The default loss; masks its policy-gradient term alone"),
        Preset("prime-rl/ipo", source, _ipo),
        Preset(
            "prime-rl/ref_kl",
            source,
            _ref_kl,
            "Where the trainer's probability fell by 0.2; no option",
        ),
    ]
