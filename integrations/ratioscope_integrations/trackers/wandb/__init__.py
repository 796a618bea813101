"""Weights & Biases: its tracker, panels, and a reader of stored runs."""

from __future__ import annotations

from ratioscope_integrations.trackers.wandb.tracker import WandbTracker

__all__ = ["WandbTracker"]
