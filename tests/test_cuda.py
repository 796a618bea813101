"""Observing on a CUDA device; the one thing that is left out where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from benchmarks import cuda
from benchmarks.observe import FULL, HEADLINE, ours
from ratioscope import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason=cuda.NONE)


@pytest.fixture(scope="module")
def kernel() -> Iterator[None]:
    """The kernel, made and proven on the device."""
    from ratioscope_integrations.kernels.cuda import make

    make()  # raises what is wrong with it, which the switch keeps to itself
    with cuda.kernel() as proven:
        assert proven
        yield


@pytest.mark.parametrize("kind", [FULL, HEADLINE])
def test_observing_never_waits_for_the_gpu(kind: str) -> None:
    """CUDA's own check finds nothing in observing on the plain path that waits for the device."""
    observe = ours(cuda.Case(64, 512).make(device="cuda"))[kind]
    observe()
    with cuda.no_wait():
        observe()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("kind", [FULL, HEADLINE])
def test_the_kernel_never_waits_for_the_gpu(kind: str) -> None:
    """Nor in observing by the kernel, and while a window is merged."""
    observe = ours(cuda.Case(64, 512).make(device="cuda"))[kind]
    observe()
    with cuda.no_wait():
        for _ in range(20):
            observe()
    assert kernels.ready("cuda")  # none of it made the kernel fail, which would leave it to the plain path


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("kind", [FULL, HEADLINE])
def test_observing_launches_few_kernels(kind: str) -> None:
    """One batch takes at most 60 kernel launches."""
    assert cuda.launches(ours(cuda.Case(64, 512).make(device="cuda"))[kind]) <= cuda.MOST_LAUNCHES


@pytest.mark.usefixtures("kernel")
def test_observing_is_near_the_speed_of_the_memory() -> None:
    """At 2^22 tokens the headline set's kernels take at most three times as long as reading the batch once."""
    taken = cuda.milliseconds(ours(cuda.CASE.make(device="cuda"))[HEADLINE])
    assert taken <= cuda.MOST_OVER_LIMIT * cuda.limit(cuda.CASE)
