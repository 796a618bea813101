"""Reads a setting by its dotted path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNKNOWN = "unknown"
"""Recorded for a setting that exists and cannot be read."""


def lookup(root: Any, path: str) -> Any:
    """Reads a dotted path from an object, through attributes and mappings.

    Args:
        root: the object at which the path begins.
        path: names joined by dots, such as ``"llm_engine.vllm_config.model_config"``.

    Returns:
        The value, None included, or ``UNKNOWN`` if a step is missing or raises.
    """
    value = root
    for name in path.split("."):
        try:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        except Exception:
            return UNKNOWN
    return value


def is_unknown(value: Any) -> bool:
    """Returns whether a setting read by :func:`lookup` is missing or unreadable.

    The type is checked first: comparing a tensor or an array with a text gives no single bool.
    """
    return isinstance(value, str) and value == UNKNOWN
