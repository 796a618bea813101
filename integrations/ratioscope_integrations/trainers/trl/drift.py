"""The drift of a TRL trainer's policy: the loss's log-probabilities against those of before the step.

The loss scores each micro-batch anyway, and the generated batch brings what the policy said when it was scored, so no
forward pass is added.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ratioscope.recording.ranks import is_main_rank
from ratioscope_integrations.trainers.trl.batches import InLoss, Sides

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratioscope.recording.recorder import Recorder

OLD = "old_per_token_logps"

_CLIPS_TOKENS = ("grpo", "bnpo", "dr_grpo", "dapo")
"""Losses that keep each token's own ratio between 1 - epsilon and 1 + epsilon_high."""


class Drift:
    """Observes the drift of each micro-batch that is trained on.

    Args:
        trainer: the trainer, whose loss and scoring are wrapped.
        recorder: receives what is read.
        split: tells the split of what the trainer is at.
    """

    def __init__(self, trainer: Any, recorder: Recorder, *, split: Callable[[], str]) -> None:
        self._trainer = trainer
        self._recorder = recorder
        InLoss(trainer, self._saw, split=split, incidents=recorder.incidents).expect(math.inf, "train")

    def _saw(self, sides: Sides | None, split: str, inputs: Mapping[str, Any]) -> None:
        old = inputs.get(OLD)
        if old is None:
            self._say(f"its loss gets no {OLD}, as where it is on-policy by definition")
        elif sides is None:
            self._say(f"the log-probabilities that the loss of {type(self._trainer).__name__} computes cannot be read")
        else:
            with self._recorder.incidents.guard("observing drift"):
                clip = _clip_range(self._trainer)
                self._recorder.observe_drift(sides.train, old, sides.mask, epsilon=clip, split=split)

    def _say(self, why: str) -> None:
        if is_main_rank():
            self._recorder.incidents.report("no drift", f"the drift cannot be told: {why}")


def _clip_range(trainer: Any) -> tuple[float, float] | None:
    """How far below and above 1 the loss clips the ratio of a token; None where it does not."""
    low, high = (getattr(trainer, f"epsilon_{side}", None) for side in ("low", "high"))
    of_tokens = getattr(trainer, "importance_sampling_level", "token") == "token"
    clips = of_tokens and getattr(trainer, "loss_type", None) in _CLIPS_TOKENS
    return (low, high) if clips and low is not None and high is not None else None
