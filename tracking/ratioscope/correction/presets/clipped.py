"""OpenRLHF, slime, NeMo-RL, ms-swift, tunix: truncation, IcePop and their sequence masks."""

from __future__ import annotations

from typing import Any

from ratioscope.correction.bounds import Correction
from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import Build, Preset, opsm, pair, positive, ratio_stage
from ratioscope.correction.rule import Rule
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage, StageAction, StageLevel
from ratioscope.numerics import FLOAT32_MAX

LEVELS: dict[str, StageLevel] = {"token": "token", "sequence": "product", "geometric": "geometric"}


def _openrlhf(level: StageLevel, action: StageAction) -> Build:
    def build(
        *, lower: float = 0.5, upper: float = 5.0, vllm_is_truncated_threshold: tuple[float, float] | None = None
    ) -> StagedCorrection:
        if vllm_is_truncated_threshold is not None:
            lower, upper = pair("vllm_is_truncated_threshold", vllm_is_truncated_threshold)
        return Correction.of([ratio_stage(level, action, lower, upper)])

    return build


def _slime(action: StageAction) -> Build:
    def build(*, tis_clip_low: float = 0.0, tis_clip: float = 2.0) -> StagedCorrection:
        return Correction.of([ratio_stage("token", action, tis_clip_low or None, tis_clip)])

    return build


def _slime_mis(
    *,
    use_tis: bool = True,
    tis_level: str = "token",
    tis_mode: str = "truncate",
    tis_lower_bound: float | None = None,
    tis_upper_bound: float = 2.0,
    tis_batch_normalize: bool = False,
    use_rs: bool = False,
    rs_level: str = "token",
    rs_lower_bound: float | None = None,
    rs_upper_bound: float | None = None,
    rs_veto_threshold: float | None = None,
) -> StagedCorrection:
    check_choice("tis_mode", tis_mode, ("truncate", "clip", "mask"))
    for name, level in (("tis_level", tis_level), ("rs_level", rs_level)):
        check_choice(name, level, tuple(LEVELS))
    upper = positive("tis_upper_bound", tis_upper_bound)
    lower = 1.0 / upper if tis_lower_bound is None else tis_lower_bound
    stages: list[Stage] = []
    if use_tis:
        action: StageAction = "drop" if tis_mode == "mask" else "truncate"
        stages.append(ratio_stage(LEVELS[tis_level], action, None if tis_mode == "truncate" else lower, upper))
    if use_rs:
        least = lower if rs_lower_bound is None else rs_lower_bound
        most = upper if rs_upper_bound is None else rs_upper_bound
        stages.append(ratio_stage(LEVELS[rs_level], "drop", least, most, name="rejection"))
        if rs_veto_threshold is not None:
            stages.append(ratio_stage("any", "drop", rs_veto_threshold, None, name="veto"))
    elif rs_veto_threshold is not None:
        msg = "got rs_veto_threshold without use_rs=True; slime reads it only where rejection is on"
        raise ValueError(msg)
    weight: Any = tis_level if use_tis else "one"
    return Correction.of(stages, weight=weight, log_clamp=20.0, batch_normalize=tis_batch_normalize and use_tis)


def _slime_opsm(*, opsm_delta: float) -> Rule:
    return opsm(opsm_delta)


def _finite() -> Stage:
    return ratio_stage("token", "zero", None, FLOAT32_MAX, name="not finite:")


def _nemo(action: StageAction) -> Build:
    def build(
        *,
        truncated_importance_sampling_ratio: float,
        truncated_importance_sampling_ratio_min: float | None = None,
        sequence_level_importance_ratios: bool = False,
    ) -> StagedCorrection:
        level: StageLevel = "product" if sequence_level_importance_ratios else "token"
        bounds = truncated_importance_sampling_ratio_min, truncated_importance_sampling_ratio
        finite = ratio_stage(level, "zero", None, FLOAT32_MAX, name="not finite:")
        stages = [ratio_stage(level, action, *bounds), finite]
        return Correction.of(stages, weight="token" if level == "token" else "sequence")

    return build


def _nemo_sequence(
    *, truncated_importance_sampling_ratio: float = 1.002, truncated_importance_sampling_ratio_min: float = 0.999
) -> StagedCorrection:
    bounds = truncated_importance_sampling_ratio_min, truncated_importance_sampling_ratio
    return Correction.of([ratio_stage("geometric", "zero", *bounds), _finite()])


def _nemo_error(*, seq_logprob_error_threshold: float) -> StagedCorrection:
    return Correction.of([Stage("mult_prob_error", "mean", "drop", upper=seq_logprob_error_threshold)], weight="one")


def _swift(mode: str) -> Build:
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


def _swift_opsm(*, off_policy_sequence_mask_delta: float) -> Rule:
    return opsm(off_policy_sequence_mask_delta)


def _tunix(*, sampler_is_threshold: float = 2.0) -> StagedCorrection:
    return Correction.of([ratio_stage("token", "truncate", None, sampler_is_threshold)], log_clamp=20.0)


def presets() -> list[Preset]:
    """Those of this file."""
    openrlhf, slime = "openrlhf/models/loss.py", "slime/backends/megatron_utils/loss.py"
    mis = "examples/train_infer_mismatch_helper/mis.py"
    nemo, swift = "nemo_rl/algorithms/loss_functions.py", "swift/trainers/rlhf_trainer/grpo_trainer.py"
    two = "lower and upper are the threshold's two numbers"
    band = {"lower": 0.5, "upper": 2.0}
    finite = "A weight that is not finite is 0"
    cap: dict[str, Any] = {"truncated_importance_sampling_ratio": 2.0}
    return [
        Preset("openrlhf/tis", openrlhf, _openrlhf("token", "truncate"), two, band),
        Preset("openrlhf/icepop", openrlhf, _openrlhf("token", "zero"), two, band),
        Preset("openrlhf/seq-mask-tis", openrlhf, _openrlhf("geometric", "zero"), "The weights kept are not clamped"),
        Preset("slime/vanilla_tis", slime, _slime("truncate")),
        Preset("slime/icepop", slime, _slime("zero")),
        Preset("slime/mis", mis, _slime_mis, "truncate caps, clip clamps both sides, mask drops"),
        Preset("slime/opsm", slime, _slime_opsm, "slime logs its clip fraction as a sum", {"opsm_delta": 0.02}),
        Preset("nemo/tis", nemo, _nemo("truncate"), finite, cap),
        Preset("nemo/icepop", nemo, _nemo("zero"), finite, {**cap, "truncated_importance_sampling_ratio_min": 0.5}),
        Preset("nemo/seq-mask-tis", nemo, _nemo_sequence, f"{finite}; the default bounds are its reference's"),
        Preset(
            "nemo/seq_logprob_error_threshold",
            "nemo_rl/algorithms/grpo.py",
            _nemo_error,
            "By a row's mean of exp|l|",
            {"seq_logprob_error_threshold": 2.0},
        ),
        *(
            Preset(f"ms-swift/{mode}", swift, _swift(mode), note)
            for mode, note in (
                ("token_truncate", ""),
                ("token_mask", ""),
                ("sequence_truncate", "By the geometric mean, not by the product"),
                ("sequence_mask", "By the geometric mean; the weights kept are token ratios"),
            )
        ),
        Preset("ms-swift/opsm", swift, _swift_opsm, "", {"off_policy_sequence_mask_delta": 0.02}),
        Preset("tunix/token", "tunix/rl/algo_core.py", _tunix),
    ]
