"""Callback that attaches ratioscope to a TRL GRPOTrainer.

The trainer's own ``_generate_and_score_completions`` is wrapped to observe each generated batch, and its ``log`` to add
scalars to ``logs`` before any reporter runs. Ranks merge at points that all of them reach whatever the data: the end of
an optimizer step that will be logged, and the end of an evaluation loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from ratioscope.recording.ranks import is_main_rank
from ratioscope.recording.recorder import Recorder
from ratioscope_integrations.trainers.trl import reading
from ratioscope_integrations.trainers.trl.attachment import Attachment, is_attached, report, wrap
from ratioscope_integrations.trainers.trl.batch_observer import BatchObserver
from ratioscope_integrations.trainers.trl.drift import record_drift
from ratioscope_integrations.trainers.trl.loss import split_of
from ratioscope_integrations.trainers.trl.noise_floor import DEFAULT_EVERY
from ratioscope_integrations.trainers.trl.settings import trl_sections
from ratioscope_integrations.trainers.trl.warnings import CONFIG_FINDINGS, config_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from ratioscope.alerts.reaction import OnFinding
    from ratioscope.record import Record
    from ratioscope.trackers.registry import ReportTo
    from ratioscope_integrations.trainers.trl.batches import TrlBatch


class RatioscopeCallback(TrainerCallback):
    """Records the importance-sampling correction of a TRL ``GRPOTrainer``.

    Example:
        >>> trainer.add_callback(RatioscopeCallback(trainer))  # doctest: +SKIP

    Args:
        trainer: the trainer to attach to.
        report_to: trackers for histograms and further scalars, as for :class:`ratioscope.Recorder`; None follows
            ``args.report_to``. The scalars of the headline set reach every reporter of the trainer in any case.
        detail: which scalars trackers receive: ``"headline"``, ``"standard"`` or ``"full"``.
        config: further settings to keep beside the run. Secrets are redacted.
        relay: also keep and deliver the trainer's own log (loss, reward, everything) and arguments, so that with
            ``args.report_to="none"`` the whole run is recorded and survives any outage.
        close_timeout: seconds to wait at the end for undelivered rows; the journal keeps them.
        noise_floor: also measure how much the trainer's log-probabilities vary by rounding alone: with a number N, one
            generated batch in N is scored once more, beginning with the first; True means 10. It costs that pass.
        drift: also record how far the policy has moved since it scored the batch, from the log-probabilities that the
            loss computes anyway.
        token_texts: keep the texts of each window's worst tokens and their neighbours, as the trainer's tokenizer
            decodes them, in the journal and in trackers; False keeps their ids only.
        on_finding: reaction to a finding of the diagnosis during the run: None for none, ``"warn"`` for a Python
            warning, ``"stop"`` to stop on all ranks at the same step at an error of high confidence, or a callable
            that receives one event on rank 0 and returns True to stop.

    Attributes:
        recorder: recorder of the trainer's batches.

    Raises:
        ValueError: if a tracker's name, the detail or ``on_finding`` is unknown.
        ImportError: if a named tracker's package is missing.
    """

    def __init__(  # noqa: PLR0913 (public keyword-only settings)
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
        self._relay = relay
        self._has_warned = False
        self._pending: dict[str, Record] = {}
        self._restored_step: int | None = None
        self.recorder = Recorder(
            report_to=reading.known_trackers(trainer.args.report_to) if report_to is None else report_to,
            config=config,
            output_dir=trainer.args.output_dir,
            run_name=getattr(trainer.args, "run_name", None),
            detail=detail,
            close_timeout=close_timeout,
            decode=reading.tokenizer(trainer) if token_texts else None,
            on_finding=on_finding,
        )
        with self.recorder.incidents.guard("reading the correction from the trainer's config"):
            self.recorder.correction = reading.rule(trainer)
        if is_attached(trainer):
            message = "this trainer already has a RatioscopeCallback; the second one does nothing"
            report(self.recorder, "attached twice", message)
            return
        self._attach(DEFAULT_EVERY if noise_floor is True else max(int(noise_floor), 0), drift=drift)
        if report_to is None and not self.recorder.tracker_names:
            message = "report_to names no tracker, so scalars go to trainer_state.json and the console only"
            report(self.recorder, "no tracker", message)

    def _attach(self, noise_floor: int, *, drift: bool) -> None:
        Attachment(self.recorder).mark(self._trainer)
        observer = BatchObserver(self._trainer, self.recorder, noise_floor=noise_floor, on_batch=self._open)
        self._observer = observer
        if drift:
            record_drift(self._trainer, self.recorder)
        wrap(self._trainer, "evaluation_loop", self._around_evaluation)
        wrap(self._trainer, "log", self._around_log)
        wrap(self._trainer, "train", self._around_training)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Warns of settings that bias the ratio, before time is spent on them."""
        self._restored_step = state.global_step
        self.recorder.start_anew()
        with self.recorder.incidents.guard("checking the run config"):
            for warning in config_warnings(trl_sections(self._trainer)) if is_main_rank() else ():
                report(self.recorder, warning, warning)
                self._has_warned = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Merges ranks if the step will be logged, and stops the training on request. Every rank calls it."""
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
        """Sends records that no log carried, and ends the runs that ratioscope opened."""
        self._merge("train")
        for split in tuple(self._pending):
            self.recorder.write(self._pending.pop(split))
        self.recorder.close()
        self._restored_step = None  # an evaluation after the training repeats no step

    def _open(self, batch: TrlBatch | None) -> None:
        """Opens the trackers at the first batch, which shows facts of the run config that settings do not."""
        with self.recorder.incidents.guard("opening trackers"):
            if is_main_rank() and not self.recorder.is_open:
                every = self._observer.noise_floor.every
                self.recorder.open(
                    reporters=reading.reporters(self._trainer),
                    sections=reading.sections(self._trainer, batch, arguments=self._relay, noise_floor=every),
                    restored_step=self._restored_step,
                    already_logged=CONFIG_FINDINGS if self._has_warned else (),
                )

    def _around_training(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except BaseException:  # also an interrupt: records are sent, and the journal is free for another attempt
            self._pending.clear()  # of a step whose log was not reached
            self.recorder.close()
            raise

    def _around_evaluation(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        self._merge("eval")
        return output

    def _around_log(self, original: Callable[..., Any], logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
        split = split_of(self._trainer)
        record = self._pending.pop(split, None)
        with self.recorder.incidents.guard("adding to the logs"):
            if record is not None:
                logs.update(reading.headline(record))
                if not self._relay:
                    self.recorder.write(record)
        result = original(logs, *args, **kwargs)
        if self._relay:
            with self.recorder.incidents.guard("relaying a log"):
                log = reading.last_log(self._trainer)
                if record is None:  # the model may still be in evaluation mode when the training's totals are logged
                    split = "eval" if any(key.startswith("eval_") for key in log) else "train"
                self.recorder.relay(log, step=self._trainer.state.global_step, split=split, record=record)
        return result

    def _merge(self, split: str) -> None:
        record = self.recorder.merge(step=self._trainer.state.global_step, split=split)
        if record is None:
            return
        if split in self._pending:
            self.recorder.write(self._pending.pop(split))
        self._pending[split] = record
