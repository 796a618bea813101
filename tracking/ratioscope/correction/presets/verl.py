"""verl's rollout correction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ratioscope.correction.bounds import Correction
from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import Build, Preset, positive, ratio_stage, rejecting
from ratioscope.correction.stages import MAX_STAGES, Stage

if TYPE_CHECKING:
    from ratioscope.correction.staged import StagedCorrection

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
    stages: list[Stage] = []
    weight: Any = "one"
    if rollout_is is not None:
        check_choice("rollout_is", rollout_is, ("token", "sequence"))
        level: Any = "token" if rollout_is == "token" else "product"
        lower, upper = _bounds("rollout_is_threshold", rollout_is_threshold)
        stages.append(ratio_stage(level, "truncate" if lower is None else "zero", lower, upper))
        weight = rollout_is
    for mode, threshold in _rejections(rollout_rs, rollout_rs_threshold):
        stages += _rejection(mode, threshold)
    if len(stages) > MAX_STAGES:
        msg = f"got {len(stages)} stages of rollout_is and rollout_rs; expected at most {MAX_STAGES}"
        raise ValueError(msg)
    return Correction.of(
        stages,
        weight=weight,
        log_clamp=LOG_CLAMP,
        batch_normalize=rollout_is_batch_normalize and rollout_is is not None,
    )


def _rejections(rollout_rs: str | None, thresholds: float | str | None) -> list[tuple[str, float | str]]:
    """Mode and threshold of each; one threshold may stand for all."""
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


def _rejection(mode: str, threshold: float | str) -> list[Stage]:
    at, _, statistic = mode.rpartition("_")
    level = {"token": "token", "seq_sum": "sum", "seq_mean": "mean", "seq_max": "max"}[at]
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
    """Lower and upper bound of a number, or of a text such as ``"0.5_2.0"``."""
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


def _is(rollout_is: str, default: float | str) -> Build:
    def build(
        *, rollout_is_threshold: float | str = default, rollout_is_batch_normalize: bool = False
    ) -> StagedCorrection:
        return rollout_correction(
            rollout_is=rollout_is,
            rollout_is_threshold=rollout_is_threshold,
            rollout_is_batch_normalize=rollout_is_batch_normalize,
        )

    return build


def _rs(mode: str) -> Build:
    def build(*, rollout_rs_threshold: float | str) -> StagedCorrection:
        return rollout_correction(rollout_rs=mode, rollout_rs_threshold=rollout_rs_threshold)

    return build


def presets() -> list[Preset]:
    """Those of this file."""
    both = "A number truncates from above; a text such as 0.5_2.0 zeroes what is outside"
    combined = {"rollout_is": "token", "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.9_1.1"}
    bound = "Bounds are of rollout/trainer, since they bound -l; one bound stands for its inverse too"
    return [
        Preset("verl/rollout_correction", _SOURCE, rollout_correction, "Every option at once", combined),
        Preset("verl/token", _SOURCE, _is("token", 2.0), both),
        Preset("verl/sequence", _SOURCE, _is("sequence", 2.0), both),
        Preset(
            "verl/icepop",
            _SOURCE,
            _is("token", "0.5_5.0"),
            "rollout_is=token with two bounds",
            {"rollout_is_threshold": "0.5_2.0"},
        ),
        *(
            Preset(
                f"verl/{mode}",
                _SOURCE,
                _rs(mode),
                bound if mode.endswith("k1") else "",
                {"rollout_rs_threshold": "0.5_2.0" if mode.endswith("k1") else 0.2},
            )
            for mode in RS_MODES
        ),
        Preset(
            "verl/geometric",
            _SOURCE,
            _rs("seq_mean_k1"),
            "The old name of seq_mean_k1",
            {"rollout_rs_threshold": "0.9_1.1"},
        ),
    ]
