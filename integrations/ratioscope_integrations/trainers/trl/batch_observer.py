"""Recording the batches of a TRL trainer: generated ones, or micro-batches of the loss where only it has both sides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ratioscope_integrations.trainers.trl import reading
from ratioscope_integrations.trainers.trl.attachment import GENERATES, QUEUE, report, wrap
from ratioscope_integrations.trainers.trl.batches import completions_left_to_loss, from_generated
from ratioscope_integrations.trainers.trl.loss import LossReader, split_of
from ratioscope_integrations.trainers.trl.noise_floor import NoiseFloor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratioscope.recording.recorder import Recorder
    from ratioscope_integrations.trainers.trl.batches import TrlBatch


class BatchObserver:
    """Records each batch of a trainer, once.

    Args:
        trainer: the trainer, whose generation, scoring and loss are wrapped.
        recorder: receives the batches.
        noise_floor: generations per measurement of the noise floor; 0 for none.
        on_batch: called after each batch, with None if the ratio is unavailable.

    Attributes:
        noise_floor: measures the noise floor.
    """

    def __init__(
        self, trainer: Any, recorder: Recorder, *, noise_floor: int, on_batch: Callable[[TrlBatch | None], None]
    ) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._on_batch = on_batch
        self.noise_floor = NoiseFloor(trainer, recorder, every=noise_floor)
        self._loss = LossReader(trainer, self._on_micro_batch, incidents=recorder.incidents)
        if hasattr(trainer, QUEUE) and not hasattr(trainer, GENERATES):
            self._loss.expect(math.inf, "train")
        elif not wrap(trainer, GENERATES, self._around_generation):
            message = f"{type(trainer).__name__} has no {GENERATES}; its batches cannot be observed"
            report(recorder, f"no {GENERATES}", message)

    def _around_generation(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        split = split_of(self._trainer)
        with self.noise_floor.generation(split):
            generated = original(*args, **kwargs)
        batch = None
        with self._recorder.incidents.guard("observing a batch"):
            batch = self._observe(generated, split)
        if not self._loss.expects(split):
            self._on_batch(batch)
        return generated

    def _observe(self, generated: Mapping[str, Any], split: str) -> TrlBatch | None:
        remaining = completions_left_to_loss(generated)
        self._loss.expect(remaining, split)
        if remaining:
            return None
        batch = from_generated(generated)
        if batch is None:
            report(self._recorder, "no ratio", reading.why_no_ratio(self._trainer, generated))
        else:
            self._record(batch, split)
            self.noise_floor.observe(batch.train_logps, batch.mask)
        return batch

    def _on_micro_batch(self, batch: TrlBatch | None, split: str, inputs: Mapping[str, Any]) -> None:
        with self._recorder.incidents.guard("observing a batch"):
            if batch is None:
                report(self._recorder, "no ratio", reading.why_no_ratio_in_loss(self._trainer, inputs))
            else:
                self._record(batch, split)
                if self.noise_floor.every:
                    self.noise_floor.give_up("the trainer scores in its loss alone")
        self._on_batch(batch)

    def _record(self, batch: TrlBatch, split: str) -> None:
        reason = reading.why_not_applied(self._trainer, batch)
        if reason is not None:
            report(self._recorder, "no correction", reason)
        self._recorder.observe(
            batch.train_logps,
            batch.rollout_logps,
            batch.mask,
            advantages=batch.advantages,
            token_ids=batch.token_ids,
            applied=batch.applied,
            packing=batch.packing,
            split=split,
        )
