"""tunix: truncation."""

from __future__ import annotations

from ratioscope.correction.presets.preset import Preset
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage


def _rule(*, sampler_is_threshold: float = 2.0) -> StagedCorrection:
    return StagedCorrection((Stage("ratio", "token", "truncate", None, sampler_is_threshold),), log_clamp=20.0)


PRESETS = (Preset("tunix/token", "tunix/rl/algo_core.py", _rule),)
