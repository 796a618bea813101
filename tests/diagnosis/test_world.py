"""World of tests/support/world: its own laws, and a few of its trainings as the diagnosis sees them.

``python scripts/diagnosis_world.py`` judges every kind, and lists what the diagnosis gets wrong.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.world.judge import judge
from tests.support.world.kinds import FAULTS, HEALTHY
from tests.support.world.net import Runtime, initial_weights, logits, quantized
from tests.support.world.sampling import Sampling, draw, processed
from tests.support.world.training import World, train

SETTINGS = {
    "plain": Sampling(),
    "temperature": Sampling(temperature=0.7),
    "top_p": Sampling(top_p=0.9),
    "top_k": Sampling(top_k=5),
    "min_p": Sampling(min_p=0.1),
    "penalties": Sampling(repetition_penalty=1.3, presence_penalty=0.8),
    "banned": Sampling(banned=20),
    "all": Sampling(20, 1.05, 0.5, 0.7, 0.02, 20, 0.8),
}
CAUGHT = (
    "top_p 0.9",
    "top_p 0.9, fp8",
    "temperature 0.7",
    "temperature 0.6 and top_p 0.9, low entropy",
    "Qwen's defaults and penalty 1.05",
    "presence penalty 0.8",
    "shifted by one",
    "shifted on one rank",
    "a quarter of the rows swapped",
    "a fifth is 0",
    "padding is 0 on both sides",
    "engine has NaN",
    "placeholder -9999",
    "placeholder -30",
    "tool results at -0.5",
    "row means",
    "base 2",
    "other template",
    "other experts",
    "never synced",
    "stops at 70 %",
    "restarts with old weights",
)
CALM = ("bfloat16", "float32", "low entropy", "mixture", "data change", "tiny batches", "both at temperature 0.7")
BEHIND = ("four steps old, larger steps", "four steps old, warmup, large steps", "one step old, float32, warmup")


def _scores() -> torch.Tensor:
    return 3.0 * torch.randn(512, 200, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)
def test_processed_probabilities_add_up_to_one(sampling: Sampling) -> None:
    """Processed probabilities of every context add up to 1, whatever the settings."""
    seen = torch.rand(512, 200, generator=torch.Generator().manual_seed(1)) < 0.1
    total = processed(_scores(), sampling, seen if sampling.looks_back else None).exp().sum(1)
    torch.testing.assert_close(total, torch.ones(512))


@pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)
def test_drawn_tokens_have_finite_log_probabilities(sampling: Sampling) -> None:
    """A token outside the kept support is never drawn."""
    _, logps = draw(_scores(), sampling, 64, torch.Generator().manual_seed(2))
    assert logps.isfinite().all()


def test_the_mean_ratio_of_a_nucleus_is_its_kept_mass() -> None:
    """The ratio of each token under top_p alone is the mass that its context keeps, exactly."""
    scores = _scores()
    kept = processed(scores, Sampling(top_p=0.9)).isfinite()
    tokens, logps = draw(scores, Sampling(top_p=0.9), 64, torch.Generator().manual_seed(3))
    ratio = (scores.log_softmax(1).gather(1, tokens[:, None])[:, 0] - logps).exp()
    mass = (scores.softmax(1) * kept).sum(1)
    torch.testing.assert_close(ratio, mass)
    assert mass.min() >= 0.9


def test_the_mean_ratio_without_truncation_is_one() -> None:
    """Two dissimilar policies have a mean ratio of 1 over tokens of the one that samples."""
    scores = _scores()[:1].expand(200_000, -1)
    other = scores + 0.3 * torch.randn(1, 200, generator=torch.Generator().manual_seed(4))
    tokens, logps = draw(scores, Sampling(), 64, torch.Generator().manual_seed(5))
    ratio = (other.log_softmax(1).gather(1, tokens[:, None])[:, 0] - logps).exp()
    assert ratio.mean().item() == pytest.approx(1.0, abs=5 * ratio.std().item() / 200_000**0.5)


def test_equal_runtimes_have_no_mismatch() -> None:
    """Two runtimes that round alike give equal numbers, so all mismatch comes from rounding or staleness."""
    alike = Runtime("float32")
    for window in train(World(engine=alike, trainer=alike, windows=3), seed=0):
        assert torch.equal(window.train, window.rollout)


def test_coarser_rounding_has_more_mismatch() -> None:
    """The mismatch of bfloat16 is far above that of float16, and this above that of float32."""
    means = []
    for dtype in ("bfloat16", "float16", "float32"):
        world = World(engine=Runtime(dtype, 4), trainer=Runtime(dtype, 2), windows=3)
        gaps = [(window.train - window.rollout)[window.mask].abs().mean() for window in train(world, seed=0)]
        means.append(torch.stack(gaps).mean().item())
    assert means[0] > 4 * means[1] > 16 * means[2]


@pytest.mark.parametrize(("kind", "error"), [("fp8", 2**-4), ("int8", 1 / 254)])
def test_quantization_errs_by_at_most_half_a_step(kind: str, error: float) -> None:
    """8 bits change a weight by at most half a step: of itself in e4m3, of its row's largest in int8."""
    matrix = torch.randn(50, 48, generator=torch.Generator().manual_seed(6))
    size = matrix.abs() if kind == "fp8" else matrix.abs().amax(1, keepdim=True)
    smallest = matrix.abs().amax(1, keepdim=True) / 448.0 * 2**-10
    assert ((quantized(matrix, kind) - matrix).abs() <= error * size * 1.001 + smallest).all()


