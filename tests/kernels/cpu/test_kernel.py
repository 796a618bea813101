"""A kernel in place of the plain path: the same counts and histograms to the bit, the same sums to 1e-12."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ratioscope as rs
from ratioscope.batch.observation import Observation
from ratioscope.summary import kernels, reduce
from ratioscope_integrations.kernels import proof
from ratioscope_integrations.kernels.cpu import finish, kernel, rows, threads
from ratioscope_integrations.kernels.cpu.kernel import CpuKernel

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
    """The states by the plain path and by the kernel, and whether the kernel took the batch."""
    taken = KERNEL(observation, rule, applied)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernels, "reduced", lambda *_: None)
        plain = reduce.reduce(observation, rule, applied=applied)
        patched.setattr(kernels, "reduced", lambda *_: taken)
        fused = reduce.reduce(observation, rule, applied=applied)
    return plain, fused, taken is not None


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
def test_a_kernel_gives_what_the_plain_path_gives(
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
    plain, fused, taken = both(batch, rule, applied)
    assert proof.difference(fused, plain) is None
    assert taken or scale > 3.0 or strange or not (n_rows and width)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_threads_share_the_rows(n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is large enough is split over spare cores, and nothing is counted twice or left out."""
    batch = proof.batch(97, 1200, seed=7, scale=0.05, strange=True)
    train, rollout, _ = batch.given
    rollout.clamp_(min=-250.0)
    train.clamp_(min=-250.0, max=10.0)
    monkeypatch.setattr(kernel, "n_threads", lambda: n_threads)
    plain, fused, taken = both(batch, RULES[1], None)
    assert taken
    assert proof.difference(fused, plain) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES[:5], ids=lambda rule: rule.mode if rule else "no rule")
def test_nothing_is_compiled_in_flight(rule: rs.Correction | None, dtype: torch.dtype) -> None:
    """Strided tensors, columns of a wider batch and any rule run what was compiled when the kernel was made."""
    kernel.make()
    batch = proof.batch(12, 90, seed=4, scale=0.05, strange=False, dtype=dtype)
    assert batch.advantages is not None
    assert batch.token_ids is not None
    inputs = [part[::2, 8:88] for part in batch.given]
    strided = Observation.of(*inputs, advantages=batch.advantages[::2], token_ids=batch.token_ids[::2, 8:88])
    applied = None if rule is None else rs.correct(*inputs, correction=rule)
    plain, fused, taken = both(strided, rule, applied)
    assert taken
    assert proof.difference(fused, plain) is None
    assert [len(compiled.signatures) for compiled in (rows.reduce_rows, finish.finish)] == [1, 1]


@pytest.mark.parametrize("openmp", [True, False])
def test_work_is_shared_once_whatever_the_threads(openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number is worked on once, what one raises is raised, and torch has as many threads as before."""
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


def test_the_team_is_torchs_own() -> None:
    """Sharing work starts no thread where torch has its own team of OpenMP's, which it has on Linux."""
    torch.randn(1 << 20).exp()
    before = psutil.Process().num_threads()
    threads.share(lambda _: None, torch.get_num_threads())
    assert (threads._openmp() is not None) == (sys.platform == "linux")
    assert psutil.Process().num_threads() == before


def test_one_core_is_enough_for_a_small_batch() -> None:
    """Torch's other threads are left alone, and have their numbers of before afterwards."""
    inside: list[int] = []
    threads.share(lambda _: inside.append(torch.get_num_threads()), 1)
    assert inside == [1]


def test_what_a_kernel_cannot_do_is_left_to_the_plain_path() -> None:
    """Lists with missing tokens, masks of floats, float64 and log-ratios beyond 300 nats are declined, not guessed."""
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


def test_the_kernel_is_found_and_made_off_the_training_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point makes the CPU's kernel when it is due; before, and where it is switched off, there is none."""
    observation = Observation.of(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool))
    monkeypatch.setattr(kernels, "_makers", {})
    monkeypatch.setenv(kernels.SWITCH, "0")
    assert kernels.reduced(observation, None, None) is None
    assert not kernels._makers
    monkeypatch.delenv(kernels.SWITCH)
    assert kernels.reduced(observation, None, None) is None  # not due
    assert kernels._makers["cpu"]._thread is None
    kernels._makers["cpu"]._due = 0.0
    kernels.reduced(observation, None, None)  # being made
    assert kernels.ready("cpu", timeout=120.0)
    part = kernels.reduced(observation, None, None)
    assert part is not None
    assert part.n.tolist() == [2]


@pytest.mark.parametrize("end", ["pass", "import os; os._exit(0) if os.fork() == 0 else os.wait()"])
def test_a_process_may_end_or_fork_while_a_kernel_is_made(end: str) -> None:
    """The end of the process and a fork wait until the compiler has finished, and the exit status is 0."""
    # As in a training, torch is there before; modules with hooks of their own must not be new in the middle of one.
    start = "from ratioscope.summary import kernels; kernels.ready(timeout=0.3)"
    code = f"import torch, concurrent.futures.thread; {start}; {end}"
    environment = {**os.environ, kernels.SWITCH: "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("asked", [True, False])
def test_a_kernel_that_was_asked_for_and_is_not_there_is_told(
    asked: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without numba the plain path is taken, with a warning if the environment names the device and else without."""
    monkeypatch.setattr(kernels, "_makers", {})
    monkeypatch.setitem(sys.modules, "ratioscope_integrations.kernels.cpu.kernel", None)
    if asked:
        monkeypatch.setenv(kernels.SWITCH, "cpu, other")
    else:
        monkeypatch.delenv(kernels.SWITCH)
    with caplog.at_level(logging.INFO, logger="ratioscope"):
        assert not kernels.ready("cpu")
    assert [record.levelname for record in caplog.records] == (["WARNING"] if asked else [])


def test_a_kernel_that_fails_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing kernel is not asked again, and the batch at hand is reduced by the plain path."""
    asked = []

    def failing(*_: object) -> None:
        asked.append(1)
        msg = "no luck"
        raise RuntimeError(msg)

    maker = kernels._Maker("cpu")
    maker.kernel = failing
    monkeypatch.setattr(kernels, "_makers", {"cpu": maker})
    observation = Observation.of(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool))
    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        results = [reduce.reduce(observation, None) for _ in range(3)]
    assert [int(counts[0]) for _, _, counts, *_ in results] == [2, 2, 2]
    assert (len(asked), len(caplog.records)) == (1, 1)
    assert "no luck" in caplog.text
