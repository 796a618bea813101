"""ms-swift: truncation and masks by token or by geometric mean, and its off-policy sequence mask."""

from __future__ import annotations

from functools import partial

from ratioscope.correction.presets.preset import Preset, opsm
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage, StageAction, StageLevel, Weight

_SOURCE = "swift/rlhf_trainers/grpo_trainer.py"


def _clipped(
    level: StageLevel, action: StageAction, weight: Weight, *, rollout_importance_sampling_threshold: float = 2.0
) -> StagedCorrection:
    stage = Stage("ratio", level, action, None, rollout_importance_sampling_threshold)
    return StagedCorrection((stage,), weight, log_clamp=20.0, clamp_tokens=True)


def _opsm(*, off_policy_sequence_mask_delta: float) -> StagedCorrection:
    return opsm(off_policy_sequence_mask_delta)


_sequence_truncate = partial(_clipped, "geometric", "truncate", "geometric")
_sequence_mask = partial(_clipped, "geometric", "zero", "token")
_kept = "By the geometric mean; the weights kept are token ratios"

PRESETS = (
    Preset("ms-swift/token_truncate", _SOURCE, partial(_clipped, "token", "truncate", "token")),
    Preset("ms-swift/token_mask", _SOURCE, partial(_clipped, "token", "zero", "token")),
    Preset("ms-swift/sequence_truncate", _SOURCE, _sequence_truncate, "By the geometric mean, not by the product"),
    Preset("ms-swift/sequence_mask", _SOURCE, _sequence_mask, _kept),
    Preset("ms-swift/opsm", _SOURCE, _opsm, "", {"off_policy_sequence_mask_delta": 0.02}),
)
