"""Presets: rules of other frameworks, by name and under their own options' names; and the rules that have none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.correction.checks import near
from ratioscope.correction.presets import (
    areal,
    ms_swift,
    nemo_rl,
    open_instruct,
    openrlhf,
    prime_rl,
    roll,
    skyrl,
    slime,
    trl,
    tunix,
    verl,
    xtuner,
)
from ratioscope.correction.presets.preset import Preset, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.correction.rule import Rule

_MODULES = (
    areal,
    ms_swift,
    nemo_rl,
    open_instruct,
    openrlhf,
    prime_rl,
    roll,
    skyrl,
    slime,
    trl,
    tunix,
    verl,
    xtuner,
)
_ALL = (preset for module in _MODULES for preset in module.PRESETS)

PRESETS: dict[str, Preset] = {
    preset.name: preset for preset in sorted(_ALL, key=lambda preset: preset.name.partition("/")[0])
}
"""Every preset by name, by framework."""

_REASONS = {
    "areal/m2po": "it drops the largest squared gaps until the mean over the whole batch is below m2_threshold, so "
    "that what becomes of a token depends on all others, and no part of a batch can be accounted for by itself",
    "openrlhf/gspo": "with GSPO the geometric ratio of the current policy to the rollout takes the place of PPO's own "
    "ratio, which its clip then bounds; no weight is left to correct",
    "torchtitan/dapo": "its PPO clip acts on the ratio of the current policy to the generator by the sign of the "
    "advantage, and changes the loss, not a weight; tokens without a finite log-probability are left out here as there",
    "torchforge/grpo": "it corrects nothing",
    "llama-factory/grpo": "it corrects nothing",
    "rllm/rollout_correction": "it hands over to verl: use verl/rollout_correction",
    "verl/veto": "verl has removed it; SkyRL's skyrl/outlier, slime's rs_veto_threshold and XTuner's remain",
    "verl/bypass": "there PPO's own ratio is that of the current policy to the rollout; no weight is left to correct",
    "trl/async_grpo": "it corrects nothing: its one ratio, of the current policy to the sampler, is PPO's own",
}
REFUSED: tuple[Refusal, ...] = tuple(Refusal(name, reason) for name, reason in _REASONS.items())
"""Rules of other frameworks that no stages express, each with its reason."""

__all__ = ["PRESETS", "REFUSED", "Preset", "Refusal", "make"]


def make(name: str, options: Mapping[str, Any]) -> Rule:
    """Makes a preset's rule; its errors are those of ``Correction.preset``."""
    if name in PRESETS:
        return PRESETS[name].make(options)
    if name in _REASONS:
        msg = f"got preset {name!r}, which stages cannot express: {_REASONS[name]}"
        raise ValueError(msg)
    framework = name.partition("/")[0]
    own = [known for known in PRESETS if known.partition("/")[0] == framework]
    expected = ", ".join(own) if own else "one of Correction.presets()"
    msg = f"got preset {name!r}; expected {'one of ' if own else ''}{expected}{near(name, list(PRESETS))}"
    raise ValueError(msg)
