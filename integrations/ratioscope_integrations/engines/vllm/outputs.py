"""Conversion of vLLM's ``RequestOutput``s to tensors: tokens, log-probabilities of the sampled tokens, and a mask.

vLLM gives each position a dict by token id, which holds the most likely tokens beside the sampled one, in no promised
order; the sampled token's entry is looked up by its id. vLLM is never imported: outputs are read by attribute.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ratioscope.incidents import Incidents

__all__ = ["KINDS", "Rollout", "from_outputs"]

KINDS: Mapping[str, str] = {
    "unrequested": "tokens of completions that came without any log-probability",
    "missing": "tokens beyond the end of their completion's log-probabilities",
    "none": "None in place of a log-probability",
    "nan": "NaN",
    "unmatched": "tokens that are not among the entries of their position",
    "refused": "entries of a shape that does not identify their token",
    "appended": "tokens that the trainer put after those of the engine",
    "surplus": "log-probabilities beyond the last token, which are ignored",
}
"""Keys of ``Rollout.counts``; all but the last count tokens without a log-probability."""

_MESSAGES = {
    "unrequested": "vLLM returned no log-probabilities; set SamplingParams(logprobs=0), which is the sampled token's",
    "unmatched": "vLLM's log-probabilities do not hold the sampled token; those tokens are left out. "
    "Were tokens and log-probabilities shifted against each other?",
    "refused": "got log-probabilities that are no dict by token id; those tokens are left out, since the sampled "
    "token's entry cannot be identified",
}
_FLAT = ("token_ids", "logprobs", "start_indices", "end_indices")
"""Attributes of vLLM's ``FlatLogprobs``: the entries of all positions in one list, and the range of each position."""


@dataclass(frozen=True)
class Rollout:
    """Generated batch, as :meth:`ratioscope.Recorder.observe` takes it.

    Attributes:
        token_ids: int64 ``(B, T)``, padded on the right.
        rollout_logps: float32 ``(B, T)``, in nats; NaN at padding and at tokens without a log-probability.
        mask: bool ``(B, T)``, true at every token of a completion, also at one without a log-probability.
        requests: for each completion, the index of the request that it answers.
        counts: number of each of :data:`KINDS`.
    """

    token_ids: torch.Tensor
    rollout_logps: torch.Tensor
    mask: torch.Tensor
    requests: tuple[int, ...]
    counts: Mapping[str, int]

    def to(self, device: torch.device | str) -> Rollout:
        """Copies the tensors to another device."""
        token_ids, logps, mask = (item.to(device) for item in (self.token_ids, self.rollout_logps, self.mask))
        return replace(self, token_ids=token_ids, rollout_logps=logps, mask=mask)


def from_outputs(
    outputs: Iterable[Any],
    *,
    pad_id: int,
    token_ids: Sequence[Sequence[int]] | None = None,
    incidents: Incidents | None = None,
) -> Rollout:
    """Makes a batch from the result of ``LLM.generate``: one row for each completion, in order.

    A request with several completions (``n > 1``) gives that many rows, one without any gives an empty row.

    Args:
        outputs: ``RequestOutput``s, generated with ``SamplingParams(logprobs=0)`` or more.
        pad_id: token id at padding.
        token_ids: the rows as the trainer uses them, without padding, if it appended tokens to the engine's (an EOS
            after a stop string, for example) or cut some off the end. An appended token has no log-probability.
        incidents: ``recorder.incidents``, to log each kind of problem once per run; None to log it at every call.

    Raises:
        TypeError: if an output is not a ``RequestOutput``, or a tensor of log-probabilities does not identify tokens.
        ValueError: if ``token_ids`` has another number of rows, or a row begins with other tokens than the engine's.
    """
    counts: Counter[str] = Counter()
    requests: list[int] = []
    tokens: list[list[int]] = []
    logps: list[list[float]] = []
    for request, completions in enumerate(_completions(outputs)):
        for completion in completions or [None]:
            requests.append(request)
            tokens.append([] if completion is None else [int(token) for token in completion.token_ids])
            logps.append([] if completion is None else _sampled(tokens[-1], completion.logprobs, counts))
    if token_ids is not None:
        tokens, logps = _as_trained(tokens, logps, token_ids, counts)
    incidents = Incidents() if incidents is None else incidents
    for kind in _MESSAGES.keys() & counts.keys():
        incidents.report(kind, _MESSAGES[kind])
    return Rollout(
        token_ids=_padded(tokens, pad_id, torch.int64),
        rollout_logps=_padded(logps, math.nan, torch.float32),
        mask=_padded([[True] * len(row) for row in tokens], False, torch.bool),
        requests=tuple(requests),
        counts={kind: counts[kind] for kind in KINDS},
    )


