"""Facts about a run: the settings that matter for its ratios, and the windows that it has."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ratioscope.text import number, plain

if TYPE_CHECKING:
    from ratioscope.runs.timeline import Timeline

_FACTS = {
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
"""Parts of each fact: the word before a value, and the dotted name of the value in the config."""

_UNSET = ("", "none", "unknown", "None")


def settings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns name and text of each fact that the config holds."""
    facts = [("Mode", _mode(config)), ("Stages", _stages(config)), ("Bounds", _bounds(config))]
    for name, parts in _FACTS.items():
        values = {word: _value(config, path) for word, path in parts.items()}
        words = [f"{word} {value}".strip() for word, value in values.items() if value not in _UNSET]
        facts.append((name, ", ".join(words)))
    return [(name, text) for name, text in facts if text]


def windows(timeline: Timeline) -> list[tuple[str, str]]:
    """Returns the number of windows, and the steps and the time that they cover."""
    curves = list(timeline.scalars.values())
    facts = [("Windows", ", ".join(f"{n:,} {split}" for split, n in timeline.windows.items()) or "none")]
    if curves:
        first, last = min(curve.steps[0] for curve in curves), max(curve.steps[-1] for curve in curves)
        facts.append(("Steps", f"{first:,}" if first == last else f"{first:,} to {last:,}"))
        if newest := max(curve.times[-1] for curve in curves):  # a trainer_state.json has no times
            facts.append(("Last window", _time(newest)))
    return facts


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
    """Describes a rule of stages in words; empty for a rule of bounds, which has a mode and bounds instead."""
    rule = config.get("correction")
    return plain(str(rule.get("words") or ""), 1000) if isinstance(rule, Mapping) else ""


def _bounds(config: Mapping[str, Any]) -> str:
    rule = config.get("correction")
    if not isinstance(rule, Mapping) or not rule.get("enabled", True) or rule.get("words"):
        return ""
    return ", ".join(f"{side} {_bound(rule.get(side))}" for side in ("lower", "upper"))


def _bound(value: Any) -> str:
    if value is None or value == "none":
        return "open"
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _value(config: Mapping[str, Any], path: str) -> str:
    section, _, name = path.partition(".")
    value: Any = config.get(section)
    if name:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    return plain(str(value))[:12] if path == "git_commit" else plain(str(value))


def _time(milliseconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, tz=UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return "unknown"
