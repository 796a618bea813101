"""TRL's GRPO trainers: the callback and the ways to attach it."""

from __future__ import annotations

from ratioscope_integrations.trainers.trl.attach import enable
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback

__all__ = ["RatioscopeCallback", "enable"]
