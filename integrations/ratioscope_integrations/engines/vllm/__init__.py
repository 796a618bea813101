"""vLLM: what it generated as tensors, and what it was configured with.

vLLM is never imported. It is asked over the network by ``server_settings_from`` alone, which you call yourself.
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
