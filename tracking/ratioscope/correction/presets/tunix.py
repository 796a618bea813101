"""tunix: truncation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.correction.bounds import Correction
from ratioscope.correction.presets.preset import Preset, ratio_stage

if TYPE_CHECKING:
    from ratioscope.correction.staged import StagedCorrection


def _rule(*, sampler_is_threshold: float = 2.0) -> StagedCorrection:
    return Correction.of([ratio_stage("token", "truncate", None, sampler_is_threshold)], log_clamp=20.0)


def presets() -> list[Preset]:
    """Returns the presets of this framework."""
    return [
        Preset("tunix/token", "tunix/rl/algo_core.py", _rule),
    ]
