"""verl's rollout correction."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import Preset, positive, rejecting
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import MAX_STAGES, Stage

LOG_CLAMP = 20.0
RS_MODES = (
    *(f"token_k{k}" for k in (1, 2, 3)),
    *(f"seq_{how}_k{k}" for how in ("sum", "mean") for k in (1, 2, 3)),
    "seq_max_k2",
    "seq_max_k3",
)
"""Rejection modes, by what is compared."""

_SOURCE = "verl/trainer/ppo/rollout_corr_helper.py"


def rollout_correction(
    *,
    rollout_is: str | None = None,
    rollout_is_threshold: float | str = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: float | str | None = None,
) -> StagedCorrection:
    """The rule of ``RolloutCorrectionConfig``: weights by ``rollout_is``, rejection by ``rollout_rs``, or both."""
    stages: tuple[Stage, ...] = ()
    weight: Any = "one"
    if rollout_is is not None:
        check_choice("rollout_is", rollout_is, ("token", "sequence"))
        level: Any = "token" if rollout_is == "token" else "product"
        lower, upper = _bounds("rollout_is_threshold", rollout_is_threshold)
        stages += (Stage("ratio", level, "truncate" if lower is None else "zero", lower, upper),)
        weight = rollout_is
    for mode, threshold in _rejections(rollout_rs, rollout_rs_threshold):
        stages += _rejection(mode, threshold)
    if len(stages) > MAX_STAGES:
        msg = f"got {len(stages)} stages of rollout_is and rollout_rs; expected at most {MAX_STAGES}"
        raise ValueError(msg)
    normalize = rollout_is_batch_normalize and rollout_is is not None
    return StagedCorrection(stages, weight, LOG_CLAMP, normalize)


def _rejections(rollout_rs: str | None, thresholds: float | str | None) -> list[tuple[str, float | str]]:
    """Pairs each rejection mode with its threshold; one threshold may stand for all."""
    if rollout_rs is None:
        return []
    modes = [mode.strip() for mode in rollout_rs.split(",")]
    for mode in modes:
        check_choice("rollout_rs", mode, RS_MODES)
    if thresholds is None:
        msg = f"got rollout_rs={rollout_rs!r} without rollout_rs_threshold; verl has no default"
        raise ValueError(msg)
    each: list[Any] = [part.strip() for part in thresholds.split(",")] if isinstance(thresholds, str) else [thresholds]
    if len(each) not in {1, len(modes)}:
        msg = f"got rollout_rs_threshold={thresholds!r} for {len(modes)} modes; expected one, or one for each"
        raise ValueError(msg)
    return list(zip(modes, each if len(each) == len(modes) else each * len(modes), strict=True))


def _rejection(mode: str, threshold: float | str) -> tuple[Stage, ...]:
    over, _, statistic = mode.rpartition("_")
    level = {"token": "token", "seq_sum": "sum", "seq_mean": "mean", "seq_max": "max"}[over]
    lower, upper = _bounds("rollout_rs_threshold", threshold)
    if statistic == "k1":
        # Bounds of a ratio, of which one alone means its inverse too; their logarithms bound -l.
        low = 1.0 / upper if lower is None else positive("rollout_rs_threshold", lower)
        return rejecting("k1", level, "drop", math.log(low), math.log(upper))
    if lower is not None:
        msg = f"got rollout_rs_threshold={threshold!r} for {mode}; expected one upper bound of {statistic}"
        raise ValueError(msg)
    return rejecting(statistic, level, "drop", None, upper)


def _bounds(name: str, threshold: Any) -> tuple[float | None, float]:
    """Returns lower and upper bound of a number, or of a text such as ``"0.5_2.0"``."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float | str):
        msg = f'got {name}={threshold!r}; expected a number, or a text such as "0.5_2.0"'
        raise TypeError(msg)
    parts = str(threshold).split("_")
    try:
        numbers = [positive(name, part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        return None, numbers[0]
    if len(numbers) == 2 and numbers[0] <= numbers[1]:
        return numbers[0], numbers[1]
    msg = f'got {name}={threshold!r}; expected a number above 0, or two in order such as "0.5_2.0"'
    raise ValueError(msg)


def _rejecting(mode: str, *, rollout_rs_threshold: float | str) -> StagedCorrection:
    return rollout_correction(rollout_rs=mode, rollout_rs_threshold=rollout_rs_threshold)


_WEIGHT = ("rollout_is_threshold", "rollout_is_batch_normalize")
_token, _sequence = (partial(rollout_correction, rollout_is=level) for level in ("token", "sequence"))
_icepop, _geometric = partial(_token, rollout_is_threshold="0.5_5.0"), partial(_rejecting, "seq_mean_k1")
_sides = "A number truncates from above; a text such as 0.5_2.0 zeroes what is outside"
_inverse = "Bounds are of rollout/trainer, since they bound -l; one bound stands for its inverse too"
_both = {"rollout_is": "token", "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.9_1.1"}
_icepop_example, _geometric_example = {"rollout_is_threshold": "0.5_2.0"}, {"rollout_rs_threshold": "0.9_1.1"}


def _rejection_preset(mode: str) -> Preset:
    is_k1 = mode.endswith("k1")
    example = {"rollout_rs_threshold": "0.5_2.0" if is_k1 else 0.2}
    return Preset(f"verl/{mode}", _SOURCE, partial(_rejecting, mode), _inverse if is_k1 else "", example)


PRESETS = (
    Preset("verl/rollout_correction", _SOURCE, rollout_correction, "Every option at once", _both),
    Preset("verl/token", _SOURCE, _token, _sides, names=_WEIGHT),
    Preset("verl/sequence", _SOURCE, _sequence, _sides, names=_WEIGHT),
    Preset("verl/icepop", _SOURCE, _icepop, "rollout_is=token with two bounds", _icepop_example, _WEIGHT),
    *map(_rejection_preset, RS_MODES),
    Preset("verl/geometric", _SOURCE, _geometric, "The old name of seq_mean_k1", _geometric_example),
)
