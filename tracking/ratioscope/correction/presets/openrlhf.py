"""OpenRLHF: truncation, IcePop and its sequence mask."""

from __future__ import annotations

from functools import partial

from ratioscope.correction.presets.preset import Preset, pair
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage, StageAction, StageLevel

_SOURCE = "openrlhf/models/loss.py"
_NOTE = "lower and upper are the threshold's two numbers"
_BAND = {"lower": 0.5, "upper": 2.0}


def _rule(
    level: StageLevel,
    action: StageAction,
    *,
    lower: float = 0.5,
    upper: float = 5.0,
    vllm_is_truncated_threshold: tuple[float, float] | None = None,
) -> StagedCorrection:
    if vllm_is_truncated_threshold is not None:
        lower, upper = pair("vllm_is_truncated_threshold", vllm_is_truncated_threshold)
    return StagedCorrection((Stage("ratio", level, action, lower, upper),))


PRESETS = (
    Preset("openrlhf/tis", _SOURCE, partial(_rule, "token", "truncate"), _NOTE, _BAND),
    Preset("openrlhf/icepop", _SOURCE, partial(_rule, "token", "zero"), _NOTE, _BAND),
    Preset("openrlhf/seq-mask-tis", _SOURCE, partial(_rule, "geometric", "zero"), "The weights kept are not clamped"),
)
