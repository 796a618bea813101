"""``"ratioscope"`` as a name in ``GRPOConfig(report_to=[...])``."""

from __future__ import annotations

import functools
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import integration_utils

from ratioscope_integrations.trainers.trl.attach import attach_before

NAME = "ratioscope"
"""The name in ``GRPOConfig(report_to=[...])`` after :func:`enable`."""


def enable() -> None:
    """Makes ``"ratioscope"`` a name that ``GRPOConfig(report_to=[...])`` knows, for the rest of the process.

    A ``GRPOTrainer`` whose ``report_to`` has it attaches a :class:`RatioscopeCallback` by itself; any other GRPO
    trainer, as of a library that replaces TRL's class, does when it is first used. Calling it again changes nothing.
    """
    from trl import GRPOTrainer

    if NAME in integration_utils.INTEGRATION_TO_CALLBACK:
        return
    integration_utils.INTEGRATION_TO_CALLBACK[NAME] = _Placeholder
    original = GRPOTrainer.__init__

    @functools.wraps(original)
    def attach(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _is_asked(self):
            _attach(self)

    GRPOTrainer.__init__ = attach  # type: ignore[method-assign]
    for name in ("train", "evaluate", "predict"):
        attach_before(Trainer, name, _attach, only=_is_asked)


def _is_asked(trainer: Any) -> bool:
    return NAME in (trainer.args.report_to or ())


def _attach(trainer: Any) -> None:
    from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback

    trainer.remove_callback(_Placeholder)
    trainer.add_callback(RatioscopeCallback(trainer))


class _Placeholder(TrainerCallback):
    """Stands in the trainer's list of reporters until the callback that needs the trainer can be made."""
