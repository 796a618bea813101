"""Attachment of ratioscope to a trainer: wrapped methods, and the mark that prevents a second attachment."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratioscope.recording.ranks import is_main_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratioscope.recording.recorder import Recorder

GENERATES = "_generate_and_score_completions"
"""Method that returns the observed batches. It identifies a GRPO trainer: some are no subclass of TRL's own."""

QUEUE = "rollout_queue"
"""Attribute of a trainer that takes its rollouts from a queue and scores them only in the loss."""

_MARK = "_ratioscope"


@dataclass(frozen=True)
class Attachment:
    """Marks a trainer that ratioscope has attached to, or has failed to attach to.

    Attributes:
        recorder: records the trainer's batches; None if attaching failed, which is not tried again.
    """

    recorder: Recorder | None

    def mark(self, trainer: Any) -> None:
        """Stores the attachment on the trainer."""
        setattr(trainer, _MARK, self)


def is_attached(trainer: Any) -> bool:
    """Returns whether a trainer has an :class:`Attachment`, that of a failure included."""
    return _MARK in vars(trainer)


def is_grpo(trainer: Any) -> bool:
    """Returns whether a trainer has batches that can be observed."""
    return hasattr(trainer, GENERATES) or hasattr(trainer, QUEUE)


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> bool:
    """Replaces a method by one that calls ``around(original, *args, **kwargs)``.

    Args:
        owner: a trainer, or a class, whose instance is then the first of the arguments.
        name: the method.
        around: receives the original method and the arguments of the call.

    Returns:
        False if the owner has no such method; nothing is replaced then.
    """
    original = getattr(owner, name, None)
    if not callable(original):
        return False
    wrapped = _function_around(original, around) if isinstance(owner, type) else Wrapped(original, around)
    setattr(owner, name, wrapped)
    return True


class Wrapped:
    """Method of one trainer that calls ``around(original, *args, **kwargs)``.

    Of a function, a copy of the trainer would get the same one, which calls the original trainer. This object is copied
    and pickled with its trainer.

    Args:
        original: the bound method, or an earlier wrapper of it.
        around: receives it and the arguments of the call.
    """

    def __init__(self, original: Callable[..., Any], around: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original, updated=())
        self._original = original
        self._around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapper."""
        return self._around(self._original, *args, **kwargs)


def _function_around(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    return wrapper


def report(recorder: Recorder, kind: str, message: str) -> None:
    """Logs a message once, on rank 0 only: the cause is the same on every rank."""
    if is_main_rank():
        recorder.incidents.report(kind, message)
