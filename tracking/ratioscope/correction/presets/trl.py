"""TRL, and what follows it: axolotl and Unsloth; and the sequence mask of DeepSeek-V3.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.correction.bounds import MODES, Correction
from ratioscope.correction.presets.preset import Build, Preset, opsm, positive, ratio_stage

if TYPE_CHECKING:
    from ratioscope.correction.rule import Rule
    from ratioscope.correction.stages import StageLevel


def _short(mode: str) -> Build:
    def build(
        *, vllm_importance_sampling_clip_min: float | None = None, vllm_importance_sampling_clip_max: float | None = 3.0
    ) -> Rule:
        return Correction.from_mode(mode, vllm_importance_sampling_clip_min, vllm_importance_sampling_clip_max)

    return build


def _axolotl(mode: str) -> Build:
    name, _, action = mode.partition("_")
    level: StageLevel = "token" if name == "token" else "product"

    def build(*, vllm_importance_sampling_cap: float = 3.0) -> Rule:
        cap = positive("vllm_importance_sampling_cap", vllm_importance_sampling_cap)
        masked = [ratio_stage(level, "zero", None, cap)] if action == "mask" else []
        cut = ratio_stage(level, "truncate", 1.0 / cap, None if masked else cap)
        return Correction.of([*masked, cut], weight="token" if level == "token" else "sequence")

    return build


def _off_policy_mask(*, off_policy_mask_threshold: float) -> Rule:
    return opsm(off_policy_mask_threshold)


def _deepseek(*, delta: float) -> Rule:
    return opsm(delta)


def presets() -> list[Preset]:
    """Those of this file."""
    trl, axolotl = "trl/trainer/grpo_trainer.py", "src/axolotl/core/trainers/grpo/trainer.py"
    unsloth = "unsloth_zoo/rl_replacements.py"
    bug = "A masked weight is 1/cap and never 0, since axolotl clamps from below after masking: its bug, reproduced"
    notes = {"mask": bug, "cate": "Always two-sided"}
    own = {"vllm_importance_sampling_cap": 2.0}
    cap = {"vllm_importance_sampling_clip_max": 2.0}
    example: dict[str, Any] = {"off_policy_mask_threshold": 0.02}
    return [
        *(Preset(f"trl/{mode}", trl, _short(mode), "The short form, bit by bit", cap) for mode in MODES),
        Preset(
            "trl/opsm", trl, _off_policy_mask, "By the current policy there; here by the one that is observed", example
        ),
        *(Preset(f"axolotl/{mode}", axolotl, _axolotl(mode), notes[mode[-4:]], own) for mode in MODES),
        *(Preset(f"unsloth/{mode}", unsloth, _short(mode), "TRL's; its metrics count padding", cap) for mode in MODES),
        Preset("deepseek/opsm", "DeepSeek-V3.2, off-policy sequence masking", _deepseek, "", {"delta": 0.02}),
    ]
