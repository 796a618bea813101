"""verl: a recorder for its rollout correction."""

from __future__ import annotations

from ratioscope_integrations.trainers.verl.recorder import VerlRecorder
from ratioscope_integrations.trainers.verl.settings import correction_from, mode_of
from ratioscope_integrations.trainers.verl.tracking import report_to_of

__all__ = ["VerlRecorder", "correction_from", "mode_of", "report_to_of"]
