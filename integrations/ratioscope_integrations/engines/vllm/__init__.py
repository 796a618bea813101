"""vLLM: its outputs as tensors, and its settings.

vLLM is never imported. Only ``server_settings_from``, which you call yourself, uses the network.
"""

from __future__ import annotations

from ratioscope_integrations.engines.vllm.outputs import KINDS, Rollout, from_outputs
from ratioscope_integrations.engines.vllm.server import server_settings_from
from ratioscope_integrations.engines.vllm.settings import engine_settings, sampling_settings, server_settings

__all__ = [
    "KINDS",
    "Rollout",
    "engine_settings",
    "from_outputs",
    "sampling_settings",
    "server_settings",
    "server_settings_from",
]
