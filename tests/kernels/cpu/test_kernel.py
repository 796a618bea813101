"""Tests of the CPU kernel: counts and histograms equal the reference implementation's, sums to 1e-12."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ratioscope as rs
from ratioscope.batch.observation import Observation
from ratioscope.summary import kernels, reduce
from ratioscope_integrations.kernels.cpu import finish, reduction, rows, threads
from ratioscope_integrations.kernels.cpu.reduction import CpuKernel
from tests.support import kernel_cases

if TYPE_CHECKING:
    from ratioscope.summary.kernels import BatchState

RULES = [
    None,
    rs.Correction("token", "truncate", upper=1.2),
    rs.Correction("token", "truncate", lower=0.9, upper=1.1),
    rs.Correction("token", "mask", lower=0.8, upper=1.3),
    rs.Correction("sequence", "mask", lower=0.5, upper=2.0),
    rs.Correction("sequence", "truncate", upper=3.0),
    rs.Correction.preset("openrlhf/icepop"),
]
KERNEL = CpuKernel()

pytestmark = pytest.mark.slow  # compiling takes some ten seconds


def both(
    observation: Observation, rule: rs.Correction | None, applied: torch.Tensor | None
) -> tuple[BatchState, BatchState, bool]:
    """Reduces a batch by the reference implementation and by the kernel.

    Returns:
        The reference state, the kernel's state, and True if the kernel accepted the batch.
    """
    taken = KERNEL(observation, rule, applied)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernels, "reduced", lambda *_: None)
        expected = reduce.reduce(observation, rule, applied=applied)
        patched.setattr(kernels, "reduced", lambda *_: taken)
        result = reduce.reduce(observation, rule, applied=applied)
    return expected, result, taken is not None


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.mode if rule else "no rule")
@given(
    n_rows=st.integers(0, 7),
    width=st.integers(0, 140),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.0, 1e-9, 1e-3, 0.1, 3.0, 60.0]),
    strange=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    off=st.sampled_from([None, 0, 1]),
)
@example(n_rows=1, width=1, seed=1, scale=0.0, strange=False, dtype=torch.float32, off=0)
@settings(max_examples=60, deadline=None)
def test_the_kernel_equals_the_reference_implementation(
    rule: rs.Correction | None,
    n_rows: int,
    width: int,
    seed: int,
    scale: float,
    strange: bool,
    dtype: torch.dtype,
    off: int | None,
) -> None:
    """Counts, histograms and tables are bit-equal and sums equal to 1e-12, for any batch and rule."""
    batch = kernel_cases.batch(n_rows, width, seed=seed, scale=scale, strange=strange, dtype=dtype)
    applied = None
    if rule is not None and off is not None:
        applied = rs.correct(*batch.given, correction=rule, advantages=batch.advantages)
        applied.view(-1)[::7] += off * torch.nan_to_num(applied.view(-1)[::7]).clamp(min=0.1)
    expected, result, taken = both(batch, rule, applied)
    assert kernel_cases.difference(result, expected) is None
    assert taken or scale > 3.0 or strange or not (n_rows and width)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_threads_share_the_rows(n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that share a large batch count each completion exactly once."""
    batch = kernel_cases.batch(97, 1200, seed=7, scale=0.05, strange=True)
    train, rollout, _ = batch.given
    rollout.clamp_(min=-250.0)
    train.clamp_(min=-250.0, max=10.0)
    monkeypatch.setattr(reduction, "n_threads", lambda: n_threads)
    expected, result, taken = both(batch, RULES[1], None)
    assert taken
    assert kernel_cases.difference(result, expected) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES[:5], ids=lambda rule: rule.mode if rule else "no rule")
