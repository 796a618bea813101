"""What is wrong with a synthetic run: each changes a window in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.support.synthetic import BASE, VOCABULARY, Batch, log_softmax, pick

if TYPE_CHECKING:
    from collections.abc import Callable


def shift(by: int) -> Callable[[np.random.Generator, Batch], None]:
    """The trainer's log-probabilities of the neighbouring token."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        batch.train = np.roll(batch.train, -by, axis=1)

    return change


def zero(share: float) -> Callable[[np.random.Generator, Batch], None]:
    """Zeros in the place of a share of the rollout's log-probabilities."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        batch.rollout = np.where(rng.random(batch.rollout.shape) < share, 0.0, batch.rollout)

    return change


def missing(share: float) -> Callable[[np.random.Generator, Batch], None]:
    """NaN in their place."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        batch.rollout = np.where(rng.random(batch.rollout.shape) < share, np.nan, batch.rollout)

    return change


def filler(share: float, *, at_end: bool) -> Callable[[np.random.Generator, Batch], None]:
    """A stretch of each row that nobody sampled, with zeros for its log-probabilities."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        size = np.maximum((share * batch.lengths).astype(int), 1)
        begin = batch.lengths - size if at_end else (rng.random(len(size)) * (batch.lengths - size)).astype(int)
        place = np.arange(batch.mask.shape[1])
        inside = (place >= begin[:, None]) & (place < (begin + size)[:, None])
        batch.rollout = np.where(inside, 0.0, batch.rollout)
        batch.train = np.where(inside, -rng.uniform(5.0, 15.0, size=inside.shape), batch.train)

    return change


def last(rng: np.random.Generator, batch: Batch) -> None:
    """A last token that the trainer finds unlikely."""
    rows = np.arange(len(batch.lengths))
    batch.train[rows, batch.lengths - 1] -= rng.uniform(1.0, 5.0, size=len(rows))


def tail(rng: np.random.Generator, batch: Batch) -> None:
    """Garbage in the engine's last three."""
    from_end = batch.lengths[:, None] - np.arange(batch.mask.shape[1])
    garbage = -rng.uniform(10.0, 25.0, size=batch.mask.shape)
    batch.rollout = np.where((from_end >= 1) & (from_end <= 3), garbage, batch.rollout)


def starts(share: float, size: float) -> Callable[[np.random.Generator, Batch], None]:
    """More noise in the engine from a share of the rows on."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        late = np.arange(batch.mask.shape[1]) >= share * batch.lengths[:, None]
        noisy = batch.rollout + size * rng.standard_normal(batch.rollout.shape)
        batch.rollout = np.where(late, np.minimum(noisy, 0.0), batch.rollout)

    return change


def experts(share: float, size: float) -> Callable[[np.random.Generator, Batch], None]:
    """Logits of other experts in the trainer, for a share of the tokens."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        other = BASE[batch.context] + size * rng.standard_normal((*batch.context.shape, VOCABULARY))
        routed = rng.random(batch.context.shape) < share
        batch.train = np.where(routed, pick(log_softmax(other), batch.tokens), batch.train)

    return change


def mispaired(share: float) -> Callable[[np.random.Generator, Batch], None]:
    """Completions scored under another row's context."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        rows = np.arange(len(batch.lengths)) < max(2, round(share * len(batch.lengths)))
        wrong = np.roll(batch.context, 1, axis=0)
        scored = pick(log_softmax(BASE[wrong]), batch.tokens)
        batch.train = np.where(rows[:, None], scored, batch.train)

    return change


def constant(by: float) -> Callable[[np.random.Generator, Batch], None]:
    """One side's log-probabilities are not normalised: all are lower by a constant, the engine's if it is above 0."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        batch.rollout, batch.train = batch.rollout - max(by, 0.0), batch.train + min(by, 0.0)

    return change


def logits(rng: np.random.Generator, batch: Batch) -> None:
    """The engine's logits in the place of its log-probabilities."""
    batch.rollout = pick(BASE[batch.context], batch.tokens)


def same(rng: np.random.Generator, batch: Batch) -> None:
    """The trainer's log-probabilities on both sides."""
    batch.rollout = batch.train


def nothing(rng: np.random.Generator, batch: Batch) -> None:
    """Everything masked."""
    batch.mask = np.zeros_like(batch.mask)


def absurd(share: float) -> Callable[[np.random.Generator, Batch], None]:
    """Single tokens far off, and the run's first, lest a short run have none."""
    windows: list[Batch] = []

    def change(rng: np.random.Generator, batch: Batch) -> None:
        off = rng.random(batch.train.shape) < share
        off[0, 0] |= not windows
        windows.append(batch)
        batch.train = np.where(off, batch.train - 20.0, batch.train)

    return change
