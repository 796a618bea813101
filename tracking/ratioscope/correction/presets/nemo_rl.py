"""NeMo-RL: truncation, IcePop and its sequence masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.correction.bounds import Correction
from ratioscope.correction.presets.preset import Build, Preset, ratio_stage
from ratioscope.correction.stages import Stage
from ratioscope.numerics import FLOAT32_MAX

if TYPE_CHECKING:
    from ratioscope.correction.staged import StagedCorrection
    from ratioscope.correction.stages import StageAction, StageLevel


def _clipped(action: StageAction) -> Build:
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


def _sequence_mask(
    *, truncated_importance_sampling_ratio: float = 1.002, truncated_importance_sampling_ratio_min: float = 0.999
) -> StagedCorrection:
    bounds = truncated_importance_sampling_ratio_min, truncated_importance_sampling_ratio
    return Correction.of(
        [ratio_stage("geometric", "zero", *bounds), ratio_stage("token", "zero", None, FLOAT32_MAX, name="not finite:")]
    )


def _error_mask(*, seq_logprob_error_threshold: float) -> StagedCorrection:
    return Correction.of([Stage("mult_prob_error", "mean", "drop", upper=seq_logprob_error_threshold)], weight="one")


def presets() -> list[Preset]:
    """Returns the presets of this framework."""
    source, finite = "nemo_rl/algorithms/loss_functions.py", "A weight that is not finite is 0"
    cap: dict[str, Any] = {"truncated_importance_sampling_ratio": 2.0}
    return [
        Preset("nemo/tis", source, _clipped("truncate"), finite, cap),
        Preset(
            "nemo/icepop", source, _clipped("zero"), finite, {**cap, "truncated_importance_sampling_ratio_min": 0.5}
        ),
        Preset("nemo/seq-mask-tis", source, _sequence_mask, f"{finite}; the default bounds are its reference's"),
        Preset(
            "nemo/seq_logprob_error_threshold",
            "nemo_rl/algorithms/grpo.py",
            _error_mask,
            "By a row's mean of exp|l|",
            {"seq_logprob_error_threshold": 2.0},
        ),
    ]
