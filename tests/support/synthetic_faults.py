"""Faults of synthetic runs; each function returns or is a change of a window in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.support.synthetic import BASE, VOCABULARY, Batch, log_softmax, pick

if TYPE_CHECKING:
    from collections.abc import Callable


def shift(by: int) -> Callable[[np.random.Generator, Batch], None]:
    """Gives the trainer the log-probabilities of the neighbouring token."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        batch.train = np.roll(batch.train, -by, axis=1)

    return change


def zero(share: float) -> Callable[[np.random.Generator, Batch], None]:
    """Replaces a share of the rollout's log-probabilities by 0."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        batch.rollout = np.where(rng.random(batch.rollout.shape) < share, 0.0, batch.rollout)

    return change


def missing(share: float) -> Callable[[np.random.Generator, Batch], None]:
    """Replaces a share of the rollout's log-probabilities by NaN."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        batch.rollout = np.where(rng.random(batch.rollout.shape) < share, np.nan, batch.rollout)

    return change


def filler(share: float, *, at_end: bool) -> Callable[[np.random.Generator, Batch], None]:
    """Makes a part of each completion unsampled, with 0 for its rollout log-probabilities."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        size = np.maximum((share * batch.lengths).astype(int), 1)
        begin = batch.lengths - size if at_end else (rng.random(len(size)) * (batch.lengths - size)).astype(int)
        position = np.arange(batch.mask.shape[1])
        inside = (position >= begin[:, None]) & (position < (begin + size)[:, None])
        batch.rollout = np.where(inside, 0.0, batch.rollout)
        batch.train = np.where(inside, -rng.uniform(5.0, 15.0, size=inside.shape), batch.train)

    return change


def last(rng: np.random.Generator, batch: Batch) -> None:
    """Makes the last token unlikely for the trainer."""
    rows = np.arange(len(batch.lengths))
    batch.train[rows, batch.lengths - 1] -= rng.uniform(1.0, 5.0, size=len(rows))


def tail(rng: np.random.Generator, batch: Batch) -> None:
    """Puts garbage into the engine's last three tokens."""
    from_end = batch.lengths[:, None] - np.arange(batch.mask.shape[1])
    garbage = -rng.uniform(10.0, 25.0, size=batch.mask.shape)
    batch.rollout = np.where((from_end >= 1) & (from_end <= 3), garbage, batch.rollout)


def starts(share: float, size: float) -> Callable[[np.random.Generator, Batch], None]:
    """Adds noise to the engine from a share of each completion on."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        late = np.arange(batch.mask.shape[1]) >= share * batch.lengths[:, None]
        noisy = batch.rollout + size * rng.standard_normal(batch.rollout.shape)
        batch.rollout = np.where(late, np.minimum(noisy, 0.0), batch.rollout)

    return change


def experts(share: float, size: float) -> Callable[[np.random.Generator, Batch], None]:
    """Gives the trainer the logits of other experts for a share of the tokens."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        other = BASE[batch.context] + size * rng.standard_normal((*batch.context.shape, VOCABULARY))
        routed = rng.random(batch.context.shape) < share
        batch.train = np.where(routed, pick(log_softmax(other), batch.tokens), batch.train)

    return change


def mispaired(share: float) -> Callable[[np.random.Generator, Batch], None]:
    """Scores a share of the completions under the context of another one."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        rows = np.arange(len(batch.lengths)) < max(2, round(share * len(batch.lengths)))
        wrong = np.roll(batch.context, 1, axis=0)
        scored = pick(log_softmax(BASE[wrong]), batch.tokens)
        batch.train = np.where(rows[:, None], scored, batch.train)

    return change


def constant(by: float) -> Callable[[np.random.Generator, Batch], None]:
    """Lowers one side's log-probabilities by a constant: the engine's if it is above 0, else the trainer's."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        batch.rollout, batch.train = batch.rollout - max(by, 0.0), batch.train + min(by, 0.0)

    return change


def logits(rng: np.random.Generator, batch: Batch) -> None:
    """Replaces the engine's log-probabilities by its logits."""
    batch.rollout = pick(BASE[batch.context], batch.tokens)


def same(rng: np.random.Generator, batch: Batch) -> None:
    """Puts the trainer's log-probabilities on both sides."""
    batch.rollout = batch.train


def nothing(rng: np.random.Generator, batch: Batch) -> None:
    """Masks every token."""
    batch.mask = np.zeros_like(batch.mask)


def absurd(share: float) -> Callable[[np.random.Generator, Batch], None]:
    """Moves single tokens far off, always including the run's first, so that a short run has one."""
    windows: list[Batch] = []

    def change(rng: np.random.Generator, batch: Batch) -> None:
        off = rng.random(batch.train.shape) < share
        off[0, 0] |= not windows
        windows.append(batch)
        batch.train = np.where(off, batch.train - 20.0, batch.train)

    return change
