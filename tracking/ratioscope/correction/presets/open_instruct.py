"""open-instruct: truncation, and masks by ratio or by total variation."""

from __future__ import annotations

from functools import partial

from ratioscope.correction.presets.preset import Preset, rejecting
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage, StageLevel


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
        stages += (Stage("total_variation", "mean", "zero", *mask, advantage="outward"),)
    else:
        stages += rejecting("ratio", level, "zero", *mask)
    return StagedCorrection(
        stages, "geometric" if rho_mask_sequence_level else "token", log_clamp=10.0, clamp_tokens=True
    )


_SOURCE = "open_instruct/grpo_utils.py"
_CLAMP = ("rho_clamp_lower_bound", "rho_clamp_upper_bound")
_MASK = ("rho_mask_lower_bound", "rho_mask_upper_bound")
_mask = partial(_rho, rho_clamp_upper_bound=0.0)
_rows = partial(_mask, rho_mask_sequence_level=True)
_tv = partial(_mask, rho_mask_tv_divergence=True)
_by_rows = "rho_mask_sequence_level: decides by the geometric mean, which the weight then is"
_vaco = "VACO: a row's mean |r - 1|, and only tokens that are pushed outward"

PRESETS = (
    Preset("open-instruct/rho", _SOURCE, _rho, "Truncates, then zeroes; a bound of 0 is none"),
    Preset("open-instruct/clamp", _SOURCE, _rho, names=_CLAMP),
    Preset("open-instruct/mask", _SOURCE, _mask, "Without the clamp", {_MASK[0]: 0.5, _MASK[1]: 2.0}, _MASK),
    Preset("open-instruct/sequence", _SOURCE, _rows, _by_rows, {_MASK[0]: 0.9, _MASK[1]: 1.1}, _MASK),
    Preset("open-instruct/tv", _SOURCE, _tv, _vaco, {_MASK[1]: 2.0}, _MASK),
)
