"""The CUDA kernel in Triton's interpreter, which needs no GPU, and compiled for GPUs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import ratioscope as rs
from benchmarks.batches import Case
from benchmarks.counting import Counting
from benchmarks.cuda import MOST_LAUNCHES
from benchmarks.observe import FULL, HEADLINE, ours
from ratioscope import kernels
from ratioscope.observation import Observation
from ratioscope.reduction import reduce
from ratioscope.summary import RatioSummary
from ratioscope.windows import MOST_APART

os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined
from triton.runtime.interpreter import GridExecutor

from ratioscope_integrations.kernels import cuda_top, proof
from ratioscope_integrations.kernels.cuda import CudaKernel
from tests.layers import compile_triton

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratioscope.state import State

RULES = [
    *proof.RULES[:4],
    rs.Correction("sequence", "mask", lower=0.5, upper=2.0),
    rs.Correction("sequence", "truncate", upper=3.0),
    rs.Correction.preset("openrlhf/icepop"),
]
KERNEL = CudaKernel(own_exp=False)
CPU = torch.device("cpu")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")]


def state(observation: Observation, rule: rs.Correction | None, applied: torch.Tensor | None = None) -> State:
    """The state by way of the kernel."""
    found = KERNEL(observation, rule, applied)
    assert found is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernels, "reduced", lambda *_: found)
        return reduce(observation, rule, applied=applied)


def test_the_kernel_proves_itself() -> None:
    """The batches that a kernel is proved with before it is used show no difference."""
    proof.prove(KERNEL, CPU)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.mode if rule else "no rule")
@given(
    n_rows=st.integers(1, 4),
    width=st.integers(1, 140),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.0, 1e-9, 1e-3, 0.1, 3.0, 60.0]),
    strange=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    off=st.sampled_from([None, 0, 1]),
)
@settings(max_examples=5, deadline=None, derandomize=True)
def test_the_kernel_gives_what_the_plain_path_gives(
    rule: rs.Correction | None,
    n_rows: int,
    width: int,
    seed: int,
    scale: float,
    strange: bool,
    dtype: torch.dtype,
    off: int | None,
) -> None:
    """Counts, histograms and tables are bit-equal, sums equal to 1e-12, whatever the batch and the rule."""
    batch = proof.batch(n_rows, width, seed=seed, scale=scale, strange=strange, dtype=dtype)
    applied = None
    if rule is not None and off is not None:
        applied = rs.correct(*batch.given, correction=rule, advantages=batch.advantages)
        applied.view(-1)[::7] += off * torch.nan_to_num(applied.view(-1)[::7]).clamp(min=0.1)
    assert proof.difference(state(batch, rule, applied), reduce(batch, rule, applied=applied)) is None


def test_a_mask_may_weigh_what_is_applied() -> None:
    """Applied weights are held against the step's own ratios, which a mask of other integers than 0 and 1 scales."""
    rollout = torch.linspace(-3.0, 0.0, 12).view(2, 6)
    train, mask = rollout + torch.linspace(-0.5, 0.5, 12).view(2, 6), torch.arange(12).view(2, 6) % 3
    batch, rule = Observation.of(train, rollout, mask), rs.Correction("token", "truncate", lower=0.8, upper=1.3)
    applied = rule.apply(rule.raw_ratio(batch.step_log_ratio))
    for weights in (applied, applied + 0.25, rule.apply(rule.raw_ratio(batch.log_ratio))):
        assert proof.difference(state(batch, rule, weights), reduce(batch, rule, applied=weights)) is None


def test_tensors_may_be_parts_of_wider_ones() -> None:
    """Rows that lie apart, columns that do, and a transposed tensor are read where they are."""
    given_batch = proof.batch(3, 140, seed=5, scale=0.1, strange=False)
    train, rollout, mask = given_batch.given
    ids = torch.arange(3 * 140).view(3, 140)
    variants = (
        ((train[:, 3:], rollout[:, :-3], mask[:, 2:-1]), ids[:, 1:-2]),
        ((train[:, ::2], rollout[:, 1::2], mask[:, ::2]), ids[:, ::2]),
        ((train[:, :5].T, rollout[:, :5].T, mask[:, :5].T), ids[:, :5].T),
    )
    for tensors, token_ids in variants:
        batch = Observation.of(*tensors, token_ids=token_ids)
        assert proof.difference(state(batch, None), reduce(batch, None)) is None


def test_a_kernel_that_is_wrong_is_refused() -> None:
    """One bit in a count, a sum that is off by 1e-9 of itself and a lost token are each told by name."""

    def lost(found: State) -> State:
        return found._replace(top=RatioSummary.empty().top)

    wrong = {
        "counts differ": lambda found: found._replace(counts=found.counts ^ 1),
        "the sum .* is": lambda found: found._replace(sums=found.sums * (1 + 1e-9)),
        "log_ratios differ": lost,
    }
    for message, change in wrong.items():

        def kernel(*arguments: Any, change: Any = change) -> Any:
            found = KERNEL(*arguments)
            return found and found._replace(state=change(found.state))

        with pytest.raises(RuntimeError, match=message):
            proof.prove(kernel, CPU)


