"""ROLL: truncation and filters at four levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.correction.checks import check_choice
from ratioscope.correction.presets.preset import LEVELS, Preset, rejecting
from ratioscope.correction.staged import StagedCorrection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratioscope.correction.stages import Stage


_LEVELS = {**LEVELS, "segment": "segment"}
_DIFFERENCE_LEVELS = {"token": "token", "segment": "segment", "sequence": "sum", "geometric": "mean"}
"""Levels of probability differences, which are added where ratios are multiplied."""

_FILTER = {
    "agg_type": "token",
    "ratio_enabled": True,
    "ratio_low": 0.8,
    "ratio_high": 1.2,
    "diff_enabled": False,
    "diff_low": -0.2,
    "diff_high": 0.2,
}
"""Defaults of ROLL's ``TrainInferFilterConfig``."""


def _train_infer_correction(
    *, weight_type: str | None = "token", upper_bound: float | None = 1.2, filters: Sequence[Mapping[str, Any]] = ()
) -> StagedCorrection:
    """ROLL's ``train_infer_correction``; each filter has the fields of its ``TrainInferFilterConfig``."""
    stages: tuple[Stage, ...] = ()
    if weight_type is not None:
        check_choice("weight_type", weight_type, tuple(_LEVELS))
        stages += rejecting("ratio", _LEVELS[weight_type], "truncate", None, upper_bound)
    for given in filters:
        for name in given:
            check_choice("filter option", name, tuple(_FILTER))
        options: dict[str, Any] = {**_FILTER, **given}
        level = options["agg_type"]
        check_choice("agg_type", level, tuple(_LEVELS))
        if options["ratio_enabled"]:
            stages += rejecting("ratio", _LEVELS[level], "drop", options["ratio_low"], options["ratio_high"])
        if options["diff_enabled"]:
            bounds = options["diff_low"], options["diff_high"]
            stages += rejecting("probability_difference", _DIFFERENCE_LEVELS[level], "drop", *bounds)
    weight: Any = weight_type or "one"
    return StagedCorrection(stages, weight)


_SOURCE = "roll/utils/train_infer_corrections.py"
_NOTE = "Filters drop; a segment, such as a turn, has the geometric mean of its ratios"
_TURNS = {"weight_type": "segment", "filters": ({"agg_type": "token"},)}

PRESETS = (Preset("roll/train_infer_correction", _SOURCE, _train_infer_correction, _NOTE, _TURNS),)
