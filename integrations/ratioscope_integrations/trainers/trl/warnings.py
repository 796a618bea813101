"""Warnings about settings that bias the importance ratio, whatever the engines compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.config.lookup import UNKNOWN, lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["CONFIG_FINDINGS", "config_warnings"]

CONFIG_FINDINGS = ("sampling_settings", "logprobs_mode")
"""Findings of the diagnosis with the same evidence as these warnings."""

_BIASED: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("top_p", lambda value: value < 1, "top_p=1"),
    ("top_k", lambda value: value > 0, "top_k=0"),
    ("min_p", lambda value: value > 0, "min_p=0"),
    ("repetition_penalty", lambda value: value != 1, "repetition_penalty=1"),
)
"""Sampling settings: name, a test of whether a value changes the sampled distribution, and the neutral value."""

_RESHAPES = (
    "reshapes the distribution that vLLM samples from, and the trainer scores the one before it, "
    "which biases the importance ratio"
)


def config_warnings(sections: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns one line for each setting that biases the ratio, with its remedy.

    A setting that is unknown gives no warning, except for the engine's ``logprobs_mode`` where it matters.

    Args:
        sections: run config from :func:`ratioscope_integrations.trainers.trl.settings.trl_sections`.

    Returns:
        The warnings; none if every setting is neutral or no engine is used.
    """
    if lookup(sections, "engine.vllm_mode") == "not used":
        return []
    return [*_sampling_warnings(sections), *_temperature_warnings(sections), *_logprobs_warnings(sections)]


def _sampling_warnings(sections: Mapping[str, Any]) -> list[str]:
    """Warns of truncated or reshaped sampling: the trainer scores the distribution before truncation."""
    overridden = _names(sections, "overridden")
    lines = []
    for name, is_biased, neutral in _BIASED:
        value = _number(lookup(sections, f"sampling.{name}"))
        if value is not None and is_biased(value):
            source = " (from generation_kwargs)" if name in overridden else ""
            lines.append(f"{name}={value:g}{source} {_RESHAPES}; set {neutral} to remove the bias.")
    lines.extend(f"{name} {_RESHAPES}; drop it to remove the bias." for name in _names(sections, "reshaped_by"))
    return lines


def _temperature_warnings(sections: Mapping[str, Any]) -> list[str]:
    """Warns of a temperature that only the engine uses."""
    sampled = _number(lookup(sections, "sampling.temperature"))
    scored = _number(lookup(sections, "sampling.scoring_temperature"))
    if sampled is None or sampled == scored or "temperature" not in _names(sections, "overridden"):
        return []
    against = "another one" if scored is None else f"{scored:g}"
    line = f"temperature={sampled:g} (from generation_kwargs) is what vLLM samples at, and the trainer scores at "
    return [f"{line}{against}, which biases the importance ratio; set the config's temperature instead."]


def _logprobs_warnings(sections: Mapping[str, Any]) -> list[str]:
    """Warns if vLLM returns logits, or log-probabilities computed before the temperature is applied."""
    mode = lookup(sections, "engine.logprobs_mode")
    if mode in ("raw_logits", "processed_logits"):
        line = f"logprobs_mode is {mode}: vLLM returns logits, of which no importance ratio can be formed"
        return [f"{line}; start vLLM with --logprobs-mode processed_logprobs."]
    if mode == "processed_logprobs":
        return []
    temperatures = [_number(lookup(sections, f"sampling.{name}")) for name in ("temperature", "scoring_temperature")]
    changed = [value for value in temperatures if value is not None and value != 1]
    if not changed:
        return []
    state, scaled = ("raw", "are not") if mode == "raw_logprobs" else (UNKNOWN, "may not be")
    line = f"T != 1 and logprobs_mode is {state}: at temperature={changed[0]:g} the trainer's log-probabilities are "
    line += f"scaled and vLLM's {scaled}, which biases the importance ratio"
    return [f"{line}; start vLLM with --logprobs-mode processed_logprobs."]


def _names(sections: Mapping[str, Any], name: str) -> list[str]:
    """Returns a list of names in the sampling section, empty if it is unknown."""
    value = lookup(sections, f"sampling.{name}")
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _number(value: Any) -> float | None:
    """Returns a setting as a number, or None if it is unset or unknown."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
