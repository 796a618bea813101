"""TRL, with axolotl and Unsloth, which follow it, and the sequence mask of DeepSeek-V3.2."""

from __future__ import annotations

from functools import partial

from ratioscope.correction.bounds import MODES, Correction
from ratioscope.correction.presets.preset import Preset, opsm, positive
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage, StageLevel


def _short(
    mode: str,
    *,
    vllm_importance_sampling_clip_min: float | None = None,
    vllm_importance_sampling_clip_max: float | None = 3.0,
) -> Correction:
    return Correction.from_mode(mode, vllm_importance_sampling_clip_min, vllm_importance_sampling_clip_max)


def _axolotl(mode: str, *, vllm_importance_sampling_cap: float = 3.0) -> StagedCorrection:
    name, _, action = mode.partition("_")
    level: StageLevel = "token" if name == "token" else "product"
    cap = positive("vllm_importance_sampling_cap", vllm_importance_sampling_cap)
    masked = (Stage("ratio", level, "zero", None, cap),) if action == "mask" else ()
    cut = Stage("ratio", level, "truncate", 1.0 / cap, None if masked else cap)
    return StagedCorrection((*masked, cut), "token" if level == "token" else "sequence")


def _off_policy_mask(*, off_policy_mask_threshold: float) -> StagedCorrection:
    return opsm(off_policy_mask_threshold)


def _deepseek(*, delta: float) -> StagedCorrection:
    return opsm(delta)


_TRL, _AXOLOTL = "trl/trainer/grpo_trainer.py", "src/axolotl/core/trainers/grpo/trainer.py"
_UNSLOTH, _DEEPSEEK = "unsloth_zoo/rl_replacements.py", "DeepSeek-V3.2, off-policy sequence masking"
_PADDING = "TRL's; its metrics count padding"
_OBSERVED = "By the current policy there; here by the one that is observed"
_BUG = "A masked weight is 1/cap and never 0, since axolotl clamps from below after masking: its bug, reproduced"
_NOTES = {mode: _BUG if mode.endswith("mask") else "Always two-sided" for mode in MODES}
_MAX, _CAP = {"vllm_importance_sampling_clip_max": 2.0}, {"vllm_importance_sampling_cap": 2.0}

PRESETS = (
    *(Preset(f"trl/{mode}", _TRL, partial(_short, mode), "The short form, bit by bit", _MAX) for mode in MODES),
    Preset("trl/opsm", _TRL, _off_policy_mask, _OBSERVED, {"off_policy_mask_threshold": 0.02}),
    *(Preset(f"axolotl/{mode}", _AXOLOTL, partial(_axolotl, mode), _NOTES[mode], _CAP) for mode in MODES),
    *(Preset(f"unsloth/{mode}", _UNSLOTH, partial(_short, mode), _PADDING, _MAX) for mode in MODES),
    Preset("deepseek/opsm", _DEEPSEEK, _deepseek, "", {"delta": 0.02}),
)
