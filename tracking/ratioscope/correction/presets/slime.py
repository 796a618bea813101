"""slime: truncation, IcePop, its correction of mismatch and its off-policy sequence mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.correction.bounds import Correction
from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import LEVELS, Build, Preset, opsm, positive, ratio_stage

if TYPE_CHECKING:
    from ratioscope.correction.rule import Rule
    from ratioscope.correction.staged import StagedCorrection
    from ratioscope.correction.stages import Stage, StageAction


def _clipped(action: StageAction) -> Build:
    def build(*, tis_clip_low: float = 0.0, tis_clip: float = 2.0) -> StagedCorrection:
        return Correction.of([ratio_stage("token", action, tis_clip_low or None, tis_clip)])

    return build


def _mis(
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


def _opsm(*, opsm_delta: float) -> Rule:
    return opsm(opsm_delta)


def presets() -> list[Preset]:
    """Returns the presets of this framework."""
    loss = "slime/backends/megatron_utils/loss.py"
    mis = "examples/train_infer_mismatch_helper/mis.py"
    return [
        Preset("slime/vanilla_tis", loss, _clipped("truncate")),
        Preset("slime/icepop", loss, _clipped("zero")),
        Preset("slime/mis", mis, _mis, "truncate caps, clip clamps both sides, mask drops"),
        Preset("slime/opsm", loss, _opsm, "slime logs its clip fraction as a sum", {"opsm_delta": 0.02}),
    ]
