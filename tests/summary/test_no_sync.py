"""Observing makes no host sync, no graph and no change; a flush makes two fixed-size collectives and one copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

import ratioscope as rs
from benchmarks.counting import Counting
from ratioscope.state.slots import MAXIMA
from ratioscope.state.tables import TOP_SIZE
from ratioscope.summary.host import PACKED_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

RULES = [None] + [
    rs.Correction(level, action, lower=lower, upper=1.2)  # type: ignore[arg-type]
    for level in ("token", "sequence")
    for action in ("truncate", "mask")
    for lower in (None, 0.8)
]


def batch(*, device: str = "cpu", requires_grad: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities with padding, an empty row and, on a real device, bad tokens."""
    train = torch.full((3, 5), -0.7, device=device)
    rollout = torch.full((3, 5), -0.9, device=device)
    mask = torch.ones(3, 5, dtype=torch.int64, device=device)
    if device != "meta":
        train[0, 1], rollout[0, 2], rollout[1, 3], train[1, 0] = torch.nan, -torch.inf, 0.5, -300.0
        mask[2], mask[0, 4] = 0, 0
    return train.requires_grad_(requires_grad), rollout.requires_grad_(requires_grad), mask


def observe_everything(rule: rs.Correction | None, device: str = "cpu", **options: Any) -> list[rs.RatioSummary]:
    """Every way to observe: summarize, Recorder.observe and, where there is a rule, Recorder.correct; merged."""
    train, rollout, mask = batch(device=device, **options)
    advantages = torch.ones(3, device=device)
    ids = torch.zeros(3, 5, dtype=torch.int64, device=device)
    recorder = rs.Recorder(correction=rule)
    recorder.observe(train, rollout, mask, advantages=advantages, token_ids=ids)
    recorder.observe(train, rollout, mask.bool(), split="eval")
    recorder.observe_noise(train, train, mask)
    recorder.observe_drift(train, rollout, mask, epsilon=(0.2, 0.28))
    if rule is not None:
        weights = rs.correct(train, rollout, mask, correction=rule)
        recorder.observe(train, rollout, mask, advantages=advantages, applied=weights)
        recorder.correct(train, rollout, mask)
    summary = rs.summarize(train, rollout, mask, correction=rule, advantages=advantages, token_ids=ids)
    return [summary, summary.merge(summary), summary.failed(), recorder._windows.take("train")]


def tensors(summary: rs.RatioSummary) -> list[torch.Tensor]:
    """Every tensor of a summary's state."""
    top = summary.top
    own = [summary.maxima, summary.sums, summary.counts, summary.histograms, summary.lengths]
    return [*own, top.log_ratios, top.tokens, top.rows]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_observing_never_waits_for_the_device(rule: rs.Correction | None) -> None:
    """Observing, correcting and merging perform no operation that waits for the device or copies from it."""
    with Counting() as watch:
        observe_everything(rule)
    assert watch.operations > 100
    assert not watch.waits


@pytest.mark.parametrize("rule", RULES[1:], ids=str)
def test_a_packed_batch_never_waits_for_the_device(rule: rs.Correction) -> None:
    """With a prepared packing, correcting and observing packed tensors perform no wait."""
    packing = rs.Packing.of(cu_seqlens=[0, 5, 10, 15], max_length=5)
    train, rollout, mask = (tensor.flatten() for tensor in batch())
    recorder = rs.Recorder(correction=rule)
    with Counting() as watch:
        recorder.correct(train, rollout, mask, packing=packing)
    assert watch.operations > 100
    assert not watch.waits


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_observing_reads_no_value(rule: rs.Correction | None) -> None:
    """Observing works on tensors without data, on which every read of a value fails."""
    for summary in observe_everything(rule, device="meta"):
        for state in tensors(summary):
            assert state.device.type == "meta"


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: float(x[0, 0]),
        lambda x: bool(x.any()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.to("meta"),
        lambda x: torch.equal(x, x),
    ],
    ids=["item", "float", "bool", "bool index", "nonzero", "masked_select", "to", "equal"],
)
def test_the_detector_finds_each_kind_of_wait(wait: Callable[[torch.Tensor], object]) -> None:
    """The detector used by the tests above finds every way to wait for a device."""
    with Counting() as watch:
        wait(torch.ones(2, 2))
    assert sum(watch.waits.values()) >= 1


