"""Trackers, one file or folder per backend. A backend's package is imported when its tracker is opened."""

from __future__ import annotations
