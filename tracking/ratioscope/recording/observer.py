"""Observer: what enters a window, batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.batch.checks import check_applied
from ratioscope.batch.observation import Logps, Mask, Observation
from ratioscope.correction.weights import Weighed, apply_rule
from ratioscope.recording.windows import Windows
from ratioscope.summary.noise_and_drift import drift_summary, noise_summary
from ratioscope.summary.summary import RatioSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    import torch.distributed as dist

    from ratioscope.batch.packing import Packing
    from ratioscope.correction.rule import Rule


class Observer:
    """Adds batches to the open window of each split, on their device and without a host sync.

    Args:
        correction: the rule; None to watch raw ratios only.
        group: process group that windows are merged over; None for the default one.

    Attributes:
        correction: the rule.
    """

    def __init__(self, correction: Rule | None, *, group: dist.ProcessGroup | None = None) -> None:
        self.correction = correction
        self._windows = Windows(correction, group)

    def observe(
        self,
        train_logps: Logps,
        rollout_logps: Logps,
        mask: Mask,
        *,
        advantages: torch.Tensor | Sequence[float] | None = None,
        token_ids: torch.Tensor | Sequence[torch.Tensor] | None = None,
        applied: torch.Tensor | None = None,
        packing: Packing | None = None,
        split: str = "train",
    ) -> None:
        """Adds one batch to the window. Touches no tensor of the caller's, keeps no graph and makes no host sync.

        Args:
            train_logps: ``(B, T)`` log-probabilities of the sampled tokens under the trainer, in nats.
            rollout_logps: ``(B, T)`` the same under the engine that sampled them.
            mask: ``(B, T)`` bool or 0/1: completion tokens that the policy sampled (tool results excluded).
            advantages: ``(B,)`` advantage of each row.
            token_ids: ``(B, T)`` ids of the sampled tokens.
            applied: the weights that the loss really uses; checked against the rule's own, on the device.
            packing: where the rows lie if the tensors are packed, ``(N,)``. Nested tensors and one list or 1-D tensor a
                row are taken as well.
            split: ``"train"`` or ``"eval"``; each has its own window.

        Raises:
            ValueError: if a shape is not exactly as stated. The window counts the failure, and a later flush works.
            TypeError: if the log-probabilities are not floating-point.
        """
        with self._windows.counting_failure(split):
            observation = Observation.of(
                train_logps, rollout_logps, mask, advantages=advantages, token_ids=token_ids, packing=packing
            )
            check_applied(applied)
            if applied is not None and packing is not None and self.correction is not None:
                applied = packing.pad("applied", applied, fill=False)
                applied = applied if self.correction.level == "token" else applied[:, :1]
            summary = RatioSummary.observe(observation, correction=self.correction, applied=applied)
        self._windows.add(split, summary)

    def observe_noise(
        self,
        train_logps_again: Logps,
        train_logps: Logps,
        mask: torch.Tensor | Sequence[Sequence[int]],
        *,
        split: str = "train",
    ) -> None:
        """Adds the trainer's distance from itself on one batch, the noise floor, to the window that has this batch.

        Touches no tensor of the caller's, keeps no graph and makes no host sync. A window in which nothing else is
        observed makes no record.

        Args:
            train_logps_again: ``(B, T)`` log-probabilities under the trainer, computed once more in another order:
                in other chunks of rows, or padded to another width.
            train_logps: ``(B, T)`` the trainer's log-probabilities that :meth:`observe` gets.
            mask: ``(B, T)`` bool or 0/1, as for :meth:`observe`.
            split: ``"train"`` or ``"eval"``.

        Raises:
            ValueError: if a shape is not exactly as stated. The window counts the failure, and a later flush works.
                Messages speak of the second scoring as ``train_logps`` and of the first as ``rollout_logps``.
            TypeError: if the log-probabilities are not floating-point.
        """
        with self._windows.counting_failure(split):
            summary = noise_summary(train_logps_again, train_logps, mask, correction=self.correction)
        self._windows.add(split, summary)

    def observe_drift(
        self,
        current_logps: Logps,
        old_logps: Logps,
        mask: Mask,
        *,
        epsilon: Sequence[float] | None = None,
        packing: Packing | None = None,
        split: str = "train",
    ) -> None:
        """Adds the policy's drift since it scored a batch, separately from the engines' mismatch.

        :meth:`observe` gets old and rollout, this gets current and old, in any layout that :meth:`observe` takes.
        Touches no tensor of the caller's, keeps no graph and makes no host sync. A window in which nothing else is
        observed makes no record; its drift goes into the next one.

        Args:
            current_logps: ``(B, T)`` log-probabilities of the sampled tokens under the policy as the loss has it.
            old_logps: ``(B, T)`` the same under the policy as it was before the step: the ``train_logps`` of
                :meth:`observe`.
            mask: ``(B, T)`` bool or 0/1, as for :meth:`observe`.
            epsilon: how far below and above 1 the loss clips the ratio of the two, a pair; None where it does not.
            packing: where the rows lie if the tensors are packed, ``(N,)``.
            split: ``"train"`` or ``"eval"``.

        Raises:
            ValueError: if a shape is not exactly as stated, or epsilon is no pair of numbers from 0 on. The window
                counts the failure, and a later flush works. Messages speak of current as ``train_logps`` and of old as
                ``rollout_logps``.
            TypeError: if the log-probabilities are not floating-point.
        """
        with self._windows.counting_failure(split):
            summary = drift_summary(
                current_logps, old_logps, mask, epsilon=epsilon, packing=packing, correction=self.correction
            )
        self._windows.add(split, summary)

    def correct(
        self,
        train_logps: torch.Tensor,
        rollout_logps: torch.Tensor,
        mask: torch.Tensor,
        *,
        advantages: torch.Tensor | None = None,
        token_ids: torch.Tensor | None = None,
        packing: Packing | None = None,
        split: str = "train",
    ) -> torch.Tensor:
        """The correction step itself, recorded: :func:`ratioscope.correct` and :meth:`observe` in one call.

        Returns:
            float32 weights: ``(B, T)`` at the token level, ``(B, 1)`` at the sequence level; with a packing ``(N,)``.

        Raises:
            ValueError: if the recorder has no correction, or a shape is not exactly as stated.
            TypeError: if the log-probabilities are not floating-point tensors.
        """
        if self.correction is None:
            msg = "got correct() on a recorder without a correction; pass correction=Correction(...) to Recorder, "
            msg += "or call observe() to watch raw ratios only"
            raise ValueError(msg)
        corrected = apply_rule(
            train_logps,
            rollout_logps,
            mask,
            correction=self.correction,
            advantages=advantages,
            token_ids=token_ids,
            packing=packing,
        )
        weights = Weighed.from_batch(corrected, packing, total=len(train_logps)).weights
        with self._windows.counting_failure(split):
            summary = RatioSummary.observe(corrected.observation, correction=self.correction, corrected=corrected)
        self._windows.add(split, summary)
        return weights