@pytest.mark.parametrize("read", [torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.cpu, bool])
def test_tensors_without_data_fail_every_read(read: Callable[[torch.Tensor], object]) -> None:
    """Reading a tensor without data raises, as the test above assumes."""
    with pytest.raises((RuntimeError, NotImplementedError)):
        read(torch.ones((), device="meta"))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_graph_is_kept(rule: rs.Correction | None) -> None:
    """Inputs that require a gradient leave no graph in a summary and get no gradient."""
    for summary in observe_everything(rule, requires_grad=True):
        for state in tensors(summary):
            assert not state.requires_grad
            assert state.grad_fn is None
    if rule is not None:
        train, rollout, mask = batch(requires_grad=True)
        weights = rs.correct(train, rollout, mask, correction=rule)
        assert not weights.requires_grad
        (weights * train).nansum().backward()
        assert train.grad is not None
        assert rollout.grad is None


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_input_is_changed(rule: rs.Correction | None) -> None:
    """Every input tensor keeps its bits and its version."""
    train, rollout, mask = batch()
    weights = torch.full((3, 5), 0.5)
    tensors = (train, rollout, mask, torch.tensor([1.0, -1.0, torch.nan]), torch.arange(15).reshape(3, 5), weights)
    before = [(tensor.clone(), tensor._version) for tensor in tensors]
    recorder = rs.Recorder(correction=rule)
    recorder.observe(train, rollout, mask, advantages=tensors[3], token_ids=tensors[4], applied=weights)
    if rule is not None:
        recorder.correct(train, rollout, mask)
    recorder.flush(step=1)
    for tensor, (copy, version) in zip(tensors, before, strict=True):
        assert tensor._version == version
        same = tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor
        assert torch.equal(same, copy.view(torch.int32) if tensor.dtype == torch.float32 else copy)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_packed_size_is_fixed(rule: rs.Correction | None) -> None:
    """A packed summary has one size for any observations and any rule."""
    shapes = [(0, 4), (2, 0), (1, 1), (3, 50)]
    summaries = [rs.RatioSummary.empty(rule), rs.RatioSummary.empty(rule).failed()]
    summaries += [rs.summarize(torch.zeros(s), torch.zeros(s), torch.ones(s), correction=rule) for s in shapes]
    assert {summary.pack().numel() for summary in summaries} == {PACKED_SIZE}
    assert PACKED_SIZE * 8 < 75_000


class FakeGroup:
    """Stands in for a process group in which only this rank has data.

    Attributes:
        sizes: number of elements of each collective, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
        self.sizes: list[int] = []
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_world_size", lambda group=None: ranks)
        monkeypatch.setattr(dist, "get_rank", lambda group=None: 0)
        monkeypatch.setattr(dist, "get_backend", lambda group=None: "gloo")
        monkeypatch.setattr(dist, "all_reduce", self._all_reduce)
        monkeypatch.setattr(dist, "all_gather", self._all_gather)
        for name in ("all_gather_object", "barrier", "broadcast", "gather", "reduce"):
            monkeypatch.setattr(dist, name, self._forbidden)

    def _all_reduce(self, tensor: torch.Tensor, op: Any = None, group: Any = None) -> None:
        self.sizes.append(tensor.numel())

    def _all_gather(self, parts: list[torch.Tensor], tensor: torch.Tensor, group: Any = None) -> None:
        self.sizes.append(tensor.numel())
        for part in parts:
            part.zero_()
        parts[0].copy_(tensor)

    def _forbidden(self, *arguments: Any, **options: Any) -> None:
        msg = "a flush makes no other collective"
        raise AssertionError(msg)


@pytest.mark.parametrize("observed", ["data", "nothing", "a failure", "no valid token"])
@pytest.mark.parametrize("rule", [None, RULES[1]], ids=str)
def test_a_flush_makes_two_collectives_of_fixed_size(
    rule: rs.Correction | None, observed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush makes two collectives whose sizes are independent of data, rule and failures.

    The first gathers maxima and the tables of what is largest, which neither a maximum nor a sum can merge.
    """
    group = FakeGroup(monkeypatch, ranks=4)
    recorder = rs.Recorder(correction=rule)
    train, rollout, mask = batch()
    if observed == "data":
        recorder.observe(train, rollout, mask)
        recorder.observe(train, rollout, mask)
    elif observed == "a failure":
        with pytest.raises(ValueError, match="Nothing is broadcast"):
            recorder.observe(train, rollout, mask[0])
    elif observed == "no valid token":
        recorder.observe(train, rollout, torch.zeros_like(mask))
    assert group.sizes == []
    recorder.flush(step=1)
    assert group.sizes == [len(MAXIMA) + 1 + TOP_SIZE, PACKED_SIZE - len(MAXIMA) - TOP_SIZE]


def test_one_rank_makes_no_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of one rank exchanges nothing."""
    group = FakeGroup(monkeypatch, ranks=1)
    recorder = rs.Recorder()
    recorder.observe(*batch())
    assert recorder.flush(step=1) is not None
    assert group.sizes == []


def test_a_flush_copies_to_the_host_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush copies the whole state to the host once and computes every metric from that copy."""
    copied: list[int] = []
    to_host = torch.Tensor.cpu

    def counting(tensor: torch.Tensor) -> torch.Tensor:
        copied.append(tensor.numel())
        return to_host(tensor)

    tracker = rs.MemoryTracker()
    recorder = rs.Recorder(correction=RULES[1], report_to=tracker)
    for _ in range(3):
        recorder.observe(*batch())
    monkeypatch.setattr(torch.Tensor, "cpu", counting)
    assert recorder.flush(step=1) is not None
    assert copied == [PACKED_SIZE + 1]  # and whether to stop
    assert len(tracker.rows) == 1
