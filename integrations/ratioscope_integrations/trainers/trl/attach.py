"""Attaching to whatever GRPO trainer a program builds: what ``ratioscope run`` does for TRL."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from ratioscope_integrations.trainers.trl.batches import GENERATES, QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

logger = logging.getLogger("ratioscope")


def attach_all(transformers_trainer: ModuleType, options: Mapping[str, Any]) -> None:
    """Has every GRPO trainer attach a callback when it is first used.

    Args:
        transformers_trainer: the module ``transformers.trainer``.
        options: arguments of :class:`ratioscope_integrations.trainers.trl.callback.RatioscopeCallback`.
    """
    for name in ("train", "evaluate", "predict"):
        attach_before(transformers_trainer.Trainer, name, functools.partial(_attach, options))


def attach_before(
    trainer_class: Any,
    name: str,
    attach: Callable[[Any], None],
    *,
    only: Callable[[Any], bool] = lambda trainer: True,
) -> None:
    """Has every GRPO trainer without a callback attach one before a method of its runs.

    Args:
        trainer_class: whose method it is.
        name: the method.
        attach: called with the trainer. If it fails there is a warning, and no other try.
        only: which trainers it is for.
    """
    original: Callable[..., Any] = getattr(trainer_class, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_grpo = hasattr(self, GENERATES) or hasattr(self, QUEUE)
        if is_grpo and getattr(self, "_ratioscope", None) is None and only(self):
            _try(attach, self)
            if name in vars(self):  # the callback wraps this very method, and is to see this very call
                return getattr(self, name)(*args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(trainer_class, name, method)


def _try(attach: Callable[[Any], None], trainer: Any) -> None:
    try:
        attach(trainer)
    except Exception as error:
        trainer._ratioscope = False  # not once more at each call
        logger.warning("ratioscope could not be attached and records nothing: %r", error)


def _attach(options: Mapping[str, Any], trainer: Any) -> None:
    from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback

    trainer.add_callback(RatioscopeCallback(trainer, **options))
