"""Packed, nested and ragged batches, converted to the padded layout that all other code works on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.nn.utils.rnn import pad_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MASKED = ("train_logps", "rollout_logps", "token_ids")
"""Tensors whose values count only where the mask, which is zero at padding, says so."""


@dataclass(frozen=True)
class Packing:
    """Positions of each sequence's tokens in a packed batch: one vector that holds the sequences one after another.

    Make one with :meth:`of`, and pass it as ``packing=`` with ``(N,)`` tensors.

    Attributes:
        index: int64 ``(B, T)``, the position of each token in the packed vector; 0 at padding.
        inside: bool ``(B, T)``, False at padding.
        reach: number of packed tokens that the rows need; None if only an accelerator has it.
    """

    index: torch.Tensor
    inside: torch.Tensor
    reach: int | None = None

    @classmethod
    def of(
        cls,
        *,
        cu_seqlens: torch.Tensor | Sequence[int] | None = None,
        segment_ids: torch.Tensor | Sequence[int] | None = None,
        max_length: int | None = None,
    ) -> Self:
        """Makes a packing from boundaries or from ids of segments.

        Args:
            cu_seqlens: ``(B + 1,)`` integers: where each row begins and, last, where the last one ends.
            segment_ids: ``(N,)`` integers: each run of one number is a row, and negative ones are padding. Give this
                or ``cu_seqlens``.
            max_length: tokens of the longest row. Without it the lengths are read, which waits for an accelerator if
                they are on one, as ``segment_ids`` always does.

        Raises:
            ValueError: if not exactly one of the two is given, or its shape is not as stated, or ``cu_seqlens`` on the
                CPU does not begin with 0 or decreases.
        """
        if segment_ids is not None and cu_seqlens is None:
            starts, lengths = _runs(_integers("segment_ids", segment_ids))
        elif cu_seqlens is not None and segment_ids is None:
            bounds = _integers("cu_seqlens", cu_seqlens)
            _check_bounds(bounds)
            starts, lengths = bounds[:-1], bounds.diff()
        else:
            msg = f"got {'neither' if cu_seqlens is None else 'both'} of cu_seqlens and segment_ids; expected one"
            raise ValueError(msg)
        if max_length is None:
            max_length = int(lengths.max()) if len(lengths) else 0
        positions = torch.arange(max_length, device=lengths.device)
        inside = positions < lengths.unsqueeze(-1)
        ends = starts + lengths
        reach = None if ends.device.type != "cpu" else int(ends.max()) if len(ends) else 0
        return cls(torch.where(inside, starts.unsqueeze(-1) + positions, 0), inside, reach)

    def to(self, device: torch.device) -> Packing:
        """Returns the packing on another device."""
        if self.index.device == device:
            return self
        index, inside = (part.to(device, non_blocking=True) for part in (self.index, self.inside))
        return Packing(index, inside, self.reach)

    @cached_property
    def _padding(self) -> torch.Tensor:
        return ~self.inside

    def pad(self, name: str, values: torch.Tensor, *, fill: bool = True) -> torch.Tensor:
        """Returns packed values as ``(B, T)``.

        Args:
            name: name of the values, for the error.
            values: ``(N,)``.
            fill: whether padding is zero; without it padding has any of the values, for readers that mask it out.

        Raises:
            ValueError: if the shape is not as stated, or a row is known to reach beyond the values.
        """
        if values.dim() != 1:
            msg = f"got {name} of shape {tuple(values.shape)} with a packing; expected (N,), one row after another"
            raise ValueError(msg)
        if self.reach is not None and self.reach > len(values):
            msg = f"got {name} of {len(values)} tokens; the packing has rows up to token {self.reach}"
            raise ValueError(msg)
        rows = self.to(values.device)
        if not len(values):
            return values.new_zeros(rows.index.shape)
        index = rows.index if self.reach is not None else rows.index.clamp(max=len(values) - 1)
        padded_values = values.take(index)
        return padded_values.masked_fill_(rows._padding, 0) if fill else padded_values

    def unpad(self, values: torch.Tensor, *, total: int, outside: float = 1.0) -> torch.Tensor:
        """Returns padded values as ``(total,)``: the inverse of :meth:`pad`.

        Args:
            values: ``(B, T)``, or ``(B, 1)``, which every token of the row then gets.
            total: length of the packed vector.
            outside: value outside of all rows.
        """
        rows = self.to(values.device)
        packed = values.new_full((total + 1,), outside)
        index = torch.where(rows.inside, rows.index, total)
        return packed.scatter(0, index.flatten(), values.expand_as(index).flatten())[:total]


def padded(packing: Packing | None, **batch: Any) -> Any:
    """Returns the tensors of a batch as ``(B, T)``; lists of log-probabilities, which may have gaps, unchanged.

    Args:
        packing: where the rows lie if the tensors are ``(N,)``; None if they are nested or padded.
        batch: ``train_logps``, ``rollout_logps``, ``mask`` and whatever else has an entry for each token, or None.

    Raises:
        TypeError: if some are packed or nested and others are not.
        ValueError: if a shape is not as stated, or rows are of other lengths than ``train_logps``.
    """
    if packing is None and isinstance(batch["train_logps"], torch.Tensor) and batch["train_logps"].is_nested:
        packing, batch = _unnested(batch)
    if packing is not None:
        return tuple(
            None if values is None else packing.pad(name, values, fill=name not in _MASKED)
            for name, values in batch.items()
        )
    plain = ("train_logps", "rollout_logps")
    return tuple(pad_rows(name, rows) if name not in plain else rows for name, rows in batch.items())


def pad_rows(name: str, rows: Any) -> Any:
    """Pads rows, each a list of numbers or a 1-D tensor, to one ``(B, T)`` tensor, zero at padding.

    Raises:
        TypeError: if the argument is neither a tensor nor such rows.
    """
    if rows is None or isinstance(rows, torch.Tensor):
        return rows
    try:
        tensors = [row if isinstance(row, torch.Tensor) else torch.as_tensor(row) for row in rows]
        return pad_sequence(tensors, batch_first=True) if tensors else torch.zeros((0, 0))
    except (TypeError, ValueError, RuntimeError) as error:
        msg = f"got {name} of type {type(rows).__name__}; expected a tensor, or one flat list or 1-D tensor a row"
        raise TypeError(msg) from error


def _unnested(batch: Mapping[str, Any]) -> tuple[Packing, dict[str, torch.Tensor | None]]:
    """Returns the packing of nested ``(B, ragged)`` tensors and their ``(N,)`` values."""
    packing: Packing | None = None
    values: dict[str, torch.Tensor | None] = {}
    for name, tensor in batch.items():
        if tensor is None:
            values[name] = None
            continue
        if not isinstance(tensor, torch.Tensor) or not tensor.is_nested:
            msg = f"got nested train_logps and {name} of type {type(tensor).__name__} that is not; expected all nested"
            raise TypeError(msg)
        other, values[name] = _values(tensor)
        packing = packing or other
        on_cpu = other.index.device.type == "cpu"
        if other.index.shape != packing.index.shape or (on_cpu and not torch.equal(other.inside, packing.inside)):
            msg = f"got {name} with rows of other lengths than train_logps; expected the same"
            raise ValueError(msg)
    assert packing is not None
    return packing, values


def _values(nested: torch.Tensor) -> tuple[Packing, torch.Tensor]:
    if nested.layout is torch.jagged:
        jagged: Any = nested
        return Packing.of(cu_seqlens=jagged.offsets()), jagged.values()
    rows = nested.unbind()
    bounds = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    return Packing.of(cu_seqlens=bounds), torch.cat(rows)


def _integers(name: str, values: torch.Tensor | Sequence[int]) -> torch.Tensor:
    tensor = torch.as_tensor(values).detach()
    if tensor.dim() != 1 or tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        msg = f"got {name} of shape {tuple(tensor.shape)} and dtype {tensor.dtype}; expected a vector of integers"
        raise ValueError(msg)
    return tensor.to(torch.int64)


def _check_bounds(bounds: torch.Tensor) -> None:
    if not len(bounds):
        msg = "got no cu_seqlens; expected where each row begins and where the last one ends, so [0] for no row"
        raise ValueError(msg)
    if bounds.device.type == "cpu" and (int(bounds[0]) != 0 or bool((bounds.diff() < 0).any())):
        msg = f"got cu_seqlens {bounds[:8].tolist()}...; expected numbers that begin with 0 and never decrease"
        raise ValueError(msg)


def _runs(segment_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns starts and lengths of the runs of non-negative numbers."""
    ids, lengths = torch.unique_consecutive(segment_ids, return_counts=True)
    starts = lengths.cumsum(0) - lengths
    return starts[ids >= 0], lengths[ids >= 0]
