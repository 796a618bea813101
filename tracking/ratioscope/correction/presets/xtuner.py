"""XTuner: truncation, masks and a veto."""

from __future__ import annotations

from typing import Any

from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import LEVELS, Preset, pair
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage


def _rollout_is(
    *,
    rollout_is_threshold: tuple[float, float],
    rollout_is_level: str = "token",
    rollout_is_mode: str = "truncate",
    rollout_is_mask_threshold: tuple[float, float] | None = None,
    rollout_is_veto_threshold: tuple[float, float] | None = None,
) -> StagedCorrection:
    """XTuner's ``RolloutImportanceSampling``; each threshold is (upper, lower)."""
    check_choice("rollout_is_level", rollout_is_level, tuple(LEVELS))
    check_choice("rollout_is_mode", rollout_is_mode, ("truncate", "mask", "both"))
    level = LEVELS[rollout_is_level]
    own = _lower_first("rollout_is_threshold", rollout_is_threshold)
    given = rollout_is_mask_threshold
    mask = own if given is None else _lower_first("rollout_is_mask_threshold", given)
    stages: tuple[Stage, ...] = (Stage("ratio", level, "drop", *mask),) if rollout_is_mode in {"mask", "both"} else ()
    if rollout_is_mode in {"truncate", "both"}:
        stages += (Stage("ratio", level, "truncate", *own),)
    if rollout_is_veto_threshold is not None:
        veto = _lower_first("rollout_is_veto_threshold", rollout_is_veto_threshold)
        stages += (Stage("ratio", "any", "drop", *veto),)
    weight: Any = rollout_is_level
    return StagedCorrection(stages, weight, log_clamp=20.0)


def _lower_first(name: str, value: Any) -> tuple[float, float]:
    upper, lower = pair(name, value)
    if upper <= lower:
        msg = f"got {name}={value!r}; expected (upper, lower), as XTuner's own check has it"
        raise ValueError(msg)
    return lower, upper


_SOURCE = "xtuner/v1/rl/rollout_is.py"
_NOTE = "Thresholds are (upper, lower), against its docstring; without the first it corrects nothing"
_EXAMPLE = {"rollout_is_threshold": (2.0, 0.5), "rollout_is_veto_threshold": (100.0, 0.2)}

PRESETS = (Preset("xtuner/rollout_is", _SOURCE, _rollout_is, _NOTE, _EXAMPLE),)
