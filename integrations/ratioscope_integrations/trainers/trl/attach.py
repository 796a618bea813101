"""Automatic attachment to GRPO trainers, for ``ratioscope run`` and ``GRPOConfig(report_to=["ratioscope"])``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import integration_utils

from ratioscope.incidents import log
from ratioscope_integrations.trainers.trl.attachment import Attachment, is_attached, is_grpo, wrap
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

NAME = "ratioscope"
"""Name in ``GRPOConfig(report_to=[...])`` after :func:`enable`."""


def attach_all(transformers_trainer: ModuleType, options: Mapping[str, Any]) -> None:
    """Makes every GRPO trainer attach a callback when it is first used.

    Args:
        transformers_trainer: the module ``transformers.trainer``.
        options: arguments of :class:`ratioscope_integrations.trainers.trl.callback.RatioscopeCallback`.
    """

    def attach(trainer: Any) -> None:
        trainer.add_callback(RatioscopeCallback(trainer, **options))

    _attach_before_use(transformers_trainer.Trainer, attach)


def enable() -> None:
    """Registers ``"ratioscope"`` for ``GRPOConfig(report_to=[...])``, for the rest of the process.

    A ``GRPOTrainer`` whose ``report_to`` has the name attaches a :class:`RatioscopeCallback` when it is built. A GRPO
    trainer of a library that replaces TRL's class attaches one when it is first used. Repeated calls change nothing.
    """
    from trl import GRPOTrainer

    if NAME in integration_utils.INTEGRATION_TO_CALLBACK:
        return
    integration_utils.INTEGRATION_TO_CALLBACK[NAME] = _Placeholder
    wrap(GRPOTrainer, "__init__", _initialize)
    _attach_before_use(Trainer, _attach_if_requested)


def _initialize(original: Callable[..., None], trainer: Any, *args: Any, **kwargs: Any) -> None:
    original(trainer, *args, **kwargs)
    _attach_if_requested(trainer)


def _attach_if_requested(trainer: Any) -> None:
    if NAME in (trainer.args.report_to or ()):
        trainer.remove_callback(_Placeholder)
        trainer.add_callback(RatioscopeCallback(trainer))


def _attach_before_use(trainer_class: Any, attach: Callable[[Any], None]) -> None:
    """Makes GRPO trainers without an attachment call ``attach`` before they train, evaluate or predict."""
    for name in ("train", "evaluate", "predict"):
        wrap(trainer_class, name, functools.partial(_use, attach))


def _use(attach: Callable[[Any], None], original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    if is_grpo(trainer) and not is_attached(trainer):
        try:
            attach(trainer)
        except Exception as error:
            Attachment(None).mark(trainer)
            log.warning("could not be attached and records nothing: %r", error)
        name = original.__name__
        if is_attached(trainer) and name in vars(trainer):  # the callback has wrapped the method and must see this call
            return getattr(trainer, name)(*args, **kwargs)
    return original(trainer, *args, **kwargs)


class _Placeholder(TrainerCallback):
    """Reserves a place in the trainer's list of reporters until the callback, which needs the trainer, can be made."""
