"""Damage: changes of a window after it was scored, in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tests.support.world.net import Weights
    from tests.support.world.training import Arrival, Damage, Window

Tensor = torch.Tensor
Where = Callable[["Window", torch.Generator], Tensor]
"""Marks ``(B, T)`` tokens that are damaged."""
RANKS = 4


def everywhere(window: Window, generator: torch.Generator) -> Tensor:
    """All tokens."""
    return torch.ones_like(window.mask)


def one_rank(window: Window, generator: torch.Generator) -> Tensor:
    """Rows of the last of four ranks."""
    marked = torch.zeros_like(window.mask)
    marked[-(len(marked) // RANKS) :] = True
    return marked


def every_fourth_row(window: Window, generator: torch.Generator) -> Tensor:
    """Every fourth row."""
    marked = torch.zeros_like(window.mask)
    marked[::4] = True
    return marked


def positions(first: int, last: int) -> Where:
    """Tokens at a range of positions."""

    def where(window: Window, generator: torch.Generator) -> Tensor:
        marked = torch.zeros_like(window.mask)
        marked[:, first:last] = True
        return marked

    return where


def at_random(share: float) -> Where:
    """Random tokens."""
    return lambda window, generator: torch.rand(window.mask.shape, generator=generator) < share


def ends(count: int) -> Where:
    """The last tokens of every row."""

    def where(window: Window, generator: torch.Generator) -> Tensor:
        left = window.mask.flip(1).cumsum(1).flip(1)
        return window.mask & (left <= count)

    return where


def since(index: int, damage: Damage) -> Damage:
    """Damage from a window on."""

    def late(window: Window, generator: torch.Generator) -> None:
        if window.index >= index:
            damage(window, generator)

    return late


def put(side: str, value: float, where: Where) -> Damage:
    """Replaces log-probabilities of the side ``train``, ``rollout`` or ``both`` by a value."""

    def damage(window: Window, generator: torch.Generator) -> None:
        marked = where(window, generator)
        for name in ("train", "rollout") if side == "both" else (side,):
            getattr(window, name)[marked] = value

    return damage


def add(value: float, spread: float, where: Where) -> Damage:
    """Adds Gaussian noise to the trainer's log-probabilities."""

    def damage(window: Window, generator: torch.Generator) -> None:
        noise = value + spread * torch.randn(window.mask.shape, generator=generator)
        window.train += torch.where(where(window, generator), noise, 0.0)

    return damage


def shift(lag: int, where: Where) -> Damage:
    """Gives the trainer's tokens their neighbour's log-probability."""
    return lambda window, generator: _replace(window, window.train.roll(lag, 1), where(window, generator))


def swap_rows(where: Where) -> Damage:
    """Gives the trainer's rows the log-probabilities of the next marked row."""

    def damage(window: Window, generator: torch.Generator) -> None:
        rows = where(window, generator).any(1).nonzero()[:, 0]
        window.train[rows] = window.train[rows.roll(1)]

    return damage


def row_means(window: Window, generator: torch.Generator) -> None:
    """Gives each of the engine's tokens the mean of its row."""
    total = (window.rollout * window.mask).sum(1, keepdim=True)
    window.rollout[:] = total / window.mask.sum(1, keepdim=True)


def score_padding(train: float, rollout: float) -> Damage:
    """Counts the padding as tokens; the trainer's values there scatter by a third unless they are 0."""

    def damage(window: Window, generator: torch.Generator) -> None:
        marked = ~window.mask
        window.mask |= marked
        scattered = train * torch.exp(0.3 * torch.randn(marked.shape, generator=generator))
        window.train[marked] = scattered[marked]
        window.rollout[marked] = rollout

    return damage


def rescale(factor: float) -> Damage:
    """Multiplies the engine's log-probabilities."""
    return lambda window, generator: _assign(window.rollout, window.rollout * factor)


def retokenize(every: int) -> Damage:
    """Gives every so-manyth row, from its middle on, the trainer's log-probabilities of other tokens."""

    def damage(window: Window, generator: torch.Generator) -> None:
        half = window.train.shape[1] // 2
        rows = window.train[::every, half:]
        shuffled = torch.rand(rows.shape, generator=generator).argsort(1)
        window.train[::every, half:] = rows.gather(1, shuffled)

    return damage


def lose_unlikely(below: float, spread: float) -> Damage:
    """Adds noise to the trainer's log-probabilities of tokens that are unlikely to it."""

    def damage(window: Window, generator: torch.Generator) -> None:
        noise = spread * torch.randn(window.train.shape, generator=generator)
        window.train += torch.where(window.train < below, noise, 0.0)

    return damage


def other_base(window: Window, generator: torch.Generator) -> None:
    """Gives the engine's log-probabilities in base 2."""
    window.rollout /= math.log(2.0)


def negate(window: Window, generator: torch.Generator) -> None:
    """Gives the engine's log-probabilities the wrong sign."""
    window.rollout.neg_()


def copy(window: Window, generator: torch.Generator) -> None:
    """Gives the engine's side as the trainer's numbers."""
    window.rollout[:] = window.train


def mask_all(window: Window, generator: torch.Generator) -> None:
    """Masks every token out."""
    window.mask[:] = False


def stops(start: int) -> Arrival:
    """Weights stop to arrive at a window."""
    return lambda now, past: past[min(now, start)]


def restarts(start: int, lost: int = 0) -> Arrival:
    """The engine restarts with the weights of the window ``lost`` and gets no others."""
    return lambda now, past: past[now] if now < start else past[lost]


def syncs_every(count: int) -> Arrival:
    """Weights arrive at every so many windows."""
    return lambda now, past: past[now - now % count]


def loads(start: int, other: Callable[[Weights], Weights]) -> Arrival:
    """The engine loads changed weights from a window on."""
    return lambda now, past: past[now] if now < start else other(past[now])


def _assign(target: Tensor, values: Tensor) -> None:
    target[:] = values


def _replace(window: Window, values: Tensor, marked: Tensor) -> None:
    window.train[:] = torch.where(marked, values, window.train)
