"""slime: truncation, IcePop, its correction of mismatch and its off-policy sequence mask."""

from __future__ import annotations

from functools import partial
from typing import Any

from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import LEVELS, Preset, opsm, positive
from ratioscope.correction.staged import StagedCorrection
from ratioscope.correction.stages import Stage, StageAction


def _clipped(action: StageAction, *, tis_clip_low: float = 0.0, tis_clip: float = 2.0) -> StagedCorrection:
    return StagedCorrection((Stage("ratio", "token", action, tis_clip_low or None, tis_clip),))


def _mis(  # noqa: PLR0913  # the framework's own options
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
    stages: tuple[Stage, ...] = ()
    if use_tis:
        action: StageAction = "drop" if tis_mode == "mask" else "truncate"
        stages += (Stage("ratio", LEVELS[tis_level], action, None if tis_mode == "truncate" else lower, upper),)
    if use_rs:
        least = lower if rs_lower_bound is None else rs_lower_bound
        most = upper if rs_upper_bound is None else rs_upper_bound
        stages += (Stage("ratio", LEVELS[rs_level], "drop", least, most, name="rejection"),)
        if rs_veto_threshold is not None:
            stages += (Stage("ratio", "any", "drop", rs_veto_threshold, None, name="veto"),)
    elif rs_veto_threshold is not None:
        msg = "got rs_veto_threshold without use_rs=True; slime reads it only where rejection is on"
        raise ValueError(msg)
    weight: Any = tis_level if use_tis else "one"
    return StagedCorrection(stages, weight, log_clamp=20.0, batch_normalize=tis_batch_normalize and use_tis)


def _opsm(*, opsm_delta: float) -> StagedCorrection:
    return opsm(opsm_delta)


_LOSS, _MIS = "slime/backends/megatron_utils/loss.py", "examples/train_infer_mismatch_helper/mis.py"

PRESETS = (
    Preset("slime/vanilla_tis", _LOSS, partial(_clipped, "truncate")),
    Preset("slime/icepop", _LOSS, partial(_clipped, "zero")),
    Preset("slime/mis", _MIS, _mis, "truncate caps, clip clamps both sides, mask drops"),
    Preset("slime/opsm", _LOSS, _opsm, "slime logs its clip fraction as a sum", {"opsm_delta": 0.02}),
)
