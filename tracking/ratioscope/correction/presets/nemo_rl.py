"""NeMo-RL: truncation, IcePop and its sequence masks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ratioscope.correction.presets.preset import Preset
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage, StageAction, StageLevel
from ratioscope.numerics import FLOAT32_MAX

_SOURCE = "nemo_rl/algorithms/loss/loss_functions.py"
_NOTE = "A weight that is not finite is 0, or a truncation's lower bound"
_BAND = {"truncated_importance_sampling_ratio": 2.0, "truncated_importance_sampling_ratio_min": 0.5}
_FINITE = Stage("ratio", "token", "zero", None, FLOAT32_MAX, name="not finite:")


def _clipped(
    action: StageAction,
    *,
    truncated_importance_sampling_ratio: float,
    truncated_importance_sampling_ratio_min: float | None = None,
    sequence_level_importance_ratios: bool = False,
) -> StagedCorrection:
    bounds = truncated_importance_sampling_ratio_min, truncated_importance_sampling_ratio
    level: StageLevel = "product" if sequence_level_importance_ratios else "token"
    stages = Stage("ratio", level, action, *bounds), replace(_FINITE, level=level)
    if action == "truncate" and truncated_importance_sampling_ratio_min is not None:
        stages = stages[::-1]  # the 0 of a weight that is not finite is raised to the lower bound
    return StagedCorrection(stages, "sequence" if sequence_level_importance_ratios else "token")


def _sequence_mask(
    *, truncated_importance_sampling_ratio: float = 1.002, truncated_importance_sampling_ratio_min: float = 0.999
) -> StagedCorrection:
    bounds = truncated_importance_sampling_ratio_min, truncated_importance_sampling_ratio
    return StagedCorrection((Stage("ratio", "geometric", "zero", *bounds), _FINITE))


def _error_mask(*, seq_logprob_error_threshold: float) -> StagedCorrection:
    return StagedCorrection((Stage("mult_prob_error", "mean", "drop", upper=seq_logprob_error_threshold),), "one")


_error = "nemo/seq_logprob_error_threshold", "nemo_rl/algorithms/grpo.py"

PRESETS = (
    Preset("nemo/tis", _SOURCE, partial(_clipped, "truncate"), _NOTE, {"truncated_importance_sampling_ratio": 2.0}),
    Preset("nemo/icepop", _SOURCE, partial(_clipped, "zero"), "A weight that is not finite is 0", _BAND),
    Preset(
        "nemo/seq-mask-tis",
        _SOURCE,
        _sequence_mask,
        "A weight that is not finite is 0; the default bounds are its reference's",
    ),
    Preset(*_error, _error_mask, "By a row's mean of exp|l|", {"seq_logprob_error_threshold": 2.0}),
)
