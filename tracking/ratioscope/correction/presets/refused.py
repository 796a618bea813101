"""Rules of other frameworks that no stages express, and why."""

from __future__ import annotations

from ratioscope.correction.presets.preset import Refusal

REFUSED: tuple[Refusal, ...] = (
    Refusal(
        "areal/m2po",
        "it drops the largest squared gaps until the mean over the whole batch is below m2_threshold, so that what "
        "becomes of a token depends on all others, and no part of a batch can be accounted for by itself",
    ),
    Refusal(
        "openrlhf/gspo",
        "with GSPO the geometric ratio of the current policy to the rollout takes the place of PPO's own ratio, which "
        "its clip then bounds; no weight is left to correct",
    ),
    Refusal(
        "torchtitan/dapo",
        "its PPO clip acts on the ratio of the current policy to the generator by the sign of the advantage, and "
        "changes the loss, not a weight; tokens without a finite log-probability are left out here as there",
    ),
    Refusal("torchforge/grpo", "it corrects nothing"),
    Refusal("llama-factory/grpo", "it corrects nothing"),
    Refusal("rllm/rollout_correction", "it hands over to verl: use verl/rollout_correction"),
    Refusal("verl/veto", "verl has removed it; SkyRL's skyrl/outlier, slime's rs_veto_threshold and XTuner's remain"),
    Refusal(
        "verl/bypass",
        "there PPO's own ratio is that of the current policy to the rollout; no weight is left to correct",
    ),
    Refusal(
        "trl/async_grpo",
        "it corrects nothing: its one ratio, of the current policy to the sampler, is PPO's own",
    ),
)
"""Each with its reason."""
