"""TRL: one line attaches ratioscope to a GRPOTrainer.

The trainer's own ``_generate_and_score_completions`` is wrapped to see each generated batch, and its ``log`` to put
scalars into ``logs`` before any reporter runs. Ranks merge at points that all of them reach whatever the data: the
end of an optimizer step that will be logged, and the end of an evaluation loop.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from ratioscope.recording.ranks import is_main_rank
from ratioscope.recording.recorder import Recorder
from ratioscope_integrations.trainers.trl import batches, reading
from ratioscope_integrations.trainers.trl.drift import Drift
from ratioscope_integrations.trainers.trl.noise_floor import DEFAULT_EVERY, NoiseFloor
from ratioscope_integrations.trainers.trl.report_to import enable
from ratioscope_integrations.trainers.trl.settings import config_warnings, trl_sections
from ratioscope_integrations.trainers.trl.warnings import CONFIG_FINDINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from ratioscope.alerts.reaction import OnFinding
    from ratioscope.record import Record
    from ratioscope.trackers.registry import ReportTo

__all__ = ["RatioscopeCallback", "enable"]


class RatioscopeCallback(TrainerCallback):
    """Records the importance-sampling correction of a TRL ``GRPOTrainer``.

    Example:
        >>> trainer.add_callback(RatioscopeCallback(trainer))  # doctest: +SKIP

    Args:
        trainer: the trainer to attach to.
        report_to: trackers for histograms and further scalars, as for :class:`ratioscope.Recorder`; None follows
            ``args.report_to``. The scalars of the headline set reach every reporter of the trainer in any case.
        detail: which scalars trackers receive: ``"headline"``, ``"standard"`` or ``"full"``.
        config: what else is to be kept beside the run. Secrets are redacted.
        relay: also keep and deliver the trainer's own log (loss, reward, everything) and arguments, so that with
            ``args.report_to="none"`` there is a whole run that no outage can end.
        close_timeout: seconds to wait at the end for what trackers have not received yet; the journal keeps it.
        noise_floor: also measure how far the trainer is from itself: a number N scores one generated batch in N once
            more, the first among them; True stands for 10. It costs that forward pass.
        drift: also record how far the policy has moved since it scored the batch, from the log-probabilities that the
            loss computes anyway.
        token_texts: keep the texts of each window's worst tokens and their neighbours, as the trainer's tokenizer
            decodes them, in the journal and in trackers; with False their ids only.
        on_finding: what the training does about what the diagnosis finds meanwhile: None for nothing, ``"warn"`` for a
            Python warning, ``"stop"`` to end it on all ranks at the same step at an error of high confidence, or a
            callable of one event on rank 0, which returns True to end it.

    Attributes:
        recorder: the recorder behind it.

    Raises:
        ValueError: if a tracker's name, the detail or ``on_finding`` is unknown.
        ImportError: if a named tracker's package is missing.
    """

    def __init__(
        self,
        trainer: Any,
        report_to: ReportTo = None,
        *,
        detail: str = "standard",
        config: Mapping[str, Any] | None = None,
        relay: bool = False,
        close_timeout: float = 10.0,
        noise_floor: bool | int = False,
        drift: bool = False,
        token_texts: bool = True,
        on_finding: OnFinding = None,
    ) -> None:
        self._trainer = trainer
        self._relays = relay
        followed = report_to is None
        self.recorder = Recorder(
            report_to=reading.followed(trainer.args.report_to) if followed else report_to,
            config=config,
            output_dir=trainer.args.output_dir,
            run_name=getattr(trainer.args, "run_name", None),
            detail=detail,
            close_timeout=close_timeout,
            decode=reading.tokenizer(trainer) if token_texts else None,
            on_finding=on_finding,
        )
        self._warned = False
        self._pending: dict[str, Record] = {}
        self._restored_step: int | None = None
        with self.recorder.incidents.guard("reading the correction from the trainer's config"):
            self.recorder.correction = reading.rule(trainer)
        if getattr(trainer, "_ratioscope", None) is not None:
            self._say("attached twice", "this trainer already has a RatioscopeCallback; the second one does nothing")
            return
        trainer._ratioscope = self
        self._noise = NoiseFloor(
            trainer, self.recorder, every=DEFAULT_EVERY if noise_floor is True else max(int(noise_floor), 0)
        )
        self._loss = batches.InLoss(trainer, self._saw_in_loss, split=self._split, incidents=self.recorder.incidents)
        if hasattr(trainer, batches.QUEUE) and not hasattr(trainer, batches.GENERATES):
            self._loss.expect(math.inf, "train")
        else:
            self._wrap(batches.GENERATES, self._around_generation)
        if drift:
            Drift(trainer, self.recorder, split=self._split)
        self._wrap("evaluation_loop", self._around_evaluation)
        self._wrap("log", self._around_log)
        self._wrap("train", self._around_training)
        if followed and not self.recorder.tracker_names:
            self._say(
                "no tracker", "report_to names no tracker, so scalars go to trainer_state.json and the console only"
            )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Warns of settings that bias the ratio, before time is spent on them."""
        self._restored_step = state.global_step
        self.recorder.start_anew()
        with self.recorder.incidents.guard("checking the run config"):
            for warning in config_warnings(trl_sections(self._trainer)) if is_main_rank() else ():
                self._say(warning, warning)
                self._warned = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Merges ranks where the step will be logged, and ends the training if it is to; every rank comes by here."""
        if control.should_log or state.global_step >= state.max_steps:
            self._merge("train")
        if self.recorder.should_stop:
            control.should_training_stop = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Attaches to runs that a reporter opened only now, as in an evaluation without training."""
        if self.recorder.is_open:
            self.recorder.open()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sends what no log carried and ends the runs that we opened."""
        self._merge("train")
        for split in tuple(self._pending):
            self.recorder.write(self._pending.pop(split))
        self.recorder.close()
        self._restored_step = None  # an evaluation that follows repeats no step

    def _say(self, kind: str, message: str) -> None:
        """Says once what is alike on every rank."""
        if is_main_rank():
            self.recorder.incidents.report(kind, message)

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        original = getattr(self._trainer, name, None)
        if original is None:
            self._say(f"no {name}", f"{type(self._trainer).__name__} has no {name}; its batches cannot be observed")
            return

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(self._trainer, name, wrapper)

    def _around_generation(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        split = self._split()
        with self._noise.generation(split):
            batch = original(*args, **kwargs)
        sides = None
        with self.recorder.incidents.guard("observing a batch"):
            sides = self._observe(batch, split)
        if not self._loss.expects(split):
            self._open(sides)
        return batch

    def _saw_in_loss(self, sides: batches.Sides | None, split: str, inputs: Mapping[str, Any]) -> None:
        with self.recorder.incidents.guard("observing a batch"):
            self._record(sides, split, lambda: reading.why_not_in_loss(self._trainer, inputs))
        self._open(sides)

    def _open(self, sides: batches.Sides | None) -> None:
        with self.recorder.incidents.guard("opening trackers"):
            if is_main_rank() and not self.recorder.is_open:
                self.recorder.open(
                    reporters=reading.reporters(self._trainer),
                    sections=reading.sections(self._trainer, sides, arguments=self._relays)
                    | ({"recorder": {"noise_floor": self._noise.every}} if self._noise.every else {}),
                    restored_step=self._restored_step,
                    already_logged=CONFIG_FINDINGS if self._warned else (),
                )

    def _around_training(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except BaseException:  # an interrupt too: what is known is sent, and the journal is free for another try
            self.recorder.close()
            raise

    def _around_evaluation(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        self._merge("eval")
        return output

    def _around_log(self, original: Callable[..., Any], logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
        split = self._split()
        record = self._pending.pop(split, None)
        with self.recorder.incidents.guard("adding to the logs"):
            if record is not None:
                logs.update(reading.headline(record))
                if not self._relays:
                    self.recorder.write(record)
        result = original(logs, *args, **kwargs)
        if self._relays:
            with self.recorder.incidents.guard("relaying a log"):
                relayed = reading.relayed(self._trainer)
                if record is None:  # the model may still be in evaluation mode when the training's totals are logged
                    split = "eval" if any(key.startswith("eval_") for key in relayed) else "train"
                self.recorder.relay(relayed, step=self._trainer.state.global_step, split=split, record=record)
        return result

    def _split(self) -> str:
        return "train" if self._trainer.model.training else "eval"

    def _merge(self, split: str) -> None:
        record = self.recorder.merge(step=self._trainer.state.global_step, split=split)
        if record is None:
            return
        if split in self._pending:
            self.recorder.write(self._pending.pop(split))
        self._pending[split] = record

    def _observe(self, batch: Mapping[str, Any], split: str) -> batches.Sides | None:
        left = batches.rows_left_to_the_loss(batch)
        self._loss.expect(left, split)
        if left:
            return None
        sides = batches.of_batch(batch)
        self._record(sides, split, lambda: reading.why_absent(self._trainer, batch))
        return sides

    def _record(self, sides: batches.Sides | None, split: str, why_absent: Callable[[], str]) -> None:
        if sides is None:
            self._say("no ratio", why_absent())
            return
        if (said := reading.not_applied(self._trainer, sides)) is not None:
            self._say("no correction", said)
        self.recorder.observe(
            sides.train,
            sides.rollout,
            sides.mask,
            advantages=sides.advantages,
            token_ids=sides.token_ids,
            applied=sides.applied,
            packing=sides.packing,
            split=split,
        )
        if sides.policy == "old":
            self._noise.observe(sides.train, sides.mask)
        elif self._noise.every:
            self._noise.give_up("the trainer scores in its loss alone")
