"""Flattens a nested config to dotted names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of a nested config by their dotted paths, in the config's order.

    Args:
        config: nested mappings. Anything that is not a non-empty mapping is a leaf: numbers, texts, lists, ``{}``.
        prefix: first part of each path; empty for none.
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, path)
        else:
            flat[path] = value
    return flat
