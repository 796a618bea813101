"""Statistics of the stages of a general rule; none of them has data under a rule of bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.correction.stages import CLASSES, MAX_STAGES
from ratioscope.metrics.metric import PREFIX, Formula, Metric

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratioscope.metrics.view import View

_CLASS_MEANINGS = {
    "truncated_high": "clamped to an upper bound",
    "truncated_low": "clamped to a lower bound",
    "zeroed": "given a weight of 0, the loss still dividing by them",
    "dropped": "taken out of the mask, the loss not dividing by them",
    "vetoed": "zeroed or dropped with their row, for one of its tokens",
    "clamped": "touched by nothing but the safety clamp of the logarithm",
}


def _of_stage(stage: int, *sides: str, n: str = "token/n") -> Formula:
    def formula(view: View) -> float | None:
        rule = view.correction
        if rule is None or len(rule.stages) < stage or not view.counts[n]:
            return None
        return sum(view.counts[f"stage/{stage}/{side}"] for side in sides) / view.counts[n]

    return formula


def _of_general(slot: str, n: str = "token/n") -> Formula:
    def formula(view: View) -> float | None:
        has_classes = view.correction is not None and view.correction.bounds is None
        return view.fraction(slot, n) if has_classes else None

    return formula


def stage_metrics() -> Iterator[Metric]:
    """Yields the metrics of stages, in the order of the reference page."""
    for name in CLASSES[1:]:
        meaning = f"fraction of tokens that were {_CLASS_MEANINGS[name]}; rules of stages only"
        yield Metric(f"{PREFIX}modified/{name}", meaning, "full", _of_general(f"class/{name}"))
    for stage in range(1, MAX_STAGES + 1):
        at, of = f"{PREFIX}stage/{stage}/", f"stage {stage} finds, whatever other stages do"
        meaning = f"fraction of tokens outside its bounds that {of}"
        yield Metric(f"{at}modified", meaning, "standard", _of_stage(stage, "tokens_low", "tokens_high"))
        for side, bound in (("low", "below its lower"), ("high", "above its upper")):
            meaning = f"fraction of tokens {bound} bound that {of}"
            yield Metric(f"{at}{side}", meaning, "full", _of_stage(stage, f"tokens_{side}"))
            meaning = f"fraction of rows with such a token, {side} side"
            yield Metric(f"{at}rows_{side}", meaning, "full", _of_stage(stage, f"rows_{side}", n="sequence/n"))
    meaning = "fraction of tokens whose weight's logarithm the safety clamp reaches, whatever the stages do"
    yield Metric(f"{PREFIX}safety_clamp/tokens", meaning, "full", _of_general("safety_clamp/tokens"))
    meaning = "fraction of rows with such a token"
    yield Metric(f"{PREFIX}safety_clamp/rows", meaning, "full", _of_general("safety_clamp/rows", "sequence/n"))
