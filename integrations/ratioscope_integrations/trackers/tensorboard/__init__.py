"""TensorBoard: its tracker and a reader of event files."""

from __future__ import annotations

from ratioscope_integrations.trackers.tensorboard.tracker import TensorBoardTracker

__all__ = ["TensorBoardTracker"]
