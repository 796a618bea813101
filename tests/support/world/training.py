"""Training: windows of a policy that is updated by policy gradients while an engine samples from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from tests.support.world.net import Runtime, Weights, initial_weights, logits
from tests.support.world.sampling import Sampling, draw

if TYPE_CHECKING:
    from collections.abc import Iterator

Tensor = torch.Tensor
HIDDEN, POOL, RANKS = 48, 2048, 4
"""Width of hidden states, number of contexts from which prompts are taken, and ranks."""


@dataclass
class Window:
    """One window; tensors are ``(B, T)``, and damage is done in place."""

    train: Tensor
    rollout: Tensor
    mask: Tensor
    index: int


Damage = Callable[[Window, torch.Generator], None]
Arrival = Callable[[int, list[Weights]], Weights]
"""Weights that the engine has at a window, given the trainer's at all windows up to it."""


@dataclass(frozen=True)
class World:
    """Specification of a training.

    Attributes:
        vocabulary: number of tokens.
        windows: number of windows.
        rows: completions per window.
        length: tokens of the longest completion; the shortest has half of it.
        sharpness: smallest and largest standard deviation of a context's logits; 1 is flat, 12 nearly deterministic.
        engine: runtime that samples.
        trainer: runtime that scores.
        sampling: settings of the sampler.
        raw: True if the engine reports log-probabilities of its unprocessed logits.
        scoring_temperature: the trainer's temperature.
        stale: optimizer steps by which the engine is behind by design.
        rate: change of the sampled tokens' logits in one step, in nats (root mean square).
        schedule: multiple of the rate, by the part of the run that is over, 0 to 1.
        entropy: change of the log of all logits over the run; above 0 the policy sharpens.
        data_change: part of the run after which contexts come from another, sharper distribution.
        experts: number of experts, 0 for a dense net.
        arrival: replaces the weights of the design's staleness.
        rank_arrival: weights that arrive at the last of four ranks alone.
        sampling_from: window from which the sampler has its settings; before, it has none.
        damage: changes windows after scoring.
        settings: changes to the recorded config, by section.
    """

    vocabulary: int = 200
    windows: int = 16
    rows: int = 16
    length: int = 64
    sharpness: tuple[float, float] = (1.0, 8.0)
    engine: Runtime = field(default_factory=lambda: Runtime(chunks=4))
    trainer: Runtime = field(default_factory=lambda: Runtime(chunks=2))
    sampling: Sampling = field(default_factory=Sampling)
    raw: bool = False
    scoring_temperature: float = 1.0
    stale: int = 0
    rate: float = 0.02
    schedule: Callable[[float], float] = lambda _: 1.0
    entropy: float = 0.0
    data_change: float | None = None
    experts: int = 0
    arrival: Arrival | None = None
    rank_arrival: Arrival | None = None
    sampling_from: int = 0
    damage: tuple[Damage, ...] = ()
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)


def train(world: World, seed: int) -> Iterator[Window]:
    """Yields the windows of a training, in order."""
    generator = torch.Generator().manual_seed(seed)
    history = [initial_weights(world.vocabulary, HIDDEN, world.experts, generator)]
    taste = torch.randn(world.vocabulary, generator=generator)
    directions = torch.nn.functional.normalize(torch.randn(POOL, HIDDEN, generator=generator), dim=1)
    for index in range(world.windows):
        part = index / world.windows
        hidden = _contexts(world, part, directions, generator)
        source = _source(world, index, history, hidden, generator)
        sampling = world.sampling if index >= world.sampling_from else Sampling()
        tokens, sampled = draw(source, sampling, world.length, generator)
        scores = logits(history[-1], hidden, world.trainer, generator)
        logps = _of(scores / world.scoring_temperature, tokens)
        window = _window(world, logps, _of(source, tokens) if world.raw else sampled, index, generator)
        reward = (taste[tokens].view(world.rows, -1) * window.mask).mean(1)
        step = world.rate * world.schedule(part)
        history.append(_updated(history[-1], hidden, scores, tokens, reward, step=step, growth=_growth(world)))
        for damage in world.damage:
            damage(window, generator)
        yield window


def recorded(world: World) -> dict[str, Any]:
    """Run config that a trainer records of the world."""
    sampling = world.sampling
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    sections: dict[str, dict[str, Any]] = {
        "sampling": {name: getattr(sampling, name) for name in names}
        | {"scoring_temperature": world.scoring_temperature},
        "engine": {
            "logprobs_mode": "raw_logprobs" if world.raw else "processed_logprobs",
            "quantization": world.engine.quantization,
            "dtype": world.engine.dtype,
        },
        "trainer": {"num_experts": world.experts, "weights_dtype": world.trainer.dtype},
    }
    reshaped = [f"presence_penalty={sampling.presence_penalty:g}"] if sampling.presence_penalty else []
    if reshaped or sampling.banned:
        reshaped += ["bad_words"] if sampling.banned else []
        sections["sampling"]["reshaped_by"] = reshaped
    for name, values in world.settings.items():
        sections.setdefault(name, {}).update(values)
    return sections


def _source(world: World, index: int, history: list[Weights], hidden: Tensor, generator: torch.Generator) -> Tensor:
    """Logits of the engine, rank by rank where one has other weights."""
    arrival = world.arrival or (lambda now, past: past[max(0, now - world.stale)])
    source = logits(arrival(index, history), hidden, world.engine, generator)
    if world.rank_arrival is not None:
        first = (world.rows - world.rows // RANKS) * world.length
        source[first:] = logits(world.rank_arrival(index, history), hidden[first:], world.engine, generator)
    return source


def _contexts(world: World, part: float, directions: Tensor, generator: torch.Generator) -> Tensor:
    """Hidden states of a window; a context's norm decides how peaked it is."""
    low, high = world.sharpness
    count = world.rows * world.length
    place = torch.rand(count, 1, generator=generator)
    if world.data_change is not None and part >= world.data_change:
        place = place.sqrt()
    norm = low * torch.exp(place * math.log(high / low))
    return norm * directions[torch.randint(POOL, (count,), generator=generator)]


def _window(world: World, train_side: Tensor, rollout: Tensor, index: int, generator: torch.Generator) -> Window:
    shape = world.rows, world.length
    lengths = torch.randint(max(1, world.length // 2), world.length + 1, (world.rows,), generator=generator)
    mask = torch.arange(world.length) < lengths[:, None]
    return Window(train_side.view(shape).clone(), rollout.view(shape).clone(), mask, index)


def _updated(
    weights: Weights, hidden: Tensor, scores: Tensor, tokens: Tensor, reward: Tensor, *, step: float, growth: float
) -> Weights:
    """Weights after one policy gradient step that moves the sampled tokens' logits by ``step`` nats."""
    advantage = (reward - reward.mean()) / (reward.std(unbiased=False) + 1e-6)
    error = -scores.softmax(1)
    error[torch.arange(len(tokens)), tokens] += 1.0
    gradient = (error * advantage.repeat_interleave(len(tokens) // len(reward))[:, None]).T @ hidden
    moved = (gradient[tokens] * hidden).sum(1).square().mean().sqrt().clamp(min=1e-9)
    return replace(weights, output=(weights.output + step * gradient / moved) * growth)


def _growth(world: World) -> float:
    return math.exp(world.entropy / world.windows)


def _of(scores: Tensor, tokens: Tensor) -> Tensor:
    return scores.log_softmax(1).gather(1, tokens[:, None])[:, 0]
