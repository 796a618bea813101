"""What of a run's config matters for its ratios, in a few words each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ratioscope.text import number, plain

if TYPE_CHECKING:
    from ratioscope.runs.timeline import Timeline

_PARTS = {
    "Model": {"": "trainer.model_class"},
    "Trainer dtype": {"": "trainer.weights_dtype", "mixed precision": "trainer.mixed_precision"},
    "Engine dtype": {
        "": "engine.dtype",
        "quantization": "engine.quantization",
        "KV cache": "engine.kv_cache_dtype",
    },
    "Engine": {"vLLM": "engine.vllm_version", "": "engine.vllm_mode", "logprobs": "engine.logprobs_mode"},
    "Sampling": {
        "temperature": "sampling.temperature",
        "top_p": "sampling.top_p",
        "top_k": "sampling.top_k",
        "min_p": "sampling.min_p",
    },
    "Loss": {"": "loss.loss_type", "ratios per": "loss.importance_sampling_level"},
    "Versions": {name: f"versions.{name}" for name in ("ratioscope", "torch", "trl", "vllm", "transformers", "python")},
    "Commit": {"": "git_commit"},
}
"""By fact, what it is put together from: a word before each value, and where the value stands."""

_SAYS_NOTHING = ("", "none", "unknown", "None")


def settings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and text of each fact that the config holds."""
    found = [("Mode", _mode(config)), ("Stages", _stages(config)), ("Bounds", _bounds(config))]
    for name, parts in _PARTS.items():
        values = {word: _at(config, path) for word, path in parts.items()}
        told = [f"{word} {value}".strip() for word, value in values.items() if value not in _SAYS_NOTHING]
        found.append((name, ", ".join(told)))
    return [(name, told) for name, told in found if told]


def windows(timeline: Timeline) -> list[tuple[str, str]]:
    """Number of windows, the steps and the hours that they cover."""
    curves = list(timeline.scalars.values())
    found = [("Windows", ", ".join(f"{n:,} {split}" for split, n in timeline.windows.items()) or "none")]
    if curves:
        first, last = min(curve.steps[0] for curve in curves), max(curve.steps[-1] for curve in curves)
        found.append(("Steps", f"{first:,}" if first == last else f"{first:,} to {last:,}"))
        if newest := max(curve.times[-1] for curve in curves):  # a trainer_state.json has no times
            found.append(("Last window", _moment(newest)))
    return found


def _mode(config: Mapping[str, Any]) -> str:
    rule = config.get("correction")
    if not isinstance(rule, Mapping):
        return ""
    if not rule.get("enabled", True):
        return "nothing is corrected"
    if rule.get("words"):
        return plain(str(rule.get("mode")), 80)
    return " ".join(plain(str(rule[name])) for name in ("level", "action") if name in rule) or "unknown"


def _stages(config: Mapping[str, Any]) -> str:
    """What a rule of stages does, in words; empty for the short form, which mode and bounds describe."""
    rule = config.get("correction")
    return plain(str(rule.get("words") or ""), 1000) if isinstance(rule, Mapping) else ""


def _bounds(config: Mapping[str, Any]) -> str:
    rule = config.get("correction")
    if not isinstance(rule, Mapping) or not rule.get("enabled", True) or rule.get("words"):
        return ""
    told = []
    for side in ("lower", "upper"):
        value = rule.get(side)
        open_side = value is None or value == "none"
        shown = number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        told.append(f"{side} {'open' if open_side else shown}")
    return ", ".join(told)


def _at(config: Mapping[str, Any], path: str) -> str:
    section, _, name = path.partition(".")
    value: Any = config.get(section)
    if name:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    return plain(str(value))[:12] if path == "git_commit" else plain(str(value))


def _moment(milliseconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, tz=UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return "unknown"
