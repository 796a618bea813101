"""Healthy and faulty runs at stated strengths, drawn by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ratioscope as rs
from tests.support.synthetic import Spec
from tests.support.synthetic_faults import (
    absurd,
    constant,
    experts,
    filler,
    last,
    logits,
    mispaired,
    missing,
    nothing,
    same,
    shift,
    starts,
    tail,
    zero,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

SEQUENCE = rs.Correction("sequence", "mask", upper=3.0)
TOKEN = rs.Correction("token", "truncate", upper=2.0)


def healthy(rng: np.random.Generator) -> Spec:
    """Run whose engines differ by noise of any size up to 0.1 nats and nothing else."""
    noise = float(10.0 ** rng.uniform(-4.0, -1.0))
    length = int(2.0 ** rng.uniform(3.0, 9.0))
    rows = int(rng.choice([n for n in (4, 8, 16, 32) if n * length <= 2048 or n == 4]))
    # Sequence weights of long completions do collapse under noise of 0.1; that finding is right, so it is excluded.
    safe = noise**2 * length < 0.2
    rule = (None, TOKEN, SEQUENCE)[int(rng.integers(3 if safe else 2))]
    windows = int(30.0 ** rng.uniform(0.0, 1.0))
    return Spec(windows, rows, length, noise, heavy=bool(rng.integers(2)), correction=rule)


def _usual(rng: np.random.Generator, **changes: Any) -> Spec:
    """Draws the properties of a faulty run other than its fault: windows, completions, lengths and noise."""
    usual = {
        "windows": int(rng.integers(2, 9)),
        "rows": int(rng.choice([8, 16])),
        "length": int(rng.integers(32, 129)),
        "noise": float(10.0 ** rng.uniform(-3.0, -1.5)),
        "heavy": bool(rng.integers(2)),
    }
    return Spec(**{**usual, **changes})


def _sharply(rng: np.random.Generator) -> Spec:
    """Run whose engine reports raw log-probabilities while the trainer scores at the temperature."""
    t = float(rng.choice([0.6, 0.8, 1.3]))
    return _usual(rng, engine_temperature=t, reported_temperature=1.0, trainer_temperature=t)


def _jump(rng: np.random.Generator) -> Spec:
    windows = int(rng.integers(9, 25))
    first = int(rng.integers(6, windows - 1))  # the first five fill the pipeline of a healthy asynchronous engine
    return _usual(rng, windows=windows, noise=0.01, behind=lambda k: 0.3 if k >= first else 0.0)


def _growth(rng: np.random.Generator) -> Spec:
    windows, end = int(rng.integers(12, 25)), float(rng.uniform(0.1, 0.3))
    # Steps in random directions add up by their squares. A straight line is what a warmup leads to under staleness.
    return _usual(rng, windows=windows, noise=0.01, behind=lambda k: end * math.sqrt(k / windows))


def _sawtooth(rng: np.random.Generator) -> Spec:
    period, end = int(rng.integers(3, 6)), float(rng.uniform(0.1, 0.3))
    return _usual(rng, windows=4 * period, noise=0.01, behind=lambda k: end * (k % period) / (period - 1))


@dataclass(frozen=True)
class Scenario:
    """A fault of a stated strength.

    Attributes:
        cause: name of the expected first finding.
        strength: description of the fault's strength.
        make: draws the specification of a run.
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
    Scenario("logits", "logits instead of log-probabilities", lambda rng: _usual(rng, after=logits)),
    Scenario(
        "stale_weights", "0.1 to 0.3 of the logits' direction, as the root of the step, in 12 to 24 windows", _growth
    ),
    Scenario("wrong_weights", "0.3 of the logits' direction, at once, after 6 windows or more", _jump),
    Scenario("shifted_alignment", "by 1 or -1", lambda rng: _usual(rng, after=shift(int(rng.choice([-1, 1]))))),
    Scenario("eos_tokens", "last token off by 1 to 5 nats", lambda rng: _usual(rng, after=last)),
    Scenario("speculative_tail", "last 3 tokens garbage", lambda rng: _usual(rng, after=tail)),
    Scenario(
        "starts_at_a_position",
        "noise 0.1 to 0.3 from 0.3 to 0.7 of the completion on, 0.01 before",
        lambda rng: _usual(rng, noise=0.01, after=starts(float(rng.uniform(0.3, 0.7)), float(rng.uniform(0.1, 0.3)))),
    ),
    Scenario(
        "filler_scored",
        "padding on 10 to 40 % of completions",
        lambda rng: _usual(rng, after=filler(float(rng.uniform(0.1, 0.4)), at_end=True)),
    ),
    Scenario(
        "filler_scored",
        "tool results on 10 to 40 % of completions",
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
        "a quarter to a half of completions",
        lambda rng: _usual(rng, after=mispaired(float(rng.uniform(0.25, 0.5)))),
    ),
    Scenario(
        "outliers", "0.2 % of tokens off by 20, at least one", lambda rng: _usual(rng, windows=8, after=absurd(0.002))
    ),
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
        "noise 0.2 to 0.3 and an engine quantized to fp8",
        lambda rng: _usual(
            rng, noise=float(rng.uniform(0.2, 0.3)), heavy=False, config={"engine": {"quantization": "fp8"}}
        ),
    ),
    Scenario(
        "unexplained",
        "noise 0.25 to 0.4",
        lambda rng: _usual(rng, noise=float(rng.uniform(0.25, 0.4)), heavy=False),
    ),
    Scenario("grows_between_syncs", "0 to 0.1 or 0.3 of the direction in 3 to 5 windows, then back", _sawtooth),
)
