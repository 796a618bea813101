"""The tables of the presets' reference page: options, one batch through all, numbers by name, and what is refused."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch

from ratioscope import Correction, summarize
from ratioscope.correction.presets import PRESETS, REFUSED, Preset
from ratioscope.correction.presets.numbers import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG_RATIOS = [[0.0, 0.5, -0.7, -6.0], [1.5, -2.0, 0.1, 0.3], [0.2, -6.0, -6.0, -6.0]]
ROLLOUT = [[-0.5, -1.0, -1.5, -3.0], [-2.5, -0.4, -1.0, -0.9], [-0.8, -3.0, -3.0, -3.0]]
MASK = [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
ADVANTAGES = [1.0, -1.0, 1.0]


def page() -> str:
    """All tables, each under its heading."""
    sections = {
        "Presets": _table(("preset", "options and defaults", "what it does", "remarks"), _presets()),
        "One batch through all presets": _table(
            ("preset", "options", "modified", "corrected mean", "ESS"),
            (
                [_code(name), _given(PRESETS[name].example), *map(_number, values)]
                for name, values in one_batch().items()
            ),
        ),
        "Their numbers and ours": _table(("framework", "theirs", "ours, under `ratioscope/`", "remarks"), _numbers()),
        "What stages cannot express": _table(
            ("rule", "why not"), ([_code(one.name), _cell(one.reason)] for one in REFUSED)
        ),
    }
    return "\n\n".join(f"## {heading}\n\n{table}" for heading, table in sections.items())


def one_batch() -> dict[str, tuple[float, float, float]]:
    """Modified fraction, corrected mean and effective sample size by preset, NaN where all is dropped."""
    rollout = torch.tensor(ROLLOUT)
    train = rollout + torch.tensor(LOG_RATIOS)
    found = {}
    for name, preset in PRESETS.items():
        rule = Correction.preset(name, **preset.example)
        metrics = summarize(train, rollout, torch.tensor(MASK), correction=rule, advantages=ADVANTAGES).metrics()
        keys = ("modified/fraction", "corrected/mean", "ess/corrected")
        fraction, mean, ess = (metrics.get(f"ratioscope/{key}", math.nan) for key in keys)
        found[name] = (fraction, mean, ess)
    return found


def _presets() -> Iterator[list[str]]:
    for name, preset in PRESETS.items():
        rule = preset.make(preset.example if _differs(preset) else {})
        remarks = _cell(f"{preset.note}. " if preset.note else "") + _code(preset.source)
        yield [_code(name), _options(preset), _cell(rule.words()), remarks]


def _batch() -> Iterator[list[str]]:
    for name, values in one_batch().items():
        yield [_code(name), _given(PRESETS[name].example), *map(_number, values)]


def _refused() -> Iterator[list[str]]:
    for one in REFUSED:
        yield [_code(one.name), _cell(one.reason)]


def _differs(preset: Preset) -> bool:
    """Whether the example is needed to say what it does."""
    if inspect.Parameter.empty in preset.options.values():
        return True
    rule = preset.make({})
    return rule.bounds is None and not rule.stages


def _options(preset: Preset) -> str:
    shown = []
    for name, default in preset.options.items():
        shown.append(_code(name if default is inspect.Parameter.empty else f"{name}={default!r}"))
    return ", ".join(shown)


def _numbers() -> Iterator[list[str]]:
    for one in NUMBERS:
        yield [one.framework, _cell(one.theirs), _code(one.ours) if one.ours else "–", _cell(one.remark)]


def _given(options: Any) -> str:
    return ", ".join(_code(f"{name}={value!r}") for name, value in options.items())


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.6g}"


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
