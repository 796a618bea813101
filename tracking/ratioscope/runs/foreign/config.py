"""The run config as far as the arguments of a trainer say it, for runs that ratioscope did not see."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_SECTIONS = {
    "sampling": ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    "loss": ("loss_type", "importance_sampling_level", "use_liger_kernel"),
    "batch": ("num_generations", "steps_per_generation", "num_iterations", "gradient_accumulation_steps"),
}
"""By section, the arguments of TRL's ``GRPOConfig`` that have the same name there."""

_RULE = "vllm_importance_sampling_"


def config_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A run config with what a trainer's arguments say; empty if they are not TRL's.

    What is in the arguments is what was asked for: an older or a patched trainer may have done otherwise.

    Args:
        arguments: by name, as ``GRPOConfig.to_dict()`` has them; values may be text, as MLflow keeps them.
    """
    known = {str(name): _value(value) for name, value in arguments.items()}
    if not any(name.startswith(_RULE) or name == "num_generations" for name in known):
        return {}
    generation = known.get("generation_kwargs")
    asked = {**known, **(generation if isinstance(generation, Mapping) else {})}
    config: dict[str, Any] = {
        section: {name: asked[name] for name in names if asked.get(name) is not None}
        for section, names in _SECTIONS.items()
    }
    if known.get("temperature") is not None:
        config["sampling"]["scoring_temperature"] = known["temperature"]
    if "use_vllm" in known:
        mode = known.get("vllm_mode", "unknown")
        config["engine"] = {"vllm_mode": mode if known["use_vllm"] is not False else "not used"}
    config["correction"] = _correction(known)
    return {section: part for section, part in config.items() if part}


def _correction(known: Mapping[str, Any]) -> dict[str, Any]:
    """The rule, as the run config has it."""
    mode = known.get(f"{_RULE}mode")
    enabled = known.get(f"{_RULE}correction")
    if enabled is False:
        return {"enabled": False}
    if not isinstance(mode, str) or mode.count("_") != 1:
        return {}
    level, action = mode.split("_")
    upper = known.get(f"{_RULE}clip_max", known.get(f"{_RULE}cap"))
    rule = {"mode": mode, "level": level, "action": action, "lower": known.get(f"{_RULE}clip_min"), "upper": upper}
    return {"enabled": True, **{name: "none" if value is None else value for name, value in rule.items()}}


def _value(value: Any) -> Any:
    """A value that a tracker may have kept as text."""
    if not isinstance(value, str):
        return value
    plain = {"None": None, "True": True, "False": False}
    if value in plain:
        return plain[value]
    try:
        return json.loads(value)
    except ValueError:
        return value
