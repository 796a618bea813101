"""Where the two sides of the ratio stand, in the shapes of GRPO that are known.

Most trainers return both with the generated batch. Some leave the trainer's side to the loss, which scores each
micro-batch anyway: there it is read, without a forward pass of ours. What a trainer can do is found out from what it
has and from what its batches hold, never from its class or version.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ratioscope.batch.packing import Packing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratioscope.incidents import Incidents

GENERATES = "_generate_and_score_completions"
"""The method whose batches are watched. It tells a GRPO trainer, not a class: some are no subclass of TRL's own."""

QUEUE = "rollout_queue"
"""The attribute by which a trainer is known that takes its rollouts from a queue and scores them in the loss alone."""

SCORING = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")
_WHAT = "reading a loss"
ROLLOUT = ("sampling_per_token_logps", "old_log_probs")
"""Names of the rollout's log-probabilities: in a generated batch, and where rollouts come from a queue."""

_RATIO_NAMES = {"importance_sampling_ratio", "sampling_per_token_logps"}


@dataclass(frozen=True)
class Sides:
    """What :meth:`ratioscope.Recorder.observe` takes, as one trainer has it.

    Attributes:
        train: ``(B, T)`` log-probabilities under the trainer; ``(N,)`` with a packing, as all that follow.
        rollout: the same under the engine.
        mask: tokens that the policy sampled.
        advantages: ``(B,)``, or None where they are not one a row.
        token_ids: the sampled tokens.
        applied: the weights that the loss uses, if known.
        packing: where the rows lie.
        policy: whose log-probabilities ``train`` are: ``"old"``, before the step, or ``"current"``, in the loss.
    """

    train: torch.Tensor
    rollout: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor | None = None
    token_ids: torch.Tensor | None = None
    applied: torch.Tensor | None = None
    packing: Packing | None = None
    policy: str = "old"


def of_batch(batch: Mapping[str, Any], train: torch.Tensor | None = None, *, policy: str = "old") -> Sides | None:
    """Both sides of a generated batch; None if it lacks one.

    Args:
        batch: what the trainer generated, or a micro-batch of it.
        train: the trainer's log-probabilities, if they come from elsewhere.
        policy: whose they are.
    """
    train, rollout = batch.get("old_per_token_logps") if train is None else train, batch.get(ROLLOUT[0])
    if train is None or rollout is None:
        return None
    mask, tool_mask, advantages = batch["completion_mask"], batch.get("tool_mask"), batch.get("advantages")
    return Sides(
        train=train,
        rollout=rollout,
        mask=mask if tool_mask is None else mask * tool_mask,
        advantages=advantages if advantages is not None and advantages.dim() == 1 else None,
        token_ids=batch.get("completion_ids"),
        applied=batch.get("importance_sampling_ratio"),
        policy=policy,
    )


def rows_left_to_the_loss(batch: Mapping[str, Any]) -> int:
    """How many rows of a generated batch have the rollout's side alone: the trainer's can only come from the loss."""
    rollout = batch.get(ROLLOUT[0])
    return len(rollout) if rollout is not None and batch.get("old_per_token_logps") is None else 0


def loss_reads_the_ratio(kind: type) -> bool | None:
    """Whether the loss of a class of trainers names the ratio, or what it is made of; None if that cannot be told.

    A subclass may bring a loss of its own that leaves the ratio out (TRL's ``GMPOTrainer``).
    """
    known = False
    for owner in kind.__mro__:
        code = getattr(inspect.unwrap(vars(owner).get("_compute_loss", _nothing)), "__code__", None)
        if code is None:
            return None
        if code is _nothing.__code__:
            continue
        known = True
        helpers = (getattr(getattr(kind, name, None), "__code__", None) for name in code.co_names)
        if any(_RATIO_NAMES & _strings(each) for each in (code, *helpers) if each is not None):
            return True
        if "_compute_loss" not in code.co_names:  # it does not go on to that of its parent
            break
    return False if known else None


def _nothing() -> None:
    """Stands for a method that a class does not have."""


def _strings(code: Any) -> set[str]:
    found = {each for each in code.co_consts if isinstance(each, str)}
    return found.union(*(_strings(each) for each in code.co_consts if hasattr(each, "co_consts")))


