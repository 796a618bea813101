"""Versions of the package and of the metrics' definitions (single source)."""

from __future__ import annotations

__version__ = "0.1.0"

DEFINITIONS_VERSION = 1
"""Version of the metrics' definitions; two records are comparable if theirs are equal."""