def test_misrouted_tokens_alone_differ() -> None:
    """About the chosen share of tokens gets other experts; the logits of the others are untouched."""
    generator = torch.Generator().manual_seed(7)
    weights = initial_weights(50, 48, 8, generator)
    hidden = torch.randn(4000, 48, generator=generator)
    right = logits(weights, hidden, Runtime("float32"), generator)
    wrong = logits(weights, hidden, Runtime("float32", misrouted=0.1), generator)
    assert (right != wrong).any(1).float().mean().item() == pytest.approx(0.1, abs=0.02)


def test_staleness_grows_from_the_first_window_to_its_limit() -> None:
    """An engine two steps behind is on-policy in the first window and at its full distance from the third on."""
    alike = Runtime("float32")
    world = World(engine=alike, trainer=alike, stale=2, windows=8, rate=0.05)
    gaps = [(window.train - window.rollout)[window.mask].abs().mean().item() for window in train(world, seed=0)]
    assert gaps[0] == 0.0
    assert 0.0 < gaps[1] < min(gaps[2:])


def test_a_seed_makes_one_training() -> None:
    """Equal seeds make equal windows, and other seeds other ones."""
    first, again, other = (next(iter(train(World(), seed))).rollout for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_table_is_as_large_as_it_should_be() -> None:
    """At least 40 kinds of faults and 20 healthy kinds are judged."""
    assert len(FAULTS) >= 40
    assert len(HEALTHY) >= 20
    assert all(kind.truth for kind in FAULTS.values())


@pytest.mark.parametrize("name", CAUGHT)
def test_a_fault_is_named_first(name: str) -> None:
    """The first finding of a training with a fault is a right one, with and without the recorded config."""
    assert [verdict.outcome for verdict in judge(FAULTS[name], seed=0)] == ["right", "right"]


@pytest.mark.parametrize("name", CALM)
def test_a_healthy_training_is_left_alone(name: str) -> None:
    """A healthy training has nothing above info and is not stopped."""
    kind = HEALTHY[name]
    kind = replace(kind, world=replace(kind.world, windows=12))
    assert [(verdict.outcome, verdict.stopped) for verdict in judge(kind, seed=0)] == [("healthy", None)] * 2


@pytest.mark.parametrize("name", BEHIND)
def test_an_engine_that_is_behind_by_design_is_left_alone(name: str) -> None:
    """An asynchronous training has no event and nothing above info, while its mismatch rises and at the end."""
    assert [(verdict.outcome, verdict.events) for verdict in judge(HEALTHY[name], seed=0)] == [("healthy", ())] * 2
