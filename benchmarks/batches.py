"""Batches for the benchmarks: random log-probabilities of two engines that differ a little."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import ratioscope as rs


@dataclass(frozen=True)
class Batch:
    """One generated batch of B completions.

    Attributes:
        train: ``(B, T)``, or ``(N,)`` if packed.
        rollout: the same shape.
        mask: the same shape, bool.
        token_ids: the same shape, int64.
        advantages: ``(B,)``.
        packing: bounds of the packed completions; None for a padded batch.
        applied: weights by :data:`RULE`, as the trainer applies them.
    """

    train: torch.Tensor
    rollout: torch.Tensor
    mask: torch.Tensor
    token_ids: torch.Tensor
    advantages: torch.Tensor
    packing: rs.Packing | None
    applied: torch.Tensor

    def rows(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Train, rollout and mask in the shape for peers, which know no packing: a packed batch becomes one row."""
        if self.packing is None:
            return self.train, self.rollout, self.mask
        return self.train.unsqueeze(0), self.rollout.unsqueeze(0), self.mask.unsqueeze(0)


RULE = rs.Correction("token", "truncate", upper=2.0)
"""Correction that every contender applies."""


@dataclass(frozen=True)
class Case:
    """Shape and kind of a batch.

    Attributes:
        rows: number of completions.
        width: columns; a padded completion fills at least half of them.
        dtype: of the log-probabilities.
        packed: completions one after another, without padding.
    """

    rows: int
    width: int
    dtype: torch.dtype = torch.float32
    packed: bool = False

    @property
    def tokens(self) -> int:
        """Number of positions."""
        return self.rows * self.width

    def __str__(self) -> str:
        kind = "bf16" if self.dtype == torch.bfloat16 else "float32"
        return f"{self.rows}x{self.width} {'packed' if self.packed else 'padded'} {kind}"

    def make(self, *, device: str = "cpu", seed: int = 0) -> Batch:
        """Makes the batch; equal arguments give equal batches."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.rows, self.width)
        rollout = -torch.empty(shape).exponential_(1.5, generator=generator)
        train = (rollout + 0.02 * torch.randn(shape, generator=generator)).clamp(max=0.0)
        token_ids = torch.randint(0, 150_000, shape, generator=generator)
        advantages = torch.randn(self.rows, generator=generator)
        lengths = torch.randint(self.width // 2, self.width + 1, (self.rows, 1), generator=generator)
        mask = torch.ones(shape, dtype=torch.bool) if self.packed else torch.arange(self.width) < lengths
        parts = [train.to(self.dtype), rollout.to(self.dtype), mask, token_ids]
        packing = None
        if self.packed:
            parts = [part.flatten() for part in parts]
            bounds = torch.arange(0, self.tokens + 1, self.width)
            packing = rs.Packing.of(cu_seqlens=bounds, max_length=self.width).to(torch.device(device))
        train, rollout, mask, token_ids = (part.to(device) for part in parts)
        applied = rs.correct(train, rollout, mask, correction=RULE, packing=packing)
        return Batch(train, rollout, mask, token_ids, advantages.to(device), packing, applied)
