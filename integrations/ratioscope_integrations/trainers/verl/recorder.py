"""Recorder in the driver of verl's PPO trainer, which has whole batches.

The driver is one process without a process group, so nothing is merged and no rank waits for another. verl is never
imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.recording.recorder import Recorder
from ratioscope_integrations.trainers.verl.batch import read_batch
from ratioscope_integrations.trainers.verl.settings import correction_from, mode_of, sections, text_at
from ratioscope_integrations.trainers.verl.tracking import live_runs, report_to_of

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from ratioscope.alerts.reaction import OnFinding
    from ratioscope.record import Record
    from ratioscope.recording.token_texts import Decode
    from ratioscope.trackers.registry import ReportTo

_BYPASS = "verl runs in bypass mode: old_log_probs are the rollout's own, and its actor's loss has the only ratio; "
_BYPASS += "there is nothing to record in the driver"
_REJECTED = "the batch's response_mask is what verl's rejection left; pass the one before it, as "
_REJECTED += "observe(batch, mask=...), so that rejected tokens count"


class VerlRecorder:
    """Records the rollout correction of a verl trainer, in its driver.

    Example:
        >>> ratios = VerlRecorder(self.config, logger)  # doctest: +SKIP
        >>> ratios.observe(batch, mask=mask)  # doctest: +SKIP
        >>> ratios.flush(self.global_steps)  # doctest: +SKIP

    Args:
        config: the trainer's config, whose ``algorithm.rollout_correction`` is the rule.
        tracking: verl's ``Tracking``. Runs that it opened are attached to and never finished.
        report_to: as for :class:`ratioscope.Recorder`; None follows ``tracking``.
        output_dir: folder of the journal; None for ``trainer.default_local_dir``, or no journal without one.
        detail: which scalars trackers receive: ``"headline"``, ``"standard"`` or ``"full"``.
        decode: tokenizer for the texts of each window's worst tokens, as for :class:`ratioscope.Recorder`.
        close_timeout: seconds that ``close`` waits for undelivered rows; the journal keeps them.
        on_finding: as for :class:`ratioscope.Recorder`.

    Attributes:
        recorder: recorder of the batches.

    Raises:
        TypeError: if ``tracking`` is not verl's, or ``decode`` cannot decode.
        ValueError: if the detail, ``on_finding`` or a tracker's name is unknown.
        ImportError: if a named tracker's package is missing.
    """

    def __init__(
        self,
        config: Any,
        tracking: Any,
        *,
        report_to: ReportTo = None,
        output_dir: str | Path | None = None,
        detail: str = "standard",
        decode: Decode | None = None,
        close_timeout: float = 10.0,
        on_finding: OnFinding = None,
    ) -> None:
        followed = report_to_of(tracking)
        self._config = config
        self._runs = live_runs(tracking)
        self.recorder = Recorder(
            report_to=followed if report_to is None else report_to,
            output_dir=text_at(config, "trainer.default_local_dir") if output_dir is None else output_dir,
            run_name=text_at(config, "trainer.experiment_name"),
            detail=detail,
            decode=decode,
            close_timeout=close_timeout,
            on_finding=on_finding,
        )
        with self.recorder.incidents.guard("reading verl's rollout_correction"):
            self.recorder.correction = correction_from(config)

    def observe(self, batch: Any, *, mask: torch.Tensor | None = None, split: str = "train") -> None:
        """Adds a batch to the window. Touches none of its tensors and never raises.

        Call it after verl's own correction, so that its weights can be checked, and after ``compute_advantage``.

        Args:
            batch: a ``DataProto``, its ``TensorDict`` or a dict, with ``old_log_probs``, ``rollout_log_probs`` and
                ``response_mask``; padded ``(B, T)`` or nested. ``advantages``, ``responses`` and
                ``rollout_is_weights`` are used if present.
            mask: ``response_mask`` as it was before the correction, which replaces it if ``rollout_rs`` rejects tokens.
            split: ``"train"`` or ``"eval"``; each has its own window.
        """
        with self.recorder.incidents.guard("observing a batch"):
            self._observe(batch, mask, split)

    def flush(self, step: int, *, split: str = "train") -> Record | None:
        """Closes the window and sends it to the trackers. Call it after ``Tracking.log`` of the same step.

        Args:
            step: ``global_steps``.
            split: the window to close.

        Returns:
            The record; None if nothing was observed.
        """
        record = self.recorder.merge(step=step, split=split)
        if record is None:
            return None
        if not self.recorder.is_open:
            with self.recorder.incidents.guard("opening trackers"):
                self.recorder.open(live_runs=self._runs, sections=sections(self._config), restored_step=step - 1)
        return self.recorder.write(record)

    def close(self) -> None:
        """Sends undelivered rows within a bounded time. verl ends its runs itself. Never raises."""
        self.recorder.close()

    def _observe(self, batch: Any, mask: torch.Tensor | None, split: str) -> None:
        report = self.recorder.incidents.report
        if mode_of(self._config) == "bypass":
            report("bypass", _BYPASS)
            return
        read = read_batch(batch, mask)
        if isinstance(read, str):
            report("no ratio", read)
            return
        rule = self.recorder.correction
        rejects = rule is not None and rule.drops
        has_rejected = rejects and mask is None and read.is_corrected
        if has_rejected:
            report("rejected mask", _REJECTED)
        self.recorder.observe(
            read.train_logps,
            read.rollout_logps,
            read.mask,
            advantages=read.advantages,
            token_ids=read.token_ids,
            applied=None if has_rejected else read.weights,  # weights of rejected tokens would count as disagreements
            split=split,
        )
