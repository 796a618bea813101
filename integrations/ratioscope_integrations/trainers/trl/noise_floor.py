"""The noise floor of a TRL trainer: one generated batch in so many is scored once more, in another order.

The trainer's own scoring is called again with the arguments that it was just called with, images and all, in the same
context and model mode, but in chunks of half the rows and in rows padded by some columns more. Both change the order
of the arithmetic and nothing else.

In a sharded model (FSDP, ZeRO-3) a forward pass is a collective. So whether, when and how often it is repeated follows
from the number of generations and the shape of the batch alone, which every rank has alike, and never from data or from
what failed before. Where one rank alone raises in the midst of it, the others wait in that collective: to swallow the
exception would pair their messages with other ones. It is passed on there, as that of the trainer's own pass would be;
where each rank has the whole model, it is a warning.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from ratioscope.recording.recorder import Recorder

SCORING = "_get_per_token_logps_and_entropies"
DEFAULT_EVERY = 10
"""Generation batches to one that is scored twice, unless a number is given: a tenth more of the scoring."""

PADDING = 16
"""Columns by which rows are padded further: chunks alone change nothing where kernels treat rows one by one."""

_ARGUMENTS = ("input_ids", "logits_to_keep", "batch_size")


class NoiseFloor:
    """Scores one training batch in ``every`` twice, the first among them.

    Args:
        trainer: the trainer, whose scoring is wrapped.
        recorder: receives what is measured.
        every: generations to one measurement; 0 for none, and then nothing is wrapped.

    Attributes:
        every: the same, 0 also where the trainer cannot be measured.
    """

    def __init__(self, trainer: Any, recorder: Recorder, *, every: int) -> None:
        self.every = every
        self._trainer = trainer
        self._recorder = recorder
        self._generations = 0
        self._due = False
        self._scored: tuple[torch.Tensor, torch.Tensor | None] | None = None
        scoring = getattr(trainer, SCORING, None)
        if not every:
            return
        if scoring is None or not inspect.signature(scoring).parameters.keys() >= {*_ARGUMENTS}:
            self.give_up(f"{type(trainer).__name__} has no {SCORING} with {', '.join(_ARGUMENTS)}")
            return
        setattr(trainer, SCORING, functools.wraps(scoring)(functools.partial(self._around_scoring, scoring)))

    @contextmanager
    def generation(self, split: str) -> Iterator[None]:
        """Around the trainer's making of one batch, whose first scoring under the policy is repeated if it is due."""
        trains = split == "train"
        self._scored = None
        self._due = bool(self.every) and trains and self._generations % self.every == 0
        self._generations += trains
        try:
            yield
        finally:
            self._due = False

    def observe(self, train_logps: torch.Tensor, mask: torch.Tensor) -> None:
        """Adds what was measured, if anything was, to the batch that it belongs to."""
        scored, self._scored = self._scored, None
        if scored is None:
            return
        once, again = scored
        if once is not train_logps:
            self.give_up("the batch's old_per_token_logps are not those that the trainer scored first")
        elif again is None:
            self._say("the trainer scores one row at a time, and its model has no room for wider ones")
        else:
            self._recorder.observe_noise(again, once, mask)

    def _around_scoring(self, scoring: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = scoring(*args, **kwargs)
        if self._due and not torch.is_grad_enabled():
            self._due = False
            with self._guard():
                self._scored = result[0], self._again(scoring, args, kwargs)
        return result

    def _guard(self) -> AbstractContextManager[None]:
        kind = getattr(getattr(self._trainer, "accelerator", None), "distributed_type", "NO")
        whole = str(getattr(kind, "value", kind)).startswith(("NO", "MULTI"))
        return self._recorder.incidents.guard("measuring the noise floor") if whole else nullcontext()

    def _again(
        self, scoring: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> torch.Tensor | None:
        """The same log-probabilities in another order; None where none could be found. Always as many passes."""
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
        by_position = [given.pop(name) for name in names[: len(args)]]
        with _random_state_kept(self._trainer.model):
            again: torch.Tensor = scoring(*by_position, **given)[0]
        return again[:, : again.shape[1] - padding] if padding or chunk > 1 else None

    def _has_room(self, width: int) -> bool:
        """False if wider rows would pass a length from which the model computes positions in another way, or none."""
        config: Any = getattr(self._trainer.model, "config", None)
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        ends = (getattr(config, "max_position_embeddings", None), scaling.get("original_max_position_embeddings"))
        return not any(end is not None and width <= end < width + PADDING for end in ends)

    def _pad_token_id(self) -> int:
        processing = getattr(self._trainer, "processing_class", None)
        return getattr(getattr(processing, "tokenizer", processing), "pad_token_id", None) or 0

    def give_up(self, why: str) -> None:
        """For good: what is alike on every rank and in every batch."""
        self.every = 0
        self._say(why)

    def _say(self, why: str) -> None:
        self._recorder.incidents.report("no noise floor", f"the noise floor cannot be measured: {why}")


@contextmanager
def _random_state_kept(model: Any) -> Iterator[None]:
    """Leaves the random numbers of the CPU and of every device that the model lies on as they were: dropout draws."""
    devices = {parameter.device for parameter in model.parameters()} - {torch.device("cpu")}
    kinds = {device.type for device in devices} or {"cuda"}
    if len(kinds) > 1:
        msg = f"got a model on devices of several types, {', '.join(sorted(kinds))}; expected one"
        raise ValueError(msg)
    with torch.random.fork_rng([device.index or 0 for device in devices], device_type=kinds.pop()):
        yield
