"""Runs of two engines over a small vocabulary, healthy or with one fault, with fixed seeds.

Every token has its own logits, from peaked to flat. The engine samples from its distribution and the trainer scores the
sampled tokens, so that E[ratio] = 1 holds where it must, and truncation, temperature and drift act as in a real run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

import ratioscope as rs
from ratioscope.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCABULARY, CONTEXTS = 32, 4096
Array = NDArray[np.float64]

_MAKER = np.random.default_rng(20261130)
_SHARPNESS = _MAKER.choice([1.5, 3.0, 6.0], size=(CONTEXTS, 1))
BASE: Array = _SHARPNESS * _MAKER.standard_normal((CONTEXTS, VOCABULARY))
DIRECTION: Array = _MAKER.standard_normal((CONTEXTS, VOCABULARY))
"""Direction in which training moves the logits."""


@dataclass
class Batch:
    """One window: arrays of shape ``(B, T)``; ``lengths`` has ``(B,)``."""

    train: Array
    rollout: Array
    mask: NDArray[np.bool_]
    context: NDArray[np.int64]
    tokens: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class Spec:
    """Specification of a synthetic run.

    Attributes:
        windows: number of windows.
        rows: completions per window.
        length: length of the longest completion; the shortest has half of it.
        noise: standard deviation of the difference of logits.
        heavy: Student's t with 5 degrees of freedom instead of a Gaussian.
        engine_temperature: temperature at which the engine samples.
        reported_temperature: temperature of the engine's log-probabilities; None for that of sampling.
        trainer_temperature: temperature at which the trainer scores.
        top_p: kept mass.
        top_k: kept tokens, 0 for all.
        min_p: smallest kept probability, relative to the largest.
        behind: multiple of :data:`DIRECTION` by which the engine lags, by index of the window.
        after: changes a window in place.
        correction: the rule.
        config: the run config.
    """

    windows: int = 8
    rows: int = 16
    length: int = 64
    noise: float = 0.01
    heavy: bool = False
    engine_temperature: float = 1.0
    reported_temperature: float | None = None
    trainer_temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    behind: Callable[[int], float] = lambda _: 0.0
    after: Callable[[np.random.Generator, Batch], None] = lambda *_: None
    correction: rs.Correction | None = None
    config: dict[str, Any] = field(default_factory=dict)


def records(spec: Spec, rng: np.random.Generator) -> Iterator[Record]:
    """Yields the records of a run, one per window."""
    for index in range(spec.windows):
        batch = window(spec, rng, index)
        train, rollout = (torch.from_numpy(side.astype(np.float32)) for side in (batch.train, batch.rollout))
        summary = rs.summarize(train, rollout, torch.from_numpy(batch.mask), correction=spec.correction)
        # The checks compute what they need from the state.
        scalars = {"ratioscope/counts/tokens": float(summary.count("token/n"))}
        yield Record(index + 1, "train", 0.0, scalars, summary.to_host())


def window(spec: Spec, rng: np.random.Generator, index: int) -> Batch:
    """Draws the window with this index."""
    shape = spec.rows, spec.length
    lengths = rng.integers(max(spec.length // 2, 2), spec.length + 1, size=spec.rows)
    context = rng.integers(CONTEXTS, size=shape)
    tilt = spec.behind(index)
    scored = BASE[context]
    sampled = scored + spec.noise * _noise(rng, (*shape, VOCABULARY), heavy=spec.heavy)
    if tilt:
        scored = scored + tilt * DIRECTION[context]
    engine = log_softmax(sampled / spec.engine_temperature)
    engine = _cut(engine, spec)
    uniform = rng.random((*shape, 1))
    tokens = (np.exp(engine).cumsum(axis=-1) < uniform).sum(axis=-1).clip(max=VOCABULARY - 1)
    tokens = np.where(np.isfinite(pick(engine, tokens)), tokens, engine.argmax(axis=-1))
    if spec.reported_temperature is not None:
        engine = log_softmax(sampled / spec.reported_temperature)
    trainer = log_softmax(scored / spec.trainer_temperature)
    mask = np.arange(spec.length) < lengths[:, None]
    batch = Batch(pick(trainer, tokens), pick(engine, tokens), mask, context, tokens, lengths)
    spec.after(rng, batch)
    return batch


def _noise(rng: np.random.Generator, shape: tuple[int, ...], *, heavy: bool) -> NDArray[np.float32]:
    normal = rng.standard_normal(shape, dtype=np.float32)
    if not heavy:
        return normal
    # One mixing variable per token: its logits deviate together, which makes d itself heavy-tailed.
    scale = np.sqrt(3.0 / rng.chisquare(5, size=(*shape[:-1], 1)))
    return normal * scale.astype(np.float32)


def log_softmax(logits: Array) -> Array:
    """Log-softmax along the vocabulary."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalised


def _cut(logps: Array, spec: Spec) -> Array:
    """Renormalises log-probabilities on the tokens that top_p, top_k and min_p keep."""
    if spec.top_p == 1.0 and not spec.top_k and not spec.min_p:
        return logps
    order = np.argsort(-logps, axis=-1)
    ordered = np.take_along_axis(logps, order, axis=-1)
    mass = np.exp(ordered)
    keep = mass.cumsum(axis=-1) - mass < spec.top_p
    if spec.top_k:
        keep &= np.arange(VOCABULARY) < spec.top_k
    keep &= mass >= spec.min_p * mass[..., :1]
    kept = np.where(keep, ordered, -np.inf)
    kept -= np.log(np.exp(kept).sum(axis=-1, keepdims=True))
    back = np.empty_like(kept)
    np.put_along_axis(back, order, kept, axis=-1)
    return back


def pick(logps: Array, tokens: NDArray[np.int64]) -> Array:
    """Selects the log-probabilities of tokens."""
    picked: Array = np.take_along_axis(logps, tokens[..., None], axis=-1)[..., 0]
    return picked