class InLoss:
    """Reads the trainer's side from its loss, where the current policy scores each micro-batch.

    Args:
        trainer: whose ``compute_loss`` and scoring are wrapped, once they are needed.
        seen: called after each micro-batch that is looked at, with both sides, or None if they were not there, with
            its split, and with the loss's inputs.
        split: tells the split of what the trainer is at.
        incidents: where what fails is counted.
    """

    def __init__(
        self,
        trainer: Any,
        seen: Callable[[Sides | None, str, Mapping[str, Any]], None],
        *,
        split: Callable[[], str],
        incidents: Incidents,
    ) -> None:
        self._trainer = trainer
        self._seen = seen
        self._split = split
        self._incidents = incidents
        self._rows: dict[str, float] = {}
        self._wrapped = False
        self._looks = False
        self._scored: list[torch.Tensor] = []

    def expect(self, rows: float, split: str) -> None:
        """Looks at the micro-batches to come.

        Args:
            rows: how many rows a generation left to the loss: that many are looked at, so that one that is used for
                several iterations is recorded once. Infinity for all that ever come.
            split: theirs.
        """
        self._rows[split] = rows
        if self._wrapped or not rows:
            return
        self._wrapped = True
        for name in ("compute_loss", *SCORING):
            original = getattr(self._trainer, name, None)
            if callable(original):
                around = self._around_loss if name == "compute_loss" else self._around_scoring
                setattr(self._trainer, name, functools.wraps(original)(functools.partial(around, original)))

    def expects(self, split: str) -> bool:
        """Whether micro-batches to come are looked at."""
        return self._rows.get(split, 0) > 0

    def _around_scoring(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self._looks:
            self._keep(result[0] if isinstance(result, tuple) and result else result)
        return result

    def _around_loss(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        split = self._split()
        if not self.expects(split):
            return original(model, inputs, *args, **kwargs)
        self._looks = True
        hook: Any = None
        with self._incidents.guard(_WHAT):
            if inputs.get(ROLLOUT[0]) is None:  # no batch of GRPO's: the model itself may return what it scored
                hook = model.register_forward_hook(lambda module, given, output: self._keep(_log_probs(output)))
        try:
            loss = original(model, inputs, *args, **kwargs)
            with self._incidents.guard(_WHAT):
                self._look(inputs, split)
        finally:
            if hook is not None:
                hook.remove()
            self._looks = False
            self._scored.clear()
        return loss

    def _keep(self, scored: Any) -> None:
        if isinstance(scored, torch.Tensor):
            self._scored.append(scored.detach())

    def _look(self, inputs: Mapping[str, Any], split: str) -> None:
        rollout = next((inputs[name] for name in ROLLOUT if isinstance(inputs.get(name), torch.Tensor)), None)
        sides = None
        if rollout is not None:
            self._rows[split] -= len(rollout)
            found = (_of_loss(inputs, rollout, scored) for scored in self._scored)
            sides = next((each for each in found if each is not None), None)
        self._seen(sides, split, inputs)


def _log_probs(output: Any) -> Any:
    return output.get("log_probs") if isinstance(output, dict) else getattr(output, "log_probs", None)


def _of_loss(inputs: Mapping[str, Any], rollout: torch.Tensor, scored: torch.Tensor) -> Sides | None:
    """Both sides of a micro-batch, if what was scored is of a shape that is known."""
    if inputs.get(ROLLOUT[0]) is not None:
        return of_batch(inputs, scored, policy="current") if scored.shape == rollout.shape else None
    if {"token_index", "segment_id", "advantages", "shift_labels"} <= inputs.keys():
        return _of_row(inputs, scored) if len(rollout) == 1 else None
    if {"completion_mask", "input_ids"} <= inputs.keys() and scored.dim() == 2 and len(scored) == len(rollout):
        part = slice(1, scored.shape[1] + 1)  # rows of prompt and completion, without the columns that only pad
        mask, ids = (inputs[name][:, part] for name in ("completion_mask", "input_ids"))
        return Sides(scored, rollout[:, part], mask, inputs.get("advantages"), ids, policy="current")
    return None


def _of_row(inputs: Mapping[str, Any], scored: torch.Tensor) -> Sides:
    """Completions folded into one row, with a list of which position predicts which of their tokens."""
    token_index, segments, rollout, advantages = (
        inputs[name].flatten() for name in ("token_index", "segment_id", "old_log_probs", "advantages")
    )
    mask, place = token_index >= 0, token_index.clamp(min=0)
    # This reads lengths, for which the host waits. The loss has just waited for numbers of its own.
    packing = Packing.of(segment_ids=segments.masked_fill(~mask, -1))
    by_row = packing.pad("advantages", advantages)
    return Sides(
        train=scored.flatten()[place],
        rollout=rollout,
        mask=mask,
        advantages=by_row[:, 0] if by_row.shape[1] else None,
        token_ids=inputs["shift_labels"].flatten()[place],
        packing=packing,
        policy="current",
    )
