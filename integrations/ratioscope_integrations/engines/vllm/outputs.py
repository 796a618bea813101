"""From vLLM's ``RequestOutput``s to tensors: tokens, log-probabilities of the sampled ones, and a mask.

vLLM gives each position a dict by token id, which holds the most likely tokens beside the sampled one, in no promised
order; the sampled token's entry is taken by its id. vLLM is never imported: outputs are known by their attributes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ratioscope.incidents import Incidents

__all__ = ["KINDS", "Rollout", "from_outputs"]

KINDS: Mapping[str, str] = {
    "unrequested": "tokens of completions that came without any log-probability",
    "missing": "tokens beyond the end of their completion's log-probabilities",
    "none": "None in place of a log-probability",
    "nan": "NaN",
    "unmatched": "tokens that are not among the entries of their position",
    "refused": "entries of a shape that does not say which token they are of",
    "appended": "tokens that the trainer put after those of the engine",
    "surplus": "log-probabilities beyond the last token, which are ignored",
}
"""What ``Rollout.counts`` counts; all but the last are tokens without a log-probability."""

_SAID = {
    "unrequested": "vLLM returned no log-probabilities; set SamplingParams(logprobs=0), which is the sampled token's",
    "unmatched": "vLLM's log-probabilities do not hold the sampled token; those tokens are left out. "
    "Were tokens and log-probabilities shifted against each other?",
    "refused": "got log-probabilities that are no dict by token id; those tokens are left out, since nobody can tell "
    "which entry is the sampled token's",
}
_FLAT = ("token_ids", "logprobs", "start_indices", "end_indices")
"""What vLLM's ``FlatLogprobs`` has: all positions' entries in one list, and where each position's begin and end."""

_incidents = Incidents()


@dataclass(frozen=True)
class Rollout:
    """What an engine generated, as :meth:`ratioscope.Recorder.observe` takes it.

    Attributes:
        token_ids: int64 ``(B, T)``, pads on the right.
        rollout_logps: float32 ``(B, T)``, in nats; NaN where there is no token, or none of its log-probability.
        mask: bool ``(B, T)``, true at every token of a completion, also at one without a log-probability.
        requests: for each row, the index of the request that it answers.
        counts: number of each of :data:`KINDS`.
    """

    token_ids: torch.Tensor
    rollout_logps: torch.Tensor
    mask: torch.Tensor
    requests: tuple[int, ...]
    counts: Mapping[str, int]

    def to(self, device: torch.device | str) -> Rollout:
        """The same on another device."""
        tensors = {name: getattr(self, name).to(device) for name in ("token_ids", "rollout_logps", "mask")}
        return replace(self, **tensors)


def from_outputs(outputs: Iterable[Any], *, pad_id: int, token_ids: Sequence[Sequence[int]] | None = None) -> Rollout:
    """Makes a batch of what ``LLM.generate`` returned: one row for each completion, in order.

    A request with several completions (``n > 1``) gives that many rows, one without any gives an empty row.

    Args:
        outputs: ``RequestOutput``s, generated with ``SamplingParams(logprobs=0)`` or more.
        pad_id: what stands in ``token_ids`` after a row's last token.
        token_ids: the rows as the trainer uses them, without pads, if it appended tokens to what the engine returned
            (an EOS after a stop string, say) or cut some off its end. An appended token has no log-probability.

    Raises:
        TypeError: if an output is none; a tensor of log-probabilities has lost which token each is of.
        ValueError: if ``token_ids`` has another number of rows, or a row begins with other tokens than the engine's.
    """
    counts: Counter[str] = Counter()
    requests: list[int] = []
    rows: list[list[int]] = []
    logps: list[list[float]] = []
    for request, completions in enumerate(_completions(outputs)):
        for completion in completions or [None]:
            requests.append(request)
            rows.append([] if completion is None else [int(token) for token in completion.token_ids])
            logps.append([] if completion is None else _selected(rows[-1], completion.logprobs, counts))
    if token_ids is not None:
        rows, logps = _as_trained(rows, logps, token_ids, counts)
    for kind in _SAID.keys() & counts.keys():
        _incidents.report(kind, _SAID[kind])

    width = max(map(len, rows), default=0)
    shape = (len(rows), width)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    padded = [[*row, *[pad_id] * (width - len(row))] for row in rows]
    filled = [[*row, *[math.nan] * (width - len(row))] for row in logps]
    return Rollout(
        token_ids=torch.tensor(padded, dtype=torch.int64).reshape(shape),
        rollout_logps=torch.tensor(filled, dtype=torch.float32).reshape(shape),
        mask=torch.arange(width) < lengths.unsqueeze(1),
        requests=tuple(requests),
        counts={kind: counts[kind] for kind in KINDS},
    )


def _completions(outputs: Iterable[Any]) -> Iterable[Sequence[Any]]:
    """The completions of each request."""
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


def _selected(tokens: Sequence[int], logprobs: Any, counts: Counter[str]) -> list[float]:
    """The log-probability of each sampled token, NaN where there is none; counts why."""
    if logprobs is None:
        counts["unrequested"] += len(tokens)
        return [math.nan] * len(tokens)
    known = min(len(tokens), len(logprobs))
    counts["missing"] += len(tokens) - known
    counts["surplus"] += len(logprobs) - known
    select = _select_flat if all(hasattr(logprobs, name) for name in _FLAT) else _select
    values = [select(logprobs, position, token) for position, token in enumerate(tokens[:known])]
    counts.update(value for value in values if isinstance(value, str))
    values += ["missing"] * (len(tokens) - known)
    return [math.nan if isinstance(value, str) else value for value in values]


def _select(logprobs: Sequence[Any], position: int, token: int) -> float | str:
    """The sampled token's log-probability at a position, or why there is none."""
    entries = logprobs[position]
    if entries is None:
        return "none"
    if not isinstance(entries, Mapping):
        return "refused"
    if token not in entries:
        return "unmatched"
    entry = entries[token]
    return _number(getattr(entry, "logprob", entry))


def _select_flat(logprobs: Any, position: int, token: int) -> float | str:
    """The same, of a flat container, without a dict for each position."""
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
    rows: list[list[int]], logps: list[list[float]], trained: Sequence[Sequence[int]], counts: Counter[str]
) -> tuple[list[list[int]], list[list[float]]]:
    """The rows as the trainer has them, longer or shorter at their ends."""
    if len(trained) != len(rows):
        msg = f"got token_ids of {len(trained)} rows; expected {len(rows)}, one for each completion"
        raise ValueError(msg)
    kept, values = [], []
    for index, (row, row_logps, given) in enumerate(zip(rows, logps, trained, strict=True)):
        tokens = [int(token) for token in given]
        common = min(len(tokens), len(row))
        if tokens[:common] != row[:common]:
            at = next(t for t in range(common) if tokens[t] != row[t])
            msg = f"got token {tokens[at]} at position {at} of row {index} in token_ids, where the engine sampled "
            msg += f"{row[at]}; expected the engine's tokens, without pads, and at most more or fewer at the end"
            raise ValueError(msg)
        counts["appended"] += len(tokens) - common
        kept.append(tokens)
        values.append([*row_logps[:common], *[math.nan] * (len(tokens) - common)])
    return kept, values
