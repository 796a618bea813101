"""Kinds: the table of faults and of healthy trainings, each with the names of the causes that are right."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.support.world import damage as hurt
from tests.support.world.net import Runtime
from tests.support.world.sampling import Sampling
from tests.support.world.training import World

if TYPE_CHECKING:
    from tests.support.world.net import Weights
    from tests.support.world.training import Damage


@dataclass(frozen=True)
class Kind:
    """A kind of training.

    Attributes:
        world: the training.
        truth: names of causes that count as right; empty for a healthy training.
        named: further names that count as right where the run config is recorded.
    """

    world: World
    truth: frozenset[str] = field(default_factory=frozenset)
    named: frozenset[str] = field(default_factory=frozenset)


LOW = (4.0, 14.0)
"""Sharpness of contexts late in reinforcement learning."""
_F32 = {"engine": Runtime("float32", 4), "trainer": Runtime("float32", 2)}
_QWEN = Sampling(temperature=0.7, top_p=0.8, top_k=20)
_CUT, _SCALED = "support_truncation", "temperature"


def _world(**changes: Any) -> World:
    return replace(World(), **changes)


def _broken(truth: str, *damage: Damage, **changes: Any) -> Kind:
    return Kind(_world(damage=damage, **changes), frozenset(truth.split()))


def _sampled(truth: str, sampling: Sampling, **changes: Any) -> Kind:
    names = frozenset({"sampling_settings"})
    return Kind(_world(sampling=sampling, **changes), frozenset(truth.split()), names)


def _healthy(**changes: Any) -> Kind:
    return Kind(_world(**changes))


def _scaled(weights: Weights) -> Weights:
    return replace(weights, output=weights.output.roll(1, 1) * 0.3 + weights.output * 0.95)


SAMPLING = {
    "top_p 0.9": _sampled(_CUT, Sampling(top_p=0.9)),
    "top_p 0.95, large vocabulary": _sampled(_CUT, Sampling(top_p=0.95), vocabulary=5000, rows=8, length=48),
    "top_p 0.8, low entropy": _sampled(_CUT, Sampling(top_p=0.8), sharpness=LOW),
    "top_k 20, large vocabulary": _sampled(_CUT, Sampling(top_k=20), vocabulary=5000, rows=8, length=48),
    "top_k 5": _sampled(_CUT, Sampling(top_k=5)),
    "min_p 0.1": _sampled(_CUT, Sampling(min_p=0.1)),
    "top_p 0.9, fp8": _sampled(_CUT, Sampling(top_p=0.9), engine=Runtime(chunks=4, quantization="fp8")),
    "top_p 0.9, four steps old": _sampled(_CUT, Sampling(top_p=0.9), stale=4, rate=0.03),
    "temperature 0.7": _sampled(_SCALED, Sampling(temperature=0.7)),
    "temperature 0.3": _sampled(_SCALED, Sampling(temperature=0.3)),
    "temperature 0.9": _sampled(_SCALED, Sampling(temperature=0.9)),
    "temperature 1.3": _sampled(_SCALED, Sampling(temperature=1.3)),
    "temperature 0.01": _sampled(_SCALED, Sampling(temperature=0.01)),
    "trainer at 0.7": _sampled(_SCALED, Sampling(), scoring_temperature=0.7),
    "raw at 0.7": Kind(
        _world(sampling=Sampling(temperature=0.7), raw=True, scoring_temperature=0.7),
        frozenset({_SCALED, "logprobs_mode"}),
    ),
    "temperature 0.6 and top_p 0.9": _sampled(f"{_CUT} {_SCALED}", Sampling(temperature=0.6, top_p=0.9)),
    "temperature 0.6 and top_p 0.9, low entropy": _sampled(
        f"{_CUT} {_SCALED}", Sampling(temperature=0.6, top_p=0.9), sharpness=LOW
    ),
    "Qwen's defaults": _sampled(f"{_CUT} {_SCALED}", _QWEN),
    "Qwen's defaults, large vocabulary": _sampled(f"{_CUT} {_SCALED}", _QWEN, vocabulary=5000, rows=8, length=48),
    "Qwen's defaults and penalty 1.05": _sampled(f"{_CUT} {_SCALED}", replace(_QWEN, repetition_penalty=1.05)),
    "repetition penalty 1.3": _sampled("sampling_settings unexplained", Sampling(repetition_penalty=1.3)),
    "presence penalty 0.8": _sampled("sampling_settings unexplained", Sampling(presence_penalty=0.8)),
    "top_p 0.8 from window 8": _sampled(f"{_CUT} wrong_weights", Sampling(top_p=0.8), sampling_from=8),
    "temperature 0.6 from window 8": _sampled(f"{_SCALED} wrong_weights", Sampling(temperature=0.6), sampling_from=8),
    "temperature 0.7, large vocabulary": _sampled(
        _SCALED, Sampling(temperature=0.7), vocabulary=5000, rows=8, length=48
    ),
    "temperature 0.9, large vocabulary": _sampled(
        _SCALED, Sampling(temperature=0.9), vocabulary=5000, rows=8, length=48
    ),
    "temperature 0.6, low entropy": _sampled(_SCALED, Sampling(temperature=0.6), sharpness=LOW),
    "temperature 0.7, int8": _sampled(
        _SCALED, Sampling(temperature=0.7), engine=Runtime(chunks=4, quantization="int8")
    ),
    "raw at 0.7, large vocabulary": Kind(
        _world(
            sampling=Sampling(temperature=0.7),
            raw=True,
            scoring_temperature=0.7,
            vocabulary=5000,
            rows=8,
            length=48,
        ),
        frozenset({_SCALED, "logprobs_mode"}),
    ),
    "top_p 0.9 under 0.3 nats": _sampled(_CUT, Sampling(top_p=0.9), damage=(hurt.add(0.0, 0.3, hurt.everywhere),)),
    "temperature 0.5 under 1 nat": _sampled(
        f"{_SCALED} unexplained", Sampling(temperature=0.5), damage=(hurt.add(0.0, 1.0, hurt.everywhere),)
    ),
    "top_p 0.95 and min_p 0.05": _sampled(_CUT, Sampling(top_p=0.95, min_p=0.05)),
    "top_p 0.9, mixture": _sampled(_CUT, Sampling(top_p=0.9), experts=8),
    "banned tokens": _sampled(f"sampling_settings {_CUT}", Sampling(banned=20)),
}
"""Settings of the sampler that the trainer does not share."""

WEIGHTS = {
    "never synced": _broken("stale_weights", arrival=hurt.stops(0), rate=0.05),
    "never synced, float32": _broken("stale_weights", arrival=hurt.stops(0), rate=0.05, **_F32),
    "stops at 30 %": _broken("stale_weights", arrival=hurt.stops(9), rate=0.05, windows=30),
    "stops at 70 %": _broken("stale_weights", arrival=hurt.stops(21), rate=0.05, windows=30),
    "stops at 30 % of 60 windows": _broken("stale_weights", arrival=hurt.stops(18), rate=0.05, windows=60),
    "stops at 70 % of 60 windows": _broken("stale_weights", arrival=hurt.stops(42), rate=0.05, windows=60),
    "stops at 90 % of 60 windows": _broken("stale_weights", arrival=hurt.stops(54), rate=0.08, windows=60),
    "stops at 70 % of 200 windows": _broken(
        "stale_weights", arrival=hurt.stops(140), rate=0.05, windows=200, rows=8, length=32
    ),
    "stops in the last windows of 200": _broken(
        "stale_weights", arrival=hurt.stops(195), rate=0.1, windows=200, rows=8, length=32
    ),
    "stops at 70 %, float32": _broken("stale_weights", arrival=hurt.stops(21), rate=0.05, windows=30, **_F32),
    "stops at 60 %, one step old": _broken(
        "stale_weights", arrival=lambda now, past: past[min(max(0, now - 1), 18)], rate=0.05, windows=30
    ),
    "restarts and drifts on": _broken("wrong_weights", arrival=hurt.restarts(20), rate=0.2, windows=40),
    "restarts with old weights": _broken("wrong_weights", arrival=hurt.restarts(20), rate=0.05, windows=30),
    "loads other weights": _broken("wrong_weights", arrival=hurt.loads(8, _scaled)),
    "grows between syncs": _broken("grows_between_syncs", arrival=hurt.syncs_every(5), rate=0.05, windows=30),
    "one rank never synced": _broken(
        "stale_weights mispaired_rows unexplained", rank_arrival=hurt.stops(0), rate=0.05, windows=24
    ),
    "one rank restarts with old weights": _broken(
        "wrong_weights mispaired_rows unexplained", rank_arrival=hurt.restarts(12), rate=0.08, windows=24
    ),
    "other experts": _broken("other_experts", experts=8, engine=Runtime(chunks=4, misrouted=0.1)),
}
"""Weights that do not arrive, or are not computed alike."""

VALUES = {
    "shifted by one": _broken("shifted_alignment", hurt.shift(1, hurt.everywhere)),
    "shifted on one rank": _broken("shifted_alignment mispaired_rows unexplained", hurt.shift(1, hurt.one_rank)),
    "shifted from window 10": _broken(
        "shifted_alignment wrong_weights", hurt.since(10, hurt.shift(1, hurt.everywhere))
    ),
    "a quarter of the rows swapped": _broken("mispaired_rows", hurt.swap_rows(hurt.every_fourth_row)),
    "a third of the rows retokenized": _broken("mispaired_rows unexplained starts_at_a_position", hurt.retokenize(3)),
    "a rank without its last layer": _broken("mispaired_rows unexplained", hurt.add(-0.3, 1.5, hurt.one_rank)),
    "padding is -1 on one side, 0 on the other": _broken(
        "filler_scored starts_at_a_position unexplained", hurt.score_padding(0.0, -1.0)
    ),
    "logarithm to base 10": _broken("unexplained constant_shift", hurt.rescale(1.0 / math.log(10.0))),
    "divided by the length": _broken("unexplained constant_shift", hurt.rescale(1.0 / 64.0)),
    "trainer has infinities": _broken("missing_logprobs", hurt.put("train", -math.inf, hurt.at_random(0.02))),
    "two tokens at -100": _broken("missing_logprobs outliers", hurt.put("rollout", -100.0, hurt.at_random(0.0002))),
    "low-probability tokens lost": _broken("unexplained support_truncation", hurt.lose_unlikely(-4.0, 2.0)),
    "all rows swapped": _broken("mispaired_rows unexplained", hurt.swap_rows(hurt.everywhere)),
    "a fifth is 0": _broken("zero_filled", hurt.put("rollout", 0.0, hurt.at_random(0.2))),
    "all are 0": _broken("zero_filled", hurt.put("rollout", 0.0, hurt.everywhere)),
    "padding is 0": _broken("filler_scored", hurt.score_padding(-14.0, 0.0)),
    "padding is 0 on both sides": _broken("filler_scored zero_filled", hurt.score_padding(0.0, 0.0)),
    "padding is -1": _broken("filler_scored unexplained", hurt.score_padding(-14.0, -1.0)),
    "placeholder -30": _broken("missing_logprobs outliers", hurt.put("rollout", -30.0, hurt.at_random(0.003))),
    "one token at -9999": _broken("missing_logprobs outliers", hurt.put("rollout", -9999.0, hurt.at_random(0.0002))),
    "shifted from window 10, one rank": _broken(
        "shifted_alignment mispaired_rows wrong_weights unexplained", hurt.since(10, hurt.shift(1, hurt.one_rank))
    ),
    "zeros from window 10, one rank": _broken("zero_filled", hurt.since(10, hurt.put("rollout", 0.0, hurt.one_rank))),
    "NaN from window 10, one row in four": _broken(
        "missing_logprobs", hurt.since(10, hurt.put("rollout", math.nan, hurt.every_fourth_row))
    ),
    "noise at positions 20 to 30": _broken(
        "starts_at_a_position unexplained", hurt.add(0.0, 0.5, hurt.positions(20, 30))
    ),
    "tool results at -0.5": _broken(
        "filler_scored starts_at_a_position unexplained",
        hurt.put("rollout", -0.5, hurt.positions(10, 20)),
        hurt.add(-6.0, 2.0, hurt.positions(10, 20)),
    ),
    "engine has NaN": _broken("missing_logprobs", hurt.put("rollout", math.nan, hurt.at_random(0.1))),
    "trainer has NaN": _broken("missing_logprobs", hurt.put("train", math.nan, hurt.every_fourth_row)),
    "engine has infinities": _broken("missing_logprobs", hurt.put("rollout", -math.inf, hurt.at_random(0.02))),
    "placeholder -9999": _broken("missing_logprobs outliers", hurt.put("rollout", -9999.0, hurt.at_random(0.01))),
    "placeholder -100": _broken("missing_logprobs outliers", hurt.put("rollout", -100.0, hurt.at_random(0.003))),
    "wrong sign": _broken("logits", hurt.negate),
    "constant shift": _broken("constant_shift", hurt.add(0.5, 0.0, hurt.everywhere)),
    "last token appended": _broken("eos_tokens", hurt.add(-5.0, 1.0, hurt.ends(1))),
    "last tokens absurd": _broken("speculative_tail", hurt.add(-12.0, 3.0, hurt.ends(3))),
    "noise from a position": _broken("starts_at_a_position", hurt.add(0.0, 0.3, hurt.positions(24, 64))),
    "single tokens absurd": _broken("outliers", hurt.add(-12.0, 2.0, hurt.at_random(0.002))),
    "one side twice": _broken("identical", hurt.copy),
    "everything masked": _broken("everything_masked", hurt.mask_all),
    "row means": _broken("unexplained", hurt.row_means),
    "base 2": _broken("unexplained constant_shift", hurt.other_base),
    "other template": _broken("unexplained", hurt.add(-1.62, 1.8, hurt.everywhere)),
    "dropout": _broken("precision_noise unexplained", hurt.add(-0.08, 0.4, hurt.everywhere)),
}
"""Values that are not the token's own."""

