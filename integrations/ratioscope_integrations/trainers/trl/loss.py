"""Reading the trainer's side of the ratio from its loss, which scores each micro-batch anyway."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from ratioscope_integrations.trainers.trl.attachment import wrap
from ratioscope_integrations.trainers.trl.batches import ROLLOUT_LOGPS, TrlBatch, from_loss, rollout_in_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratioscope.incidents import Incidents

SCORING = "_get_per_token_logps_and_entropies"
"""Method that computes log-probabilities under the policy."""

_SCORING_METHODS = (SCORING, "_get_per_token_logps")
_TASK = "reading a loss"
_RATIO_NAMES = {"importance_sampling_ratio", "sampling_per_token_logps"}


def split_of(trainer: Any) -> str:
    """Returns the split that a trainer is working on, ``"train"`` or ``"eval"``."""
    return "train" if trainer.model.training else "eval"


class LossReader:
    """Reads micro-batches of a trainer's loss, where the current policy scores them. Adds no forward pass.

    Args:
        trainer: the trainer, whose ``compute_loss`` and scoring are wrapped at the first ``expect``.
        on_batch: called after each micro-batch that was expected, with both sides, or None if they are unavailable,
            with its split, and with the loss's inputs.
        incidents: counts failures.
    """

    def __init__(
        self,
        trainer: Any,
        on_batch: Callable[[TrlBatch | None, str, Mapping[str, Any]], None],
        *,
        incidents: Incidents,
    ) -> None:
        self._trainer = trainer
        self._on_batch = on_batch
        self._incidents = incidents
        self._expected: dict[str, float] = {}
        self._is_wrapped = False
        self._scored: list[torch.Tensor] | None = None  # None outside a loss that is read

    def expect(self, completions: float, split: str) -> None:
        """Reads the next micro-batches.

        Args:
            completions: number of completions that a generation left to the loss. Only that many are read, so that a
                generation that is used for several iterations is recorded once. Infinity to read every micro-batch.
            split: the split of the micro-batches.
        """
        self._expected[split] = completions
        if completions and not self._is_wrapped:
            self._is_wrapped = True
            wrap(self._trainer, "compute_loss", self._around_loss)
            for name in _SCORING_METHODS:
                wrap(self._trainer, name, self._around_scoring)

    def expects(self, split: str) -> bool:
        """Returns whether the next micro-batch of a split is read."""
        return self._expected.get(split, 0) > 0

    def _around_scoring(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        self._keep(result[0] if isinstance(result, tuple) and result else result)
        return result

    def _around_loss(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        split = split_of(self._trainer)
        if not self.expects(split):
            return original(model, inputs, *args, **kwargs)
        self._scored = []
        hook: Any = None
        with self._incidents.guard(_TASK):
            if inputs.get(ROLLOUT_LOGPS[0]) is None:  # not a batch of GRPO's: the model may return log-probabilities
                hook = model.register_forward_hook(lambda *call: self._keep(_log_probs(call[-1])))
        try:
            loss = original(model, inputs, *args, **kwargs)
            with self._incidents.guard(_TASK):
                self._read(inputs, split, self._scored)
        finally:
            if hook is not None:
                hook.remove()
            self._scored = None
        return loss

    def _keep(self, scored: Any) -> None:
        if self._scored is not None and isinstance(scored, torch.Tensor):
            self._scored.append(scored.detach())

    def _read(self, inputs: Mapping[str, Any], split: str, scored: list[torch.Tensor]) -> None:
        rollout, batch = rollout_in_loss(inputs), None
        if rollout is not None:
            self._expected[split] -= len(rollout)
            candidates = (from_loss(inputs, rollout, logps) for logps in scored)
            batch = next((item for item in candidates if item is not None), None)
        self._on_batch(batch, split, inputs)


def _log_probs(output: Any) -> Any:
    return output.get("log_probs") if isinstance(output, dict) else getattr(output, "log_probs", None)


def loss_reads_ratio(trainer_class: type) -> bool | None:
    """Returns whether a trainer's loss names the ratio, or its ingredients; None if its code cannot be read.

    A subclass may have a loss of its own that leaves the ratio out (TRL's ``GMPOTrainer``).
    """
    is_known = False
    for owner in trainer_class.__mro__:
        method = vars(owner).get("_compute_loss")
        if method is None:
            continue
        code = getattr(inspect.unwrap(method), "__code__", None)
        if code is None:
            return None
        is_known = True
        helpers = (getattr(getattr(trainer_class, name, None), "__code__", None) for name in code.co_names)
        if any(_RATIO_NAMES & _strings(item) for item in (code, *helpers) if item is not None):
            return True
        if "_compute_loss" not in code.co_names:  # does not call its parent's
            break
    return False if is_known else None


def _strings(code: Any) -> set[str]:
    """Collects the texts in a function's code and in the functions defined inside it."""
    strings = {constant for constant in code.co_consts if isinstance(constant, str)}
    return strings.union(*(_strings(constant) for constant in code.co_consts if hasattr(constant, "co_consts")))
