"""MLflow: its tracker, panels, and a reader of stored runs."""

from __future__ import annotations

from ratioscope_integrations.trackers.mlflow.tracker import MlflowTracker

__all__ = ["MlflowTracker"]
