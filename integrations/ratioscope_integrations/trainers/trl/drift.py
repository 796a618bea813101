"""Drift of a TRL trainer's policy: the loss's log-probabilities against those of before the step.

The loss scores each micro-batch anyway, and the generated batch has the log-probabilities of when it was scored, so no
forward pass is added.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from ratioscope_integrations.trainers.trl.attachment import report
from ratioscope_integrations.trainers.trl.batches import OLD_LOGPS
from ratioscope_integrations.trainers.trl.loss import LossReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.recording.recorder import Recorder
    from ratioscope_integrations.trainers.trl.batches import TrlBatch

_CLIPS_TOKENS = ("grpo", "bnpo", "dr_grpo", "dapo")
"""Losses that keep each token's own ratio between 1 - epsilon and 1 + epsilon_high."""


def record_drift(trainer: Any, recorder: Recorder) -> None:
    """Records the drift of each micro-batch that is trained on.

    Args:
        trainer: the trainer, whose loss and scoring are wrapped.
        recorder: receives the log-probabilities.
    """
    observe = functools.partial(_observe, trainer, recorder)
    LossReader(trainer, observe, incidents=recorder.incidents).expect(math.inf, "train")


def _observe(trainer: Any, recorder: Recorder, batch: TrlBatch | None, split: str, inputs: Mapping[str, Any]) -> None:
    old, reason = inputs.get(OLD_LOGPS), None
    if old is None:
        reason = f"its loss gets no {OLD_LOGPS}, as where it is on-policy by definition"
    elif batch is None:
        reason = f"the log-probabilities that the loss of {type(trainer).__name__} computes cannot be read"
    else:
        with recorder.incidents.guard("observing drift"):
            clip = _clip_range(trainer)
            recorder.observe_drift(batch.train_logps, old, batch.mask, epsilon=clip, split=split)
    if reason is not None:
        report(recorder, "no drift", f"the drift cannot be measured: {reason}")


def _clip_range(trainer: Any) -> tuple[float, float] | None:
    """Returns how far below and above 1 the loss clips the ratio of a token; None if it does not clip tokens."""
    low, high = (getattr(trainer, f"epsilon_{side}", None) for side in ("low", "high"))
    is_by_token = getattr(trainer, "importance_sampling_level", "token") == "token"
    clips = is_by_token and getattr(trainer, "loss_type", None) in _CLIPS_TOKENS
    return (low, high) if clips and low is not None and high is not None else None
