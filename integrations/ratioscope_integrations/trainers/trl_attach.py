"""Attaching to whatever GRPO trainer a program builds: what ``ratioscope run`` does for TRL."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

logger = logging.getLogger("ratioscope")

_GENERATES = "_generate_and_score_completions"
"""The method that the callback watches. It tells a GRPO trainer, not a class: some are no subclass of TRL's own."""


def attach_all(transformers_trainer: ModuleType, options: Mapping[str, Any]) -> None:
    """Has every GRPO trainer attach a callback when it is first used.

    Args:
        transformers_trainer: the module ``transformers.trainer``.
        options: arguments of :class:`ratioscope_integrations.trainers.trl.RatioscopeCallback`.
    """
    for name in ("train", "evaluate", "predict"):
        _attach_before(transformers_trainer.Trainer, name, options)


def _attach_before(trainer_class: Any, name: str, options: Mapping[str, Any]) -> None:
    original: Callable[..., Any] = getattr(trainer_class, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(self, _GENERATES) and getattr(self, "_ratioscope", None) is None:
            _attach(self, options)
            if name in vars(self):  # the callback wraps this very method, and is to see this very call
                return getattr(self, name)(*args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(trainer_class, name, method)


def _attach(trainer: Any, options: Mapping[str, Any]) -> None:
    try:
        from ratioscope_integrations.trainers.trl import RatioscopeCallback

        trainer.add_callback(RatioscopeCallback(trainer, **options))
    except Exception as error:
        trainer._ratioscope = False  # not once more at each call
        logger.warning("ratioscope could not be attached and records nothing: %r", error)
