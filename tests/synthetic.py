"""Runs of two engines over a small vocabulary, healthy or with one fault, with fixed seeds.

Every token has logits of its own, from peaked to flat. The engine samples from its own distribution and the trainer
scores what was sampled, so that E[ratio] = 1 holds where it must and truncation, temperature and drift do what they
do in earnest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ratioscope as rs
from ratioscope.record import Record

VOCABULARY, CONTEXTS = 32, 4096
Array = NDArray[np.float64]

_MAKER = np.random.default_rng(20240917)
_SHARPNESS = _MAKER.choice([1.5, 3.0, 6.0], size=(CONTEXTS, 1))
BASE: Array = _SHARPNESS * _MAKER.standard_normal((CONTEXTS, VOCABULARY))
DIRECTION: Array = _MAKER.standard_normal((CONTEXTS, VOCABULARY))
"""In which a training moves the logits."""


@dataclass
class Batch:
    """One window: ``(B, T)`` each."""

    train: Array
    rollout: Array
    mask: NDArray[np.bool_]
    context: NDArray[np.int64]
    tokens: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class Spec:
    """How a run is made.

    Attributes:
        windows: how many.
        rows: of a window.
        length: longest row; the shortest is half of it.
        noise: standard deviation of the difference of logits.
        heavy: Student's t with 5 degrees of freedom instead of a Gaussian.
        engine_temperature: the engine samples at it.
        reported_temperature: the engine's log-probabilities are taken at it; None for the same.
        trainer_temperature: the trainer scores at it.
        top_p: kept mass.
        top_k: kept tokens, 0 for all.
        min_p: smallest probability that is kept, over the largest.
        behind: by how much of :data:`DIRECTION` the engine is behind, by window.
        after: changes a window.
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
    """Its windows."""
    for at in range(spec.windows):
        batch = window(spec, rng, at)
        train, rollout = (torch.from_numpy(side.astype(np.float32)) for side in (batch.train, batch.rollout))
        summary = rs.summarize(train, rollout, torch.from_numpy(batch.mask), correction=spec.correction)
        # The checks compute what they need from the state.
        yield Record(at + 1, "train", 0.0, {"ratioscope/counts/tokens": float(summary.count("token/n"))}, summary)


