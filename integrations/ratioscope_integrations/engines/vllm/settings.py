"""What a vLLM engine was configured with, read off the live engine or off a server's own description.

vLLM is never imported and never asked over the network here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ratioscope.config.lookup import UNKNOWN, lookup
from ratioscope.config.snapshot import versions

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RESHAPING", "SAMPLING", "engine_settings", "sampling_settings", "server_settings"]

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling settings that are always recorded."""

RESHAPING: Mapping[str, Any] = {
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
"""Where a ``VllmConfig`` (vLLM 0.31) holds each setting."""


def engine_settings(llm: Any) -> dict[str, Any]:
    """Returns the settings of an engine that lives in this process.

    Args:
        llm: a ``vllm.LLM``, or anything shaped like one; None if there is none.

    Returns:
        ``vllm_version`` and one entry for each setting that bears on log-probabilities; ``"unknown"`` for what the
        engine does not tell, ``"none"`` for a feature that is off.
    """
    vllm_config = lookup(llm, "llm_engine.vllm_config")
    if vllm_config is None or vllm_config == UNKNOWN:
        vllm_config = lookup(llm, "llm_engine")
    settings = _settings(vllm_config)
    return settings if llm is None else {**settings, "vllm_version": _installed_version()}


def server_settings(server_info: Any) -> dict[str, Any]:
    """Returns the settings of an engine behind a server.

    Args:
        server_info: the ``vllm_config`` tree that the server's ``/server_info`` answered earlier; None if it was
            never asked.

    Returns:
        The same entries as ``engine_settings``. The version is unknown: the package installed here is not the
        server's.
    """
    return _settings(server_info)


def sampling_settings(params: Any, *, scoring_temperature: float | None = None) -> dict[str, Any]:
    """Returns what tokens were sampled with, as a loop of your own passes it to vLLM.

    Args:
        params: a ``vllm.SamplingParams``, or anything shaped like one.
        scoring_temperature: the temperature that your loop divides its logits by; None if it does not, which is 1.

    Returns:
        The section ``sampling`` of a run config, by which ``ratioscope diagnose`` tells settings that bias the ratio.
    """
    found = {name: lookup(params, name) for name in SAMPLING}
    neutral: dict[str, tuple[Any, ...]] = {name: (None, UNKNOWN, value, [], {}) for name, value in RESHAPING.items()}
    return {
        **found,
        "scoring_temperature": 1.0 if scoring_temperature is None else scoring_temperature,
        "overridden": [],
        "reshaped_by": sorted(name for name, values in neutral.items() if lookup(params, name) not in values),
    }


def _settings(vllm_config: Any) -> dict[str, Any]:
    """Reads every setting off a ``VllmConfig`` or the JSON tree of one."""
    found = {name: lookup(vllm_config, path) for name, path in _PATHS.items()}
    found["dtype"] = _dtype(found["dtype"])
    found["kv_cache_dtype"] = _dtype(found["kv_cache_dtype"])
    found["speculative_decoding"] = _speculative(found["speculative_decoding"])
    if found["quantization"] is None:
        found["quantization"] = "none"
    return {"vllm_version": UNKNOWN, **{name: UNKNOWN if value is None else value for name, value in found.items()}}


def _dtype(value: Any) -> Any:
    """Returns a dtype's name without the library it comes from."""
    return value if value is None else str(value).removeprefix("torch.")


def _speculative(value: Any) -> Any:
    """Returns the method and the draft length as one text, such as ``"eagle3, 4 tokens"``."""
    if value is None:
        return "none"
    if value == UNKNOWN:
        return UNKNOWN
    return f"{lookup(value, 'method')}, {lookup(value, 'num_speculative_tokens')} tokens"


def _installed_version() -> str:
    """Returns the version of the vLLM in this process."""
    loaded = getattr(sys.modules.get("vllm"), "__version__", None)
    return loaded if isinstance(loaded, str) else versions().get("vllm", UNKNOWN)