def _padded(rows: Sequence[Sequence[float]], padding: float, dtype: torch.dtype) -> torch.Tensor:
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=padding) if tensors else torch.empty(0, 0, dtype=dtype)


def _completions(outputs: Iterable[Any]) -> Iterable[Sequence[Any]]:
    """Yields the completions of each request."""
    shape: Any = getattr(outputs, "shape", None)
    if shape is not None:
        msg = f"got an array of shape {tuple(shape)}; expected vLLM's RequestOutputs. An array with a column for "
        msg += "each of the top log-probabilities does not say which one is the sampled token's"
        raise TypeError(msg)
    for output in outputs:
        completions = getattr(output, "outputs", None)
        if output is not None and not isinstance(completions, Sequence):
            msg = f"got an output of type {type(output).__name__}; expected a RequestOutput, as LLM.generate returns it"
            raise TypeError(msg)
        yield completions or ()


def _sampled(tokens: Sequence[int], logprobs: Any, counts: Counter[str]) -> list[float]:
    """Returns the log-probability of each sampled token, NaN if there is none, and counts the reasons."""
    if logprobs is None:
        counts["unrequested"] += len(tokens)
        return [math.nan] * len(tokens)
    known = min(len(tokens), len(logprobs))
    counts["missing"] += len(tokens) - known
    counts["surplus"] += len(logprobs) - known
    look_up = _look_up_flat if all(hasattr(logprobs, name) for name in _FLAT) else _look_up
    values = [look_up(logprobs, position, token) for position, token in enumerate(tokens[:known])]
    counts.update(value for value in values if isinstance(value, str))
    values += ["missing"] * (len(tokens) - known)
    return [math.nan if isinstance(value, str) else value for value in values]


def _look_up(logprobs: Sequence[Any], position: int, token: int) -> float | str:
    """Returns the sampled token's log-probability at a position, or the kind of problem."""
    entries = logprobs[position]
    if entries is None:
        return "none"
    if not isinstance(entries, Mapping):
        return "refused"
    if token not in entries:
        return "unmatched"
    entry = entries[token]
    return _number(getattr(entry, "logprob", entry))


def _look_up_flat(logprobs: Any, position: int, token: int) -> float | str:
    """Reads a ``FlatLogprobs`` like :func:`_look_up`, without making a dict for the position."""
    start, end = logprobs.start_indices[position], logprobs.end_indices[position]
    if start == end:
        return "none"
    try:
        return _number(logprobs.logprobs[logprobs.token_ids.index(token, start, end)])
    except ValueError:
        return "unmatched"


def _number(value: Any) -> float | str:
    if value is None:
        return "none"
    try:
        number = float(value)
    except (TypeError, ValueError):
        return "refused"
    return "nan" if math.isnan(number) else number


def _as_trained(
    tokens: list[list[int]], logps: list[list[float]], trained: Sequence[Sequence[int]], counts: Counter[str]
) -> tuple[list[list[int]], list[list[float]]]:
    """Lengthens or shortens rows at their ends to those of the trainer."""
    if len(trained) != len(tokens):
        msg = f"got token_ids of {len(trained)} rows; expected {len(tokens)}, one for each completion"
        raise ValueError(msg)
    new_tokens, new_logps = [], []
    for index, (row, row_logps, ids) in enumerate(zip(tokens, logps, trained, strict=True)):
        new = [int(token) for token in ids]
        common = min(len(new), len(row))
        if new[:common] != row[:common]:
            position = next(t for t in range(common) if new[t] != row[t])
            msg = f"got token {new[position]} at position {position} of row {index}"
            msg += f" in token_ids, where the engine sampled {row[position]}"
            msg += "; expected the engine's tokens, without pads, and at most more or fewer at the end"
            raise ValueError(msg)
        counts["appended"] += len(new) - common
        new_tokens.append(new)
        new_logps.append([*row_logps[:common], *[math.nan] * (len(new) - common)])
    return new_tokens, new_logps
