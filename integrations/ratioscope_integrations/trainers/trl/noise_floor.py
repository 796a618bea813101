"""Noise floor of a TRL trainer: one generated batch in N is scored once more, in another order of arithmetic.

The trainer's own scoring is called again with the arguments of its last call, images included, in the same context and
model mode, but in chunks of half the completions and with rows padded by some columns more. Both change the order of
the arithmetic and nothing else.

In a sharded model (FSDP, ZeRO-3) a forward pass is a collective. So whether, when and how often it is repeated follows
from the number of generations and the shape of the batch alone, which are the same on every rank, and never from data
or from earlier failures. If one rank alone raises during the pass, the others wait in that collective: swallowing the
exception would pair their messages with those of a later collective. There it is raised, as one of the trainer's own
pass would be; where each rank has the whole model, it becomes a warning.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from ratioscope_integrations.trainers.trl.attachment import report, wrap
from ratioscope_integrations.trainers.trl.loss import SCORING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from ratioscope.recording.recorder import Recorder

DEFAULT_EVERY = 10
"""Default number of generated batches per measurement, which adds a tenth to the time of scoring."""

PADDING = 16
"""Further columns of padding: chunks alone change nothing where kernels treat rows one by one."""

_ARGUMENTS = ("input_ids", "logits_to_keep", "batch_size")


class NoiseFloor:
    """Scores one training batch in ``every`` twice, beginning with the first.

    Args:
        trainer: the trainer, whose scoring is wrapped.
        recorder: receives the two scorings.
        every: generations per measurement; 0 for none, and then nothing is wrapped.

    Attributes:
        every: generations per measurement, 0 also if the trainer cannot be measured.
    """

    def __init__(self, trainer: Any, recorder: Recorder, *, every: int) -> None:
        self.every = every
        self._trainer = trainer
        self._recorder = recorder
        self._generations = 0
        self._is_due = False
        self._scored: tuple[torch.Tensor, torch.Tensor | None] | None = None
        if not every:
            return
        scoring = getattr(trainer, SCORING, None)
        if scoring is None or not inspect.signature(scoring).parameters.keys() >= {*_ARGUMENTS}:
            self.give_up(f"{type(trainer).__name__} has no {SCORING} with {', '.join(_ARGUMENTS)}")
            return
        wrap(trainer, SCORING, self._around_scoring)

    @contextmanager
    def generation(self, split: str) -> Iterator[None]:
        """Surrounds the generation of one batch, whose first scoring under the policy is repeated if it is due."""
        is_training = split == "train"
        self._scored = None
        self._is_due = bool(self.every) and is_training and self._generations % self.every == 0
        self._generations += is_training
        try:
            yield
        finally:
            self._is_due = False

    def observe(self, train_logps: torch.Tensor, mask: torch.Tensor) -> None:
        """Records the measurement, if one was made, with the batch that it belongs to."""
        scored, self._scored = self._scored, None
        if scored is None:
            return
        once, again = scored
        if once is not train_logps:
            self.give_up("the batch's old_per_token_logps are not those that the trainer scored first")
        elif again is None:
            self._report("the trainer scores one row at a time, and its model has no room for wider ones")
        else:
            self._recorder.observe_noise(again, once, mask)

    def give_up(self, reason: str) -> None:
        """Ends measuring, for a reason that holds on every rank and for every batch."""
        self.every = 0
        self._report(reason)

    def _report(self, reason: str) -> None:
        report(self._recorder, "no noise floor", f"the noise floor cannot be measured: {reason}")

    def _around_scoring(self, scoring: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = scoring(*args, **kwargs)
        if self._is_due and not torch.is_grad_enabled():
            self._is_due = False
            with self._guard():
                self._scored = result[0], self._score_again(scoring, args, kwargs)
        return result

    def _guard(self) -> AbstractContextManager[None]:
        kind = getattr(getattr(self._trainer, "accelerator", None), "distributed_type", "NO")
        is_whole = str(getattr(kind, "value", kind)).startswith(("NO", "MULTI"))
        return self._recorder.incidents.guard("measuring the noise floor") if is_whole else nullcontext()

    def _score_again(
        self, scoring: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> torch.Tensor | None:
        """Scores in another order; None if no other order is possible. The number of passes never depends on that."""
        names = list(inspect.signature(scoring).parameters)
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        ids = given["input_ids"]
        rows, width = ids.shape
        chunk = min(given.get("batch_size") or rows, rows)
        padding = PADDING if self._has_room(width) else 0
        for name, value in given.items():
            if padding and isinstance(value, torch.Tensor) and value.shape == ids.shape:
                filler = self._pad_token_id() if name == "input_ids" else 0
                given[name] = torch.nn.functional.pad(value, (0, padding), value=filler)
        given["logits_to_keep"] += padding
        given["batch_size"] = max(1, chunk // 2)
        positional = [given.pop(name) for name in names[: len(args)]]
        with _random_state_restored(self._trainer.model):
            again: torch.Tensor = scoring(*positional, **given)[0]
        return again[:, : again.shape[1] - padding] if padding or chunk > 1 else None

    def _has_room(self, width: int) -> bool:
        """Returns False if padding would pass a length beyond which the model computes positions differently."""
        config: Any = getattr(self._trainer.model, "config", None)
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        limits = (getattr(config, "max_position_embeddings", None), scaling.get("original_max_position_embeddings"))
        return not any(limit is not None and width <= limit < width + PADDING for limit in limits)

    def _pad_token_id(self) -> int:
        processing = getattr(self._trainer, "processing_class", None)
        return getattr(getattr(processing, "tokenizer", processing), "pad_token_id", None) or 0


@contextmanager
def _random_state_restored(model: Any) -> Iterator[None]:
    """Restores the random state of the CPU and of the model's devices at the end: dropout draws from it."""
    devices = {parameter.device for parameter in model.parameters()} - {torch.device("cpu")}
    kinds = {device.type for device in devices} or {"cuda"}
    if len(kinds) > 1:
        msg = f"got a model on devices of several types, {', '.join(sorted(kinds))}; expected one"
        raise ValueError(msg)
    with torch.random.fork_rng([device.index or 0 for device in devices], device_type=kinds.pop()):
        yield
