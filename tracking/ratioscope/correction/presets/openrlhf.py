"""OpenRLHF: truncation, IcePop and its sequence mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.correction.bounds import Correction
from ratioscope.correction.presets.preset import Build, Preset, pair, ratio_stage

if TYPE_CHECKING:
    from ratioscope.correction.staged import StagedCorrection
    from ratioscope.correction.stages import StageAction, StageLevel


def _rule(level: StageLevel, action: StageAction) -> Build:
    def build(
        *, lower: float = 0.5, upper: float = 5.0, vllm_is_truncated_threshold: tuple[float, float] | None = None
    ) -> StagedCorrection:
        if vllm_is_truncated_threshold is not None:
            lower, upper = pair("vllm_is_truncated_threshold", vllm_is_truncated_threshold)
        return Correction.of([ratio_stage(level, action, lower, upper)])

    return build


def presets() -> list[Preset]:
    """Returns the presets of this framework."""
    source, note = "openrlhf/models/loss.py", "lower and upper are the threshold's two numbers"
    band = {"lower": 0.5, "upper": 2.0}
    return [
        Preset("openrlhf/tis", source, _rule("token", "truncate"), note, band),
        Preset("openrlhf/icepop", source, _rule("token", "zero"), note, band),
        Preset("openrlhf/seq-mask-tis", source, _rule("geometric", "zero"), "The weights kept are not clamped"),
    ]