def window(spec: Spec, rng: np.random.Generator, at: int) -> Batch:
    """One of them."""
    shape = spec.rows, spec.length
    lengths = rng.integers(max(spec.length // 2, 2), spec.length + 1, size=spec.rows)
    context = rng.integers(CONTEXTS, size=shape)
    tilt = spec.behind(at)
    scored = BASE[context]
    sampled = scored + spec.noise * _noise(rng, (*shape, VOCABULARY), heavy=spec.heavy)
    if tilt:
        scored = scored + tilt * DIRECTION[context]
    engine = _log_softmax(sampled / spec.engine_temperature)
    engine = _cut(engine, spec)
    uniform = rng.random((*shape, 1))
    tokens = (np.exp(engine).cumsum(axis=-1) < uniform).sum(axis=-1).clip(max=VOCABULARY - 1)
    tokens = np.where(np.isfinite(_pick(engine, tokens)), tokens, engine.argmax(axis=-1))
    if spec.reported_temperature is not None:
        engine = _log_softmax(sampled / spec.reported_temperature)
    trainer = _log_softmax(scored / spec.trainer_temperature)
    mask = np.arange(spec.length) < lengths[:, None]
    batch = Batch(_pick(trainer, tokens), _pick(engine, tokens), mask, context, tokens, lengths)
    spec.after(rng, batch)
    return batch


def _noise(rng: np.random.Generator, shape: tuple[int, ...], *, heavy: bool) -> NDArray[np.float32]:
    normal = rng.standard_normal(shape, dtype=np.float32)
    if not heavy:
        return normal
    # One mixing variable a token: its logits are off together, which makes d itself heavy.
    scale = np.sqrt(3.0 / rng.chisquare(5, size=(*shape[:-1], 1)))
    return normal * scale.astype(np.float32)


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalised


def _cut(logps: Array, spec: Spec) -> Array:
    """Renormalised on what top_p, top_k and min_p keep."""
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


def _pick(logps: Array, tokens: NDArray[np.int64]) -> Array:
    picked: Array = np.take_along_axis(logps, tokens[..., None], axis=-1)[..., 0]
    return picked


# Faults ---------------------------------------------------------------------------------------------------------------


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
        batch.train = np.where(routed, _pick(_log_softmax(other), batch.tokens), batch.train)

    return change


def mispaired(share: float) -> Callable[[np.random.Generator, Batch], None]:
    """Completions scored under another row's context."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        rows = np.arange(len(batch.lengths)) < max(2, round(share * len(batch.lengths)))
        wrong = np.roll(batch.context, 1, axis=0)
        scored = _pick(_log_softmax(BASE[wrong]), batch.tokens)
        batch.train = np.where(rows[:, None], scored, batch.train)

    return change


def constant(by: float) -> Callable[[np.random.Generator, Batch], None]:
    """One side's log-probabilities are not normalised: all are lower by a constant, the engine's if it is above 0."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        batch.rollout, batch.train = batch.rollout - max(by, 0.0), batch.train + min(by, 0.0)

    return change


def logits(rng: np.random.Generator, batch: Batch) -> None:
    """The engine's logits in the place of its log-probabilities."""
    batch.rollout = _pick(BASE[batch.context], batch.tokens)


def same(rng: np.random.Generator, batch: Batch) -> None:
    """The trainer's log-probabilities on both sides."""
    batch.rollout = batch.train


def nothing(rng: np.random.Generator, batch: Batch) -> None:
    """Everything masked."""
    batch.mask = np.zeros_like(batch.mask)


def absurd(share: float) -> Callable[[np.random.Generator, Batch], None]:
    """Single tokens far off."""

    def change(rng: np.random.Generator, batch: Batch) -> None:
        batch.train = np.where(rng.random(batch.train.shape) < share, batch.train - 20.0, batch.train)

    return change


# Scenarios ------------------------------------------------------------------------------------------------------------

SEQUENCE = rs.Correction("sequence", "mask", upper=3.0)
TOKEN = rs.Correction("token", "truncate", upper=2.0)


def healthy(rng: np.random.Generator) -> Spec:
    """Engines that differ by noise alone, of any size up to 0.1 nats."""
    noise = float(10.0 ** rng.uniform(-4.0, -1.0))
    length = int(2.0 ** rng.uniform(3.0, 9.0))
    rows = int(rng.choice([n for n in (4, 8, 16, 32) if n * length <= 2048 or n == 4]))
    # Sequence weights of long rows do collapse under noise of 0.1; that is a finding, and no false one.
    safe = noise**2 * length < 0.2
    rule = (None, TOKEN, SEQUENCE)[int(rng.integers(3 if safe else 2))]
    windows = int(30.0 ** rng.uniform(0.0, 1.0))
    return Spec(windows, rows, length, noise, heavy=bool(rng.integers(2)), correction=rule)


def _usual(rng: np.random.Generator, **changes: Any) -> Spec:
    """A faulty run's other properties: windows, rows, lengths and noise vary."""
    usual = {
        "windows": int(rng.integers(2, 9)),
        "rows": int(rng.choice([8, 16])),
        "length": int(rng.integers(32, 129)),
        "noise": float(10.0 ** rng.uniform(-3.0, -1.5)),
        "heavy": bool(rng.integers(2)),
    }
    return Spec(**{**usual, **changes})


def _sharply(rng: np.random.Generator) -> Spec:
    """An engine that reports raw log-probabilities, and a trainer that scores at the temperature."""
    t = float(rng.choice([0.6, 0.8, 1.3]))
    return _usual(rng, engine_temperature=t, reported_temperature=1.0, trainer_temperature=t)


def _jump(rng: np.random.Generator) -> Spec:
    windows = int(rng.integers(6, 25))
    at = int(rng.integers(2, windows - 1))
    return _usual(rng, windows=windows, noise=0.01, behind=lambda k: 0.3 if k >= at else 0.0)


def _growth(rng: np.random.Generator) -> Spec:
    windows, end = int(rng.integers(9, 25)), float(rng.uniform(0.1, 0.3))
    return _usual(rng, windows=windows, noise=0.01, behind=lambda k: end * k / windows)


def _sawtooth(rng: np.random.Generator) -> Spec:
    period, end = int(rng.integers(3, 6)), float(rng.uniform(0.1, 0.3))
    return _usual(rng, windows=4 * period, noise=0.01, behind=lambda k: end * (k % period) / (period - 1))


@dataclass(frozen=True)
class Scenario:
    """A fault of a stated strength.

    Attributes:
        cause: the name it should be given.
        strength: in words.
        make: draws a run.
    """

    cause: str
    strength: str
    make: Callable[[np.random.Generator], Spec]


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "support_truncation", "top_p 0.8 to 0.95", lambda rng: _usual(rng, top_p=float(rng.choice([0.8, 0.9, 0.95])))
    ),
    Scenario("support_truncation", "top_k 3 to 8 of 32", lambda rng: _usual(rng, top_k=int(rng.integers(3, 9)))),
    Scenario("support_truncation", "min_p 0.05 or 0.1", lambda rng: _usual(rng, min_p=float(rng.choice([0.05, 0.1])))),
    Scenario(
        "temperature",
        "engine at 0.6 to 1.4, trainer at 1",
        lambda rng: _usual(rng, engine_temperature=float(rng.choice([0.6, 0.8, 1.25, 1.4]))),
    ),
    Scenario("temperature", "raw log-probabilities at temperature 0.6 to 1.3", _sharply),
    Scenario(
        "constant_shift",
        "0.05 to 1 nat, up or down",
        lambda rng: _usual(rng, noise=0.002, after=constant(float(rng.choice([-1, 1]) * rng.uniform(0.05, 1.0)))),
    ),
    Scenario("logits", "logits for log-probabilities", lambda rng: _usual(rng, after=logits)),
    Scenario("stale_weights", "0.1 to 0.3 of the logits' direction, in 9 to 24 windows", _growth),
    Scenario("wrong_weights", "0.3 of it, at once", _jump),
    Scenario("shifted_alignment", "by 1 or -1", lambda rng: _usual(rng, after=shift(int(rng.choice([-1, 1]))))),
    Scenario("eos_tokens", "last token off by 1 to 5 nats", lambda rng: _usual(rng, after=last)),
    Scenario("speculative_tail", "last 3 tokens garbage", lambda rng: _usual(rng, after=tail)),
    Scenario(
        "starts_at_a_position",
        "noise 0.1 to 0.3 from 0.3 to 0.7 of the row on, 0.01 before",
        lambda rng: _usual(rng, noise=0.01, after=starts(float(rng.uniform(0.3, 0.7)), float(rng.uniform(0.1, 0.3)))),
    ),
    Scenario(
        "filler_scored",
        "padding on 10 to 40 % of rows",
        lambda rng: _usual(rng, after=filler(float(rng.uniform(0.1, 0.4)), at_end=True)),
    ),
    Scenario(
        "filler_scored",
        "tool results on 10 to 40 % of rows",
        lambda rng: _usual(rng, after=filler(float(rng.uniform(0.1, 0.4)), at_end=False)),
    ),
    Scenario("zero_filled", "all", lambda rng: _usual(rng, after=zero(1.0))),
    Scenario("zero_filled", "2 to 50 %", lambda rng: _usual(rng, after=zero(float(rng.uniform(0.02, 0.5))))),
    Scenario(
        "missing_logprobs", "1 to 20 % NaN", lambda rng: _usual(rng, after=missing(float(rng.uniform(0.01, 0.2))))
    ),
    Scenario(
        "other_experts",
        "8 to 15 % of tokens with logits off by 3",
        lambda rng: _usual(rng, noise=0.01, windows=8, after=experts(float(rng.uniform(0.08, 0.15)), 3.0)),
    ),
    Scenario(
        "mispaired_rows",
        "a quarter to a half of rows",
        lambda rng: _usual(rng, after=mispaired(float(rng.uniform(0.25, 0.5)))),
    ),
    Scenario("outliers", "0.2 % of tokens off by 20", lambda rng: _usual(rng, windows=8, after=absurd(0.002))),
    Scenario("identical", "the same numbers", lambda rng: _usual(rng, after=same)),
    Scenario("everything_masked", "all windows", lambda rng: _usual(rng, after=nothing)),
    Scenario(
        "length_collapse",
        "noise 0.18 over 500 tokens in a sequence mode",
        lambda rng: _usual(rng, noise=0.18, length=500, rows=8, windows=4, heavy=False, correction=SEQUENCE),
    ),
    Scenario(
        "not_applied",
        "a Liger kernel in the config",
        lambda rng: _usual(
            rng, config={"loss": {"use_liger_kernel": True, "computed_by": "GRPOTrainer._compute_loss"}}
        ),
    ),
    Scenario(
        "precision_noise",
        "noise 0.25 to 0.4",
        lambda rng: _usual(rng, noise=float(rng.uniform(0.25, 0.4)), heavy=False),
    ),
    Scenario("grows_between_syncs", "to 0.1 to 0.3 of the direction in 3 to 5 windows, then back", _sawtooth),
)