def test_what_the_kernel_cannot_do_is_left_to_the_plain_path() -> None:
    """Lists with missing tokens, batches without a token and weights of another shape or type are declined."""
    rows, rule = torch.zeros(2, 3), rs.Correction("token", "truncate", upper=2.0)
    mask = rows == 0
    assert KERNEL(Observation.of(rows.tolist(), rows, mask), None, None) is None
    assert KERNEL(Observation.of(rows[:, :0], rows[:, :0], mask[:, :0]), None, None) is None
    assert KERNEL(Observation.of(rows[:0], rows[:0], mask[:0]), None, None) is None
    for applied in (rows[:, :1], rows.double()):
        assert KERNEL(Observation.of(rows, rows, mask), rule, applied) is None


def test_the_largest_of_many_keys_are_found_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what torch finds in few launches keys are taken in parts, with the same result."""
    keys = torch.randint(-(2**62), 2**62, (3, 1001), generator=torch.Generator().manual_seed(0))
    whole = cuda_top.largest(keys, 32)
    monkeypatch.setattr(cuda_top, "_MOST_AT_ONCE", 100)
    monkeypatch.setattr(cuda_top, "_CHUNK", 64)
    assert torch.equal(cuda_top.largest(keys, 32), whole)


def test_every_kernel_compiles_for_gpus() -> None:
    """All that would be launched becomes machine code for compute capability 8.0 and 9.0 that keeps to registers."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", compile_triton.__name__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    made = [line.split() for line in done.stdout.splitlines()]
    assert {line[0] for line in made} == {"moments", "ratios", "shifted", "candidates", "tables", "exponentials"}
    for capability in compile_triton.CAPABILITIES:
        assert len({tuple(line[:-3]) for line in made if line[-3] == str(capability)}) == 7  # ratios twice
    assert all(int(line[-2]) > 1000 and line[-1] == "0" for line in made)


FREE = ("empty", "new_empty", "detach")
"""Operations that launch nothing, beside views."""
SEVERAL = {"topk": 4, "constant_pad_nd": 2}
"""Those that launch more than one kernel, and how many at most."""


class Launches(TorchDispatchMode):
    """Counts what would be launched on a GPU: Triton's kernels, which do not run here, and torch's operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Counts one operation and runs it."""
        name = func.overloadpacket.__name__
        results = func._schema.returns
        is_view = bool(results) and results[0].alias_info is not None and not results[0].alias_info.is_write
        if not is_view and not name.startswith(FREE):
            self.count += SEVERAL.get(name, 1)
        return func(*args, **(kwargs or {}))

    def launched(self, *_: Any, **__: Any) -> None:
        """Stands for a launch of Triton's."""
        self.count += 1


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """Counts in its block, with the kernel in the plain path's place."""
    counting = Launches()
    monkeypatch.setattr(GridExecutor, "__call__", counting.launched)
    monkeypatch.setattr(kernels, "reduced", KERNEL)
    return counting


@pytest.mark.parametrize("kind", [FULL, HEADLINE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_observing_launches_few_kernels(kind: str, dtype: torch.dtype, launches: Launches) -> None:
    """One batch takes at most 60 launches, and at most as many on average with the merges of its window."""
    observe = ours(Case(64, 512, dtype=dtype).make())[kind]
    observe()  # what is made once and kept
    counts = []
    for _ in range(2 * MOST_APART):
        before = launches.count
        with launches:
            observe()
        counts.append(launches.count - before)
    assert 10 < min(counts) == statistics.median(counts) <= MOST_LAUNCHES
    assert statistics.mean(counts) <= MOST_LAUNCHES


@pytest.mark.parametrize("rule", [None, *RULES[1:4:2]], ids=lambda rule: rule.mode if rule else "no rule")
@pytest.mark.parametrize("seed", [0, 1, 2], ids=["an int64 mask", "ids and advantages", "both, and an int64 mask"])
def test_whatever_is_known_the_launches_are_few(seed: int, rule: rs.Correction | None, launches: Launches) -> None:
    """At most 60 and no wait, with and without ids, advantages, a rule and applied weights, and a mask of integers."""
    batch = proof.batch(64, 512, seed=seed, scale=0.1, strange=False)
    for applied in (None, None if rule is None else rs.correct(*batch.given, correction=rule)):
        RatioSummary.observe(batch, correction=rule, applied=applied)
        launches.count = 0
        with Counting() as counting, launches:
            given_batch = Observation.of(*batch.given, advantages=batch.advantages, token_ids=batch.token_ids)
            RatioSummary.observe(given_batch, correction=rule, applied=applied)
        assert 10 < launches.count <= MOST_LAUNCHES
        assert not counting.waits
