"""RatioSummary: a fixed-size, mergeable state from which every statistic is computed.

The state is a handful of tensors: float64 sums, float64 maxima, int64 counts and histograms, and tables of what is
largest. Sums of exponentials are kept relative to the largest log-ratio seen, so nothing overflows; ``merge`` brings
states to the same reference first. Merging is associative and commutative with :meth:`RatioSummary.empty` as identity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import torch

from ratioscope.batch.observation import Logps, Mask, Observation
from ratioscope.state import histogram, slots
from ratioscope.state.length_histogram import LENGTH_COUNTS, N_LENGTHS
from ratioscope.state.rescale import rescale
from ratioscope.state.slots import COUNTS, HISTOGRAMS, MAXIMA, SUMS
from ratioscope.state.tables import Top
from ratioscope.summary import reduce as reduction
from ratioscope.summary.host import PACKED_SIZE, PACKED_SIZES, HostSummary, common_correction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.batch.packing import Packing
    from ratioscope.correction.rule import CorrectedBatch, Rule
    from ratioscope.metrics.view import View


@dataclass(frozen=True, eq=False)
class RatioSummary:
    """Observations, reduced on their device. Make one with :meth:`observe` or :meth:`empty`; the fields are its state.

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
        maxima, sums, counts, histograms, lengths, top = packed.double().split(PACKED_SIZES)
        return cls(
            correction,
            maxima=maxima,
            sums=sums,
            counts=counts.to(torch.int64),
            histograms=histograms.to(torch.int64).view(len(HISTOGRAMS), histogram.N_BUCKETS),
            lengths=lengths.to(torch.int64).view(len(LENGTH_COUNTS), N_LENGTHS),
            top=Top.unpack(top),
        )

    def to_host(self) -> HostSummary:
        """Copies the state to the host, in one transfer."""
        return HostSummary.unpack(self.pack().cpu().numpy(), correction=self.correction)

    def metrics(self, *, detail: str = "full") -> dict[str, float]:
        """Every statistic that has data, by full key, as finite Python floats.

        Copies the state to the host once.

        Args:
            detail: ``"headline"``, ``"standard"`` or ``"full"``, as in :mod:`ratioscope.metrics.metric`.
        """
        return self.to_host().metrics(detail=detail)

    def view(self) -> View:
        """The state on the host, by name. Copies the state in one transfer."""
        return self.to_host().view()

    def count(self, name: str) -> int:
        """One slot of ``slots.COUNTS``."""
        return int(self.counts[COUNTS.index(name)])

    def failed(self) -> RatioSummary:
        """Counts one more observation that failed."""
        counts = self.counts.clone()
        counts[COUNTS.index("errors")] += 1
        return replace(self, counts=counts)

    def to(self, device: torch.device | str) -> RatioSummary:
        """Copies the state to a device."""
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