TWO = {
    "top_p 0.9, never synced": _sampled(f"{_CUT} stale_weights", Sampling(top_p=0.9), arrival=hurt.stops(0), rate=0.05),
    "temperature 0.7 and zeros": _sampled(
        f"{_SCALED} zero_filled",
        Sampling(temperature=0.7),
        damage=(hurt.put("rollout", 0.0, hurt.at_random(0.1)),),
    ),
    "temperature 0.7 and NaN": _sampled(
        f"{_SCALED} missing_logprobs",
        Sampling(temperature=0.7),
        damage=(hurt.put("rollout", math.nan, hurt.at_random(0.1)),),
    ),
}
"""Two faults at once."""

FAULTS = SAMPLING | WEIGHTS | VALUES | TWO

HEALTHY = {
    "bfloat16": _healthy(),
    "float16": _healthy(engine=Runtime("float16", 4), trainer=Runtime("float16", 2)),
    "float32": _healthy(**_F32),
    "bfloat16 engine, float32 trainer": _healthy(trainer=Runtime("float32", 2)),
    "fp32 head": _healthy(engine=Runtime(chunks=4, fp32_head=True), trainer=Runtime(chunks=2, fp32_head=True)),
    "int8 engine": _healthy(engine=Runtime(chunks=4, quantization="int8")),
    "large vocabulary": _healthy(vocabulary=5000, rows=8, length=48),
    "low entropy": _healthy(sharpness=LOW),
    "flat": _healthy(sharpness=(0.5, 1.0)),
    "one step old, float32": _healthy(stale=1, rate=0.005, **_F32),
    "one step old": _healthy(stale=1, rate=0.02),
    "four steps old": _healthy(stale=4, rate=0.02),
    "one step old, large steps": _healthy(stale=1, rate=0.06),
    "four steps old, large steps": _healthy(stale=4, rate=0.05, windows=24),
    "mixture, one step old": _healthy(experts=8, stale=1),
    "one step old, warmup": _healthy(stale=1, rate=0.03, schedule=lambda part: min(1.0, 2.0 * part), windows=24),
    "one step old, float32, warmup": _healthy(
        stale=1, rate=0.03, schedule=lambda part: min(1.0, 2.0 * part), windows=24, **_F32
    ),
    "one step old, decay": _healthy(stale=1, rate=0.03, schedule=lambda part: 1.0 - part, windows=24),
    "four steps old, warmup": _healthy(stale=4, rate=0.02, schedule=lambda part: min(1.0, 2.0 * part), windows=24),
    "one step old, warmup, large steps": _healthy(
        stale=1, rate=0.12, schedule=lambda part: min(1.0, 2.0 * part), windows=24
    ),
    "four steps old, warmup, large steps": _healthy(
        stale=4, rate=0.1, schedule=lambda part: min(1.0, 2.0 * part), windows=30
    ),
    "four steps old, warmup to the end": _healthy(stale=4, rate=0.1, schedule=lambda part: part, windows=24),
    "one step old, warmup and decay": _healthy(
        stale=1, rate=0.1, schedule=lambda part: math.sin(math.pi * part), windows=40
    ),
    "one step old, larger steps": _healthy(stale=1, rate=0.15, windows=30),
    "four steps old, larger steps": _healthy(stale=4, rate=0.12, windows=30),
    "data change, one step old": _healthy(data_change=0.5, stale=1, rate=0.06, windows=30),
    "entropy falls": _healthy(entropy=0.7, windows=24),
    "entropy rises": _healthy(entropy=-0.7, windows=24),
    "entropy rises, one step old": _healthy(entropy=-0.7, windows=24, stale=1),
    "mixture": _healthy(experts=8),
    "mixture, number unknown": _healthy(experts=8, settings={"trainer": {"num_experts": None}}),
    "data change": _healthy(data_change=0.5),
    "data change, float32": _healthy(data_change=0.5, sharpness=(0.5, 10.0), **_F32),
    "tiny batches": _healthy(rows=2, length=12),
    "long run": _healthy(windows=80, rows=8, length=32),
    "mixture, large vocabulary": _healthy(experts=8, vocabulary=5000, rows=8, length=48),
    "mixture, low entropy": _healthy(experts=8, sharpness=LOW),
    "one step old, low entropy": _healthy(stale=1, sharpness=LOW, rate=0.03),
    "entropy falls, four steps old": _healthy(entropy=0.4, windows=24, stale=4),
    "fp8 engine": _healthy(engine=Runtime(chunks=4, quantization="fp8"), settings={"engine": {"quantization": "fp8"}}),
    "huge batches": _healthy(rows=128, length=64, windows=12),
    "both at temperature 0.7": _healthy(sampling=Sampling(temperature=0.7), scoring_temperature=0.7),
}
"""Trainings in which nothing is wrong."""
