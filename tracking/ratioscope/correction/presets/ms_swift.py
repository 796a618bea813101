"""ms-swift: truncation and masks by token or by geometric mean, and its off-policy sequence mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.correction.bounds import Correction
from ratioscope.correction.presets.preset import Build, Preset, opsm, ratio_stage

if TYPE_CHECKING:
    from ratioscope.correction.rule import Rule
    from ratioscope.correction.staged import StagedCorrection


def _clipped(mode: str) -> Build:
    def build(*, rollout_importance_sampling_threshold: float = 2.0) -> StagedCorrection:
        upper = rollout_importance_sampling_threshold
        stage = {
            "token_truncate": ratio_stage("token", "truncate", None, upper),
            "token_mask": ratio_stage("token", "zero", None, upper),
            "sequence_truncate": ratio_stage("geometric", "truncate", None, upper),
            "sequence_mask": ratio_stage("geometric", "zero", None, upper),
        }[mode]
        return Correction.of([stage], weight="geometric" if mode == "sequence_truncate" else "token", log_clamp=20.0)

    return build


def _opsm(*, off_policy_sequence_mask_delta: float) -> Rule:
    return opsm(off_policy_sequence_mask_delta)


def presets() -> list[Preset]:
    """Returns the presets of this framework."""
    source = "swift/trainers/rlhf_trainer/grpo_trainer.py"
    notes = {
        "token_truncate": "",
        "token_mask": "",
        "sequence_truncate": "By the geometric mean, not by the product",
        "sequence_mask": "By the geometric mean; the weights kept are token ratios",
    }
    return [
        *(Preset(f"ms-swift/{mode}", source, _clipped(mode), note) for mode, note in notes.items()),
        Preset("ms-swift/opsm", source, _opsm, "", {"off_policy_sequence_mask_delta": 0.02}),
    ]
