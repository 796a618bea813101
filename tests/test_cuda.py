"""Observing on a CUDA device; the one thing that is left out where there is none."""

from __future__ import annotations

import pytest
import torch

from benchmarks import cuda
from benchmarks.observe import FULL, HEADLINE, ours

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason=cuda.NONE)


@pytest.mark.parametrize("kind", [FULL, HEADLINE])
def test_observing_never_waits_for_the_gpu(kind: str) -> None:
    """CUDA's own check finds nothing in observing that waits for the device."""
    observe = ours(cuda.Case(64, 512).make(device="cuda"))[kind]
    observe()
    with cuda.no_wait():
        observe()


@pytest.mark.parametrize("kind", [FULL, HEADLINE])
def test_observing_launches_few_kernels(kind: str) -> None:
    """One batch takes at most 60 kernel launches."""
    assert cuda.launches(ours(cuda.Case(64, 512).make(device="cuda"))[kind]) <= cuda.MOST_LAUNCHES


def test_observing_is_near_the_speed_of_the_memory() -> None:
    """At 2^22 tokens the headline set takes at most three times as long as reading the batch once."""
    taken = cuda.milliseconds(ours(cuda.CASE.make(device="cuda"))[HEADLINE])
    assert taken <= cuda.MOST_OVER_LIMIT * cuda.limit(cuda.CASE)
