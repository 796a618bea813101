"""trackio: its tracker and a reader of its database."""

from __future__ import annotations

from ratioscope_integrations.trackers.trackio.tracker import TrackioTracker

__all__ = ["TrackioTracker"]
