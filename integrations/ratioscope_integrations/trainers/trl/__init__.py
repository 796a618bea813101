"""TRL's GRPO trainers: the callback and the ways to attach it."""

from __future__ import annotations

from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from ratioscope_integrations.trainers.trl.report_to import enable

__all__ = ["RatioscopeCallback", "enable"]
