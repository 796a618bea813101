"""ROLL: truncation and filters at four levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.correction.bounds import Correction
from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import LEVELS, Preset, rejecting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratioscope.correction.staged import StagedCorrection
    from ratioscope.correction.stages import Stage


_LEVELS = {**LEVELS, "segment": "segment"}
_DIFFERENCE_LEVELS = {"token": "token", "segment": "segment", "sequence": "sum", "geometric": "mean"}
"""Levels of probability differences, which are added where ratios are multiplied."""


def _train_infer_correction(
    *,
    weight_type: str | None = "token",
    upper_bound: float | None = 1.2,
    filters: Sequence[Mapping[str, Any]] = (),
) -> StagedCorrection:
    """ROLL's ``train_infer_correction``; each filter has the fields of its ``TrainInferFilterConfig``."""
    stages: list[Stage] = []
    if weight_type is not None:
        check_choice("weight_type", weight_type, tuple(_LEVELS))
        stages += rejecting("ratio", _LEVELS[weight_type], "truncate", None, upper_bound)
    defaults = {
        "agg_type": "token",
        "ratio_enabled": True,
        "ratio_low": 0.8,
        "ratio_high": 1.2,
        "diff_enabled": False,
        "diff_low": -0.2,
        "diff_high": 0.2,
    }
    for given in filters:
        for name in given:
            check_choice("filter option", name, tuple(defaults))
        options = {**defaults, **given}
        check_choice("agg_type", options["agg_type"], tuple(_LEVELS))
        if options["ratio_enabled"]:
            stages += rejecting(
                "ratio", _LEVELS[options["agg_type"]], "drop", options["ratio_low"], options["ratio_high"]
            )
        if options["diff_enabled"]:
            over = _DIFFERENCE_LEVELS[options["agg_type"]]
            stages += rejecting("probability_difference", over, "drop", options["diff_low"], options["diff_high"])
    weight: Any = weight_type or "one"
    return Correction.of(stages, weight=weight)


def presets() -> list[Preset]:
    """Returns the presets of this framework."""
    note = "Filters drop; a segment, such as a turn, has the geometric mean of its ratios"
    turns = {"weight_type": "segment", "filters": ({"agg_type": "token"},)}
    source = "roll/utils/train_infer_corrections.py"
    return [
        Preset("roll/train_infer_correction", source, _train_infer_correction, note, turns),
    ]
