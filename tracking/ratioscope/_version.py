"""The one place where the version stands."""

from __future__ import annotations

__version__ = "0.1.0"
