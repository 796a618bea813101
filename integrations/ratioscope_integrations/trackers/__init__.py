"""Trackers, one file each; a backend is imported when its tracker is opened and not before."""

from __future__ import annotations