def test_no_batch_compiles_another_variant(rule: rs.Correction | None, dtype: torch.dtype) -> None:
    """Strided tensors, columns of a wider batch and any rule run the variant that was compiled at the start."""
    reduction.first_call()
    batch = kernel_cases.batch(12, 90, seed=4, scale=0.05, strange=False, dtype=dtype)
    assert batch.advantages is not None
    assert batch.token_ids is not None
    inputs = [part[::2, 8:88] for part in batch.given]
    strided = Observation.of(*inputs, advantages=batch.advantages[::2], token_ids=batch.token_ids[::2, 8:88])
    applied = None if rule is None else rs.correct(*inputs, correction=rule)
    expected, result, taken = both(strided, rule, applied)
    assert taken
    assert kernel_cases.difference(result, expected) is None
    assert [len(compiled.signatures) for compiled in (rows.reduce_rows, finish.finish)] == [1, 1]


@pytest.mark.parametrize("openmp", [True, False])
def test_work_is_shared_once_by_any_number_of_threads(openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number is worked on once, an exception is passed on, and torch keeps its number of threads."""
    if not openmp:
        monkeypatch.setattr(threads, "_openmp", lambda: None)
    before = torch.get_num_threads()
    for n in (1, 2, 5):
        done: list[int] = []
        threads.share(done.append, n)
        assert sorted(done) == list(range(n))
        with pytest.raises(ZeroDivisionError):
            threads.share(lambda number: 1 // number, n)
    assert torch.get_num_threads() == before


def test_the_threads_are_those_of_torch() -> None:
    """Sharing work starts no thread where torch has an OpenMP team, as on Linux."""
    torch.randn(1 << 20).exp()
    before = psutil.Process().num_threads()
    threads.share(lambda _: None, torch.get_num_threads())
    assert (threads._openmp() is not None) == (sys.platform == "linux")
    assert psutil.Process().num_threads() == before


def test_one_core_is_enough_for_a_small_batch() -> None:
    """Work for one thread runs with a single torch thread."""
    inside: list[int] = []
    threads.share(lambda _: inside.append(torch.get_num_threads()), 1)
    assert inside == [1]


def test_the_kernel_declines_unsupported_batches() -> None:
    """The kernel declines lists, masks of floats or with other numbers than 0 and 1, float64, and large log-ratios."""
    rows = torch.zeros(2, 3)
    declined = [
        (rows.tolist(), rows, torch.ones(2, 3)),
        (rows, rows, torch.ones(2, 3)),
        (rows.double(), rows, rows == 0),
        (rows, rows - 301.0, rows == 0),
        (rows, rows, torch.full((2, 3), 2)),
        (rows[:, :0], rows[:, :0], rows[:, :0] == 0),
    ]
    for train, rollout, mask in declined:
        assert KERNEL(Observation.of(train, rollout, mask), None, None) is None


def test_the_kernel_is_found_and_compiled_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point builds the CPU kernel when it is due; before that, or switched off, there is none."""
    observation = Observation.of(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool))
    monkeypatch.setattr(kernels, "_makers", {})
    monkeypatch.setenv(kernels.SWITCH, "0")
    assert kernels.reduced(observation, None, None) is None
    assert not kernels._makers
    monkeypatch.delenv(kernels.SWITCH)
    assert kernels.reduced(observation, None, None) is None  # not due
    assert not kernels._makers["cpu"]._worker.was_started
    kernels._makers["cpu"]._due = 0.0
    kernels.reduced(observation, None, None)  # compiling
    assert kernels.ready("cpu", timeout=300.0)
    part = kernels.reduced(observation, None, None)
    assert part is not None
    assert part.n.tolist() == [2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torchs_default_type_compiles_no_other_variant(dtype: torch.dtype) -> None:
    """Under another default type of torch the compiled variant gives the same state, with and without rule and ids."""
    reduction.first_call()
    batch = kernel_cases.batch(12, 90, seed=4, scale=0.05, strange=False)
    bare = Observation.of(*batch.given)
    expected = [KERNEL(each, rule, None) for each in (batch, bare) for rule in RULES[:5]]
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        results = [KERNEL(each, rule, None) for each in (batch, bare) for rule in RULES[:5]]
    finally:
        torch.set_default_dtype(before)
    for result, right in zip(results, expected, strict=True):
        assert result is not None
        assert right is not None
        assert torch.equal(result.state.sums, right.state.sums)
    assert [len(compiled.signatures) for compiled in (rows.reduce_rows, finish.finish)] == [1, 1]


DURING = """
import os, time, torch, concurrent.futures.thread
from ratioscope.summary import kernels
kernels.ready(timeout={seconds})
start = time.monotonic()
{end}
print(time.monotonic() - start, flush=True)
"""


@pytest.mark.parametrize("end", ["pass", "os._exit(0) if os.fork() == 0 else os.wait()"], ids=["ends", "forks"])
@pytest.mark.parametrize("seconds", [0.3, 3.0, 10.0])
def test_a_process_ends_and_forks_during_compilation(end: str, seconds: float) -> None:
    """Neither a fork nor the end of the process waits for the compiler, and the exit status is 0."""
    # Torch is imported first, as in a training run: modules with exit hooks must not be imported during the exit.
    code = DURING.format(seconds=seconds, end=end)
    environment = {**os.environ, kernels.SWITCH: "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout) < 3.0
    assert time.monotonic() - start < seconds + 20.0


LOADED = """
import sys, time, torch
from ratioscope.summary import kernels
assert kernels.ready(timeout=200)
from ratioscope.batch.observation import Observation
from ratioscope_integrations.kernels.cpu.rows import reduce_rows
assert sum(reduce_rows.stats.cache_hits.values()) == 1 and not reduce_rows.stats.cache_misses
logps = -torch.rand(4, 8)
assert kernels.reduced(Observation.of(logps, logps, torch.ones(4, 8, dtype=torch.bool)), None, None) is not None
torch.set_default_dtype(torch.float64)
assert kernels.reduced(Observation.of(logps, logps, torch.ones(4, 8, dtype=torch.bool)), None, None) is not None
try:
    reduce_rows(0, None, None, None)
except TypeError:
    print("compiles nothing")
"""


def test_the_kernel_is_loaded_and_never_compiled_in_this_process() -> None:
    """The compiled result is loaded from the other process, and no later call can compile another variant."""
    environment = {**os.environ, kernels.SWITCH: "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", LOADED], env=environment, capture_output=True, text=True, timeout=240)
    assert done.stdout == "compiles nothing\n", done.stderr


@pytest.mark.parametrize("requested", [True, False])
def test_a_requested_kernel_that_is_missing_is_reported(
    requested: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without numba the reference implementation runs, with a warning only if the environment names the device."""
    monkeypatch.setattr(kernels, "_makers", {})
    monkeypatch.setitem(sys.modules, "ratioscope_integrations.kernels.cpu.kernel", None)
    if requested:
        monkeypatch.setenv(kernels.SWITCH, "cpu, other")
    else:
        monkeypatch.delenv(kernels.SWITCH)
    with caplog.at_level(logging.INFO, logger="ratioscope"):
        assert not kernels.ready("cpu")
    assert [record.levelname for record in caplog.records] == (["WARNING"] if requested else [])


def test_a_kernel_that_fails_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing kernel is called once, and the reference implementation reduces its batch."""
    calls = []

    def failing(*_: object) -> None:
        calls.append(1)
        msg = "no luck"
        raise RuntimeError(msg)

    maker = kernels._Maker("cpu")
    maker.kernel = failing
    monkeypatch.setattr(kernels, "_makers", {"cpu": maker})
    observation = Observation.of(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool))
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        results = [reduce.reduce(observation, None) for _ in range(3)]
    assert [int(counts[0]) for _, _, counts, *_ in results] == [2, 2, 2]
    assert (len(calls), len(caplog.records)) == (1, 1)
    assert "no luck" in caplog.text
