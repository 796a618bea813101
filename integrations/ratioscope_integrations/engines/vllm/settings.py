"""Settings of a vLLM engine, read from the live engine or from a server's description of itself.

vLLM is never imported, and this module uses no network.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ratioscope.config.lookup import UNKNOWN, is_unknown, lookup
from ratioscope.config.snapshot import versions

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SAMPLING", "engine_settings", "sampling_settings", "server_settings"]

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling settings that are always recorded."""

_RESHAPING: Mapping[str, Any] = {
    "allowed_token_ids": None,
    "bad_words": None,
    "frequency_penalty": 0,
    "guided_decoding": None,
    "logit_bias": None,
    "logits_processors": None,
    "min_tokens": 0,
    "presence_penalty": 0,
    "structured_outputs": None,
    "typical_p": 1,
}
"""Further sampling settings that change the sampled distribution, each with its neutral value."""

_PATHS = {
    "dtype": "model_config.dtype",
    "quantization": "model_config.quantization",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "logprobs_mode": "model_config.logprobs_mode",
    "prefix_caching": "cache_config.enable_prefix_caching",
    "speculative_decoding": "speculative_config",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "sleep_mode": "model_config.enable_sleep_mode",
    "model_impl": "model_config.model_impl",
    "enforce_eager": "model_config.enforce_eager",
    "returns_routed_experts": "aux_output_config.enable_return_routed_experts",
}
"""Path of each setting in a ``VllmConfig`` (vLLM 0.31)."""


def engine_settings(llm: Any) -> dict[str, Any]:
    """Returns the settings of an engine in this process.

    Args:
        llm: a ``vllm.LLM``, or an object with its attributes; None if there is none.

    Returns:
        ``vllm_version`` and one entry for each setting that affects log-probabilities; ``"unknown"`` for a setting
        that the engine does not have, ``"none"`` for a feature that is off.
    """
    vllm_config = lookup(llm, "llm_engine.vllm_config")
    if vllm_config is None or is_unknown(vllm_config):
        vllm_config = lookup(llm, "llm_engine")
    settings = server_settings(vllm_config)
    return settings if llm is None else {**settings, "vllm_version": _installed_version()}


def server_settings(server_info: Any) -> dict[str, Any]:
    """Returns the settings of an engine behind a server.

    Args:
        server_info: the ``vllm_config`` tree of an earlier answer to ``/server_info``; None without one.

    Returns:
        The entries of ``engine_settings``. The version is unknown: the package installed here is not the server's.
    """
    settings = {name: lookup(server_info, path) for name, path in _PATHS.items()}
    for name in ("dtype", "kv_cache_dtype"):
        if settings[name] is not None:
            settings[name] = str(settings[name]).removeprefix("torch.")
    if settings["quantization"] is None:
        settings["quantization"] = "none"
    settings["speculative_decoding"] = _speculative(settings["speculative_decoding"])
    return {"vllm_version": UNKNOWN, **{name: UNKNOWN if value is None else value for name, value in settings.items()}}


def sampling_settings(params: Any, *, scoring_temperature: float | None = None) -> dict[str, Any]:
    """Returns the sampling settings of your own loop.

    Args:
        params: a ``vllm.SamplingParams``, or an object with its attributes.
        scoring_temperature: the temperature that your loop divides its logits by; None if it does not, which is 1.

    Returns:
        The section ``sampling`` of a run config, in which ``ratioscope diagnose`` finds settings that bias the ratio.
    """
    settings = {name: lookup(params, name) for name in SAMPLING}
    neutral: dict[str, tuple[Any, ...]] = {name: (None, UNKNOWN, value, [], {}) for name, value in _RESHAPING.items()}
    return {
        **settings,
        "scoring_temperature": 1.0 if scoring_temperature is None else scoring_temperature,
        "overridden": [],
        "reshaped_by": sorted(name for name, values in neutral.items() if lookup(params, name) not in values),
    }


def _speculative(value: Any) -> Any:
    """Describes speculative decoding by its method and draft length, such as ``"eagle3, 4 tokens"``."""
    if value is None or is_unknown(value):
        return value or "none"
    return f"{lookup(value, 'method')}, {lookup(value, 'num_speculative_tokens')} tokens"


def _installed_version() -> str:
    """Returns the version of the vLLM in this process."""
    loaded = getattr(sys.modules.get("vllm"), "__version__", None)
    return loaded if isinstance(loaded, str) else versions().get("vllm", UNKNOWN)
