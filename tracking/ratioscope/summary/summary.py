"""RatioSummary: a fixed-size, mergeable state from which every statistic is computed.

The state is a handful of tensors: float64 sums, float64 maxima, int64 counts and histograms, and tables of what is
largest. Sums of
exponentials are kept relative to the largest log-ratio seen, so nothing overflows; ``merge`` brings two states to
the same reference first. Merging is associative and commutative with :meth:`RatioSummary.empty` as identity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ratioscope.batch.observation import Logps, Mask, Observation
from ratioscope.metrics.catalogue import compute
from ratioscope.metrics.view import View
from ratioscope.state import histogram, slots
from ratioscope.state.length_histogram import LENGTH_COUNTS, N_LENGTHS
from ratioscope.state.rescale import rescale
from ratioscope.state.slots import COUNTS, HISTOGRAMS, MAXIMA, SUMS
from ratioscope.state.tables import TOP_SIZE, Top
from ratioscope.summary import reduce as reduction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratioscope.batch.packing import Packing
    from ratioscope.correction.rule import CorrectedBatch, Rule

_SIZES = (
    len(MAXIMA),
    len(SUMS),
    len(COUNTS),
    len(HISTOGRAMS) * histogram.N_BUCKETS,
    len(LENGTH_COUNTS) * N_LENGTHS,
    TOP_SIZE,
)

PACKED_SIZE = sum(_SIZES)
"""Number of float64 in a packed summary, whatever was observed: about 73 KB."""


@dataclass(frozen=True, eq=False)
class RatioSummary:
    """What was observed, reduced. Make one with :meth:`observe` or :meth:`empty`; the fields are its state.

    Attributes:
        correction: the rule whose effect is counted; None where nothing was corrected.
        maxima: float64, one slot for each of ``slots.MAXIMA``; minima are kept negated.
        sums: float64, one slot for each of ``slots.SUMS``.
        counts: int64, one slot for each of ``slots.COUNTS``. Exact while below 2**53, where a packed one ends.
        histograms: int64 ``(len(HISTOGRAMS), N_BUCKETS)``.
        lengths: int64 ``(len(LENGTH_COUNTS), N_LENGTHS)``, by length of the row.
        top: the largest row log-ratios, the worst tokens and the worst rows.
    """

    correction: Rule | None
    maxima: torch.Tensor
    sums: torch.Tensor
    counts: torch.Tensor
    histograms: torch.Tensor
    lengths: torch.Tensor
    top: Top

    @classmethod
    def empty(cls, correction: Rule | None = None, *, device: torch.device | str = "cpu") -> RatioSummary:
        """The identity of :meth:`merge`."""
        maxima = torch.full((len(MAXIMA),), -torch.inf, dtype=torch.float64, device=device)
        maxima[slots.GENERATIONS] = 0.0
        return cls(
            correction=correction,
            maxima=maxima,
            sums=torch.zeros(len(SUMS), dtype=torch.float64, device=device),
            counts=torch.zeros(len(COUNTS), dtype=torch.int64, device=device),
            histograms=torch.zeros((len(HISTOGRAMS), histogram.N_BUCKETS), dtype=torch.int64, device=device),
            lengths=torch.zeros((len(LENGTH_COUNTS), N_LENGTHS), dtype=torch.int64, device=device),
            top=Top.empty(device),
        )

    @classmethod
    @torch.no_grad()
    def observe(
        cls,
        observation: Observation,
        *,
        correction: Rule | None = None,
        applied: torch.Tensor | None = None,
        corrected: CorrectedBatch | None = None,
    ) -> RatioSummary:
        """Reduces one batch on its device, without a host sync.

        Args:
            observation: the batch.
            correction: the rule whose effect is to be counted.
            applied: the weights that the loss really uses, ``(B, T)`` or ``(B, 1)``. Where one of them is not the
                rule's to the bit, statistics of corrected weights are withheld.
            corrected: what the rule did to this batch, where that is known already.
        """
        return cls(correction, *reduction.reduce(observation, correction, applied=applied, corrected=corrected))

    def merge(self, *others: RatioSummary) -> RatioSummary:
        """All summaries' observations as one, on this summary's device. Generations add up.

        Raises:
            ValueError: if two of them follow different corrections, whose effects cannot be pooled.
        """
        if not others:
            return self
        every = (self, *(other.to(self.maxima.device) for other in others))
        own = torch.stack([one.maxima for one in every])
        maxima = own.amax(dim=0)
        maxima[slots.GENERATIONS] = own[:, slots.GENERATIONS].sum()
        return RatioSummary(
            reduce(common_correction, (one.correction for one in every)),
            maxima=maxima,
            sums=rescale(torch.stack([one.sums for one in every]), own, maxima).sum(dim=0),
            counts=_total([one.counts for one in every]),
            histograms=_total([one.histograms for one in every]),
            lengths=_total([one.lengths for one in every]),
            top=self.top.merge(*(one.top for one in every[1:])),
        )

    def pack(self) -> torch.Tensor:
        """The state as one float64 vector of :data:`PACKED_SIZE`: maxima first, the tables of the largest last."""
        integers = [part.double().flatten() for part in (self.counts, self.histograms, self.lengths)]
        return torch.cat([self.maxima, self.sums, *integers, self.top.pack()])

    @classmethod
    def unpack(cls, packed: torch.Tensor, *, correction: Rule | None = None) -> RatioSummary:
        """Inverse of :meth:`pack`; the correction is not part of the vector.

        Raises:
            ValueError: if the vector has not exactly :data:`PACKED_SIZE` elements.
        """
        if tuple(packed.shape) != (PACKED_SIZE,):
            msg = f"got a packed summary of shape {tuple(packed.shape)}; expected ({PACKED_SIZE},), as pack() makes it"
            raise ValueError(msg)
        maxima, sums, counts, histograms, lengths, top = packed.double().split(_SIZES)
        return cls(
            correction,
            maxima=maxima,
            sums=sums,
            counts=counts.to(torch.int64),
            histograms=histograms.to(torch.int64).view(len(HISTOGRAMS), histogram.N_BUCKETS),
            lengths=lengths.to(torch.int64).view(len(LENGTH_COUNTS), N_LENGTHS),
            top=Top.unpack(top),
        )

    def metrics(self, *, detail: str = "full") -> dict[str, float]:
        """Every statistic that has data, by full key, as finite Python floats.

        Copies the state to the host once.

        Args:
            detail: ``"headline"``, ``"standard"`` or ``"full"``, as in :mod:`ratioscope.metrics.metric`.
        """
        return compute(self.view(), detail=detail)

    def view(self) -> View:
        """The state on the host, by name. Copies the state in one transfer."""
        host = self if self.maxima.device.type == "cpu" else RatioSummary.unpack(self.pack().cpu())
        counts = dict(zip(COUNTS, host.counts.tolist(), strict=True))
        top_log_ratios = host.top.log_ratios.numpy()
        return View(
            correction=self.correction,
            level="token" if self.correction is None else self.correction.level,
            trusted=counts["disagreements"] == 0,
            sums=dict(zip(SUMS, host.sums.tolist(), strict=True)),
            maxima=dict(zip(MAXIMA, host.maxima.tolist(), strict=True)),
            counts=counts,
            histograms=dict(zip(HISTOGRAMS, host.histograms.numpy(), strict=True)),
            lengths=dict(zip(LENGTH_COUNTS, host.lengths.numpy(), strict=True)),
            top_log_ratios=top_log_ratios[top_log_ratios > -math.inf],
        )

    def count(self, name: str) -> int:
        """One slot of ``slots.COUNTS``."""
        return int(self.counts[COUNTS.index(name)])

    def failed(self) -> RatioSummary:
        """The same with one more observation that could not be made."""
        counts = self.counts.clone()
        counts[COUNTS.index("errors")] += 1
        return replace(self, counts=counts)

    def to(self, device: torch.device | str) -> RatioSummary:
        """The same on another device."""
        if self.maxima.device == torch.device(device):
            return self
        return RatioSummary(
            self.correction,
            maxima=self.maxima.to(device),
            sums=self.sums.to(device),
            counts=self.counts.to(device),
            histograms=self.histograms.to(device),
            lengths=self.lengths.to(device),
            top=self.top.to(device),
        )

    def __eq__(self, other: object) -> bool:
        """True if rule and state are the same to the bit; one NaN is like another."""
        if not isinstance(other, RatioSummary):
            return NotImplemented
        packed = (self.pack().cpu(), other.pack().cpu())
        mine, theirs = (torch.where(state.isnan(), torch.nan, state) for state in packed)
        return self.correction == other.correction and torch.equal(mine.view(torch.int64), theirs.view(torch.int64))

    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> dict[str, Any]:
        """The state by name, on the CPU; infinities as strings, histograms sparse, identities left out."""
        maxima = dict(zip(MAXIMA, self.maxima.tolist(), strict=True))
        rows = zip(HISTOGRAMS, self.histograms.numpy(), strict=True)
        return {
            "maxima": {name: _to_json(value) for name, value in maxima.items() if value != -np.inf},
            "sums": {name: _to_json(value) for name, value in zip(SUMS, self.sums.tolist(), strict=True)},
            "counts": dict(zip(COUNTS, self.counts.tolist(), strict=True)),
            "histograms": {name: histogram.to_sparse(row) for name, row in rows},
            "lengths": {
                name: histogram.to_sparse(row) for name, row in zip(LENGTH_COUNTS, self.lengths.numpy(), strict=True)
            },
            "top": self.top.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, correction: Rule | None) -> RatioSummary:
        """Inverse of :meth:`to_json`; unknown names are ignored, and what is missing is nothing observed."""
        maxima = [float(data["maxima"].get(name, -np.inf)) for name in MAXIMA]
        sums = [float(data["sums"].get(name, 0.0)) for name in SUMS]
        counts = [int(data["counts"].get(name, 0)) for name in COUNTS]
        histograms = [histogram.from_sparse(data["histograms"].get(name, {})) for name in HISTOGRAMS]
        by_length = data.get("lengths", {})
        lengths = [histogram.from_sparse(by_length.get(name, {}), size=N_LENGTHS) for name in LENGTH_COUNTS]
        return cls(
            correction,
            maxima=torch.tensor(maxima, dtype=torch.float64),
            sums=torch.tensor(sums, dtype=torch.float64),
            counts=torch.tensor(counts, dtype=torch.int64),
            histograms=torch.from_numpy(np.stack(histograms)),
            lengths=torch.from_numpy(np.stack(lengths)),
            top=Top.from_json(data.get("top", {})),
        )


def summarize(
    train_logps: Logps,
    rollout_logps: Logps,
    mask: Mask,
    *,
    correction: Rule | None = None,
    advantages: torch.Tensor | Sequence[float] | None = None,
    token_ids: torch.Tensor | Sequence[torch.Tensor] | None = None,
    packing: Packing | None = None,
) -> RatioSummary:
    """Summarises one batch.

    Args:
        train_logps: ``(B, T)`` log-probabilities of the sampled tokens under the trainer, in nats; or a nested tensor,
            or ``(N,)`` with a packing, or one list or 1-D tensor a row, in which None and a missing tail stand for a
            token that has none.
        rollout_logps: ``(B, T)`` the same under the engine that sampled them.
        mask: ``(B, T)`` bool or 0/1: completion tokens that the policy sampled (tool results excluded).
        correction: the rule whose effect is to be counted.
        advantages: ``(B,)`` advantage of each row.
        token_ids: ``(B, T)`` ids of the sampled tokens.
        packing: where the rows lie, for ``(N,)`` tensors.

    Raises:
        ValueError: if a shape is not exactly as stated.
        TypeError: if the log-probabilities are not floating-point.
    """
    observation = Observation.of(
        train_logps, rollout_logps, mask, advantages=advantages, token_ids=token_ids, packing=packing
    )
    return RatioSummary.observe(observation, correction=correction)


def _total(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).sum(dim=0)


def common_correction(one: Rule | None, other: Rule | None) -> Rule | None:
    """The rule of two summaries that are to be one.

    Raises:
        ValueError: if they follow different ones.
    """
    if one is not None and other is not None and one != other:
        msg = f"got summaries of different corrections, {one} and {other}; "
        msg += "expected the same rule. Flush before the rule changes, or keep one summary for each."
        raise ValueError(msg)
    return one or other


def _to_json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
