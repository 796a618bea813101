"""Layouts: padded, packed, nested and ragged batches of equal tokens give equal records."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ratioscope as rs
from ratioscope.state.slots import MAXIMA, SUMS

RULES = [rs.Correction("token", "truncate", upper=1.2), rs.Correction("sequence", "mask", lower=0.5, upper=2.0)]


def rows(lengths: list[int], *, seed: int = 0) -> dict[str, list[torch.Tensor]]:
    """One batch as a list a row: some tokens masked out, some without a log-probability."""
    random = torch.Generator().manual_seed(seed)
    rollout = [-3.0 * torch.rand(n, generator=random) for n in lengths]
    train = [each + 0.3 * torch.randn(len(each), generator=random) for each in rollout]
    for each in train:
        each[torch.rand(len(each), generator=random) < 0.05] = torch.nan
    mask = [torch.rand(n, generator=random) < 0.8 for n in lengths]
    ids = [torch.randint(0, 99, (n,), generator=random) for n in lengths]
    return {"train_logps": train, "rollout_logps": rollout, "mask": mask, "token_ids": ids}


def padded(batch: dict[str, list[torch.Tensor]], *, beyond: int = 0) -> dict[str, torch.Tensor]:
    """The batch as ``(B, T)``, with garbage at padding."""
    width = max(map(len, batch["mask"]), default=0) + beyond
    filler = {"train_logps": -6.0, "rollout_logps": 0.3, "mask": False, "token_ids": 5}
    return {
        name: torch.stack([torch.cat([row, row.new_full((width - len(row),), filler[name])]) for row in values])
        for name, values in batch.items()
    }


def layouts(batch: dict[str, list[torch.Tensor]]) -> dict[str, dict[str, Any]]:
    """The batch in every other layout, as arguments."""
    lengths = [len(row) for row in batch["mask"]]
    bounds = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0)
    packed = {name: torch.cat(values) for name, values in batch.items()}
    spaced = {name: torch.cat([part for row in values for part in (row, row[:2])]) for name, values in batch.items()}
    segments = [index for row, n in enumerate(lengths) for index in [row] * n + [-1] * min(2, n)]
    nested = {
        layout: {name: torch.nested.nested_tensor(values, layout=layout) for name, values in batch.items()}
        for layout in (torch.jagged, torch.strided)
    }
    return {
        "cu_seqlens": packed | {"packing": rs.Packing.of(cu_seqlens=bounds)},
        "cu_seqlens as a list, wide": packed | {"packing": rs.Packing.of(cu_seqlens=bounds.tolist(), max_length=99)},
        "segment ids with padding between": spaced | {"packing": rs.Packing.of(segment_ids=segments)},
        "jagged": nested[torch.jagged],
        "strided nested": nested[torch.strided],
        "rows": batch,
        "lists": {name: [row.tolist() for row in values] for name, values in batch.items()},
        "wider padding": padded(batch, beyond=3),
    }


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.mode)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_every_layout_gives_the_same_record(rule: rs.Correction, lengths: list[int], seed: int) -> None:
    """Counts, histograms and the worst tokens are bit-equal, sums and extremes equal to 1e-12, in every layout."""
    batch = rows(lengths, seed=seed)
    advantages = torch.linspace(-1, 1, len(lengths))
    right = rs.summarize(**padded(batch), correction=rule, advantages=advantages)
    for name, arguments in layouts(batch).items():
        summary = rs.summarize(**arguments, correction=rule, advantages=advantages)
        for part in ("counts", "histograms", "lengths"):
            assert torch.equal(getattr(summary, part), getattr(right, part)), (name, part)
        assert torch.equal(summary.top.tokens, right.top.tokens), name
        for slots, part in ((SUMS, "sums"), (MAXIMA, "maxima")):
            values, expected = (dict(zip(slots, getattr(of, part).tolist(), strict=True)) for of in (summary, right))
            for slot, value in values.items():
                # The weights of sequences are the correction step's own, of a float32 sum over the padded row.
                single = rule.level == "sequence" and slot.startswith(("corrected/", "gradient/"))
                assert value == pytest.approx(expected[slot], rel=1e-6 if single else 1e-12, abs=1e-12), (name, slot)


def test_empty_completions_are_counted_in_a_packed_batch() -> None:
    """A completion without a token is counted; a packed batch without a completion or token observes nothing."""
    empty = torch.zeros(0)
    packing = rs.Packing.of(cu_seqlens=[0, 2, 2, 3])
    assert rs.summarize(-torch.ones(3), -torch.ones(3), torch.ones(3), packing=packing).count("rows_empty") == 1
    for bounds, rows_empty in (([0], 0), ([0, 0], 1)):
        nothing = rs.summarize(empty, empty, empty, packing=rs.Packing.of(cu_seqlens=bounds))
        assert (nothing.count("token/n"), nothing.count("rows_empty")) == (0, rows_empty)
    assert nothing.maxima[MAXIMA.index("generations")] == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.mode)
def test_weights_come_back_packed_and_agree_with_the_rule(rule: rs.Correction) -> None:
    """Correcting a packed batch gives each token its weight of the padded one, and the record agrees."""
    batch = rows([4, 7, 1])
    packed = {name: torch.cat(values) for name, values in batch.items() if name != "token_ids"}
    packing = rs.Packing.of(cu_seqlens=[0, 4, 11, 12])
    weights = rs.correct(**packed, correction=rule, packing=packing)
    dense = padded(batch)
    del dense["token_ids"]
    expected = rs.correct(**dense, correction=rule).expand_as(dense["mask"])
    assert torch.equal(weights, torch.cat([row[:n] for row, n in zip(expected, (4, 7, 1), strict=True)]))

    recorder = rs.Recorder(correction=rule)
    assert torch.equal(recorder.correct(**packed, packing=packing), weights)
    wrong = weights.clone()
    wrong[4] += 0.5
    recorder.observe(**packed, packing=packing, applied=wrong)
    record = recorder.flush(step=1)
    assert record is not None
    assert record.summary.count("disagreements") == 1


def test_positions_outside_all_completions_weigh_one() -> None:
    """Padding between packed completions has a weight of 1, like masked tokens in a token mode."""
    packing = rs.Packing.of(segment_ids=[-1, 3, 3, -1])
    values = torch.tensor([9.0, -1.0, -2.0, 9.0])
    rule = rs.Correction("token", "mask", upper=0.5)
    assert rs.correct(values, values, torch.ones(4), correction=rule, packing=packing).tolist() == [1.0, 0.0, 0.0, 1.0]


LOGPS = -torch.ones(3)
REFUSED = {
    "both": (lambda: rs.Packing.of(cu_seqlens=[0, 1], segment_ids=[0]), ValueError, "both of cu_seqlens"),
    "neither": (lambda: rs.Packing.of(), ValueError, "neither of cu_seqlens"),
    "no bounds": (lambda: rs.Packing.of(cu_seqlens=torch.zeros(0, dtype=torch.int32)), ValueError, "no cu_seqlens"),
    "decreasing": (lambda: rs.Packing.of(cu_seqlens=[0, 3, 2]), ValueError, "never decrease"),
    "not from 0": (lambda: rs.Packing.of(cu_seqlens=[1, 3]), ValueError, "begin with 0"),
    "floats": (lambda: rs.Packing.of(cu_seqlens=torch.zeros(2)), ValueError, "vector of integers"),
    "beyond the values": (
        lambda: rs.summarize(LOGPS, LOGPS, LOGPS, packing=rs.Packing.of(cu_seqlens=[0, 4])),
        ValueError,
        "train_logps of 3 tokens; the packing has rows up to token 4",
    ),
    "padded with a packing": (
        lambda: rs.summarize(LOGPS, LOGPS, LOGPS.view(1, 3), packing=rs.Packing.of(cu_seqlens=[0, 3])),
        ValueError,
        r"mask of shape \(1, 3\) with a packing",
    ),
    "half nested": (
        lambda: rs.summarize(torch.nested.nested_tensor([LOGPS], layout=torch.jagged), LOGPS, LOGPS),
        TypeError,
        "nested train_logps and rollout_logps of type Tensor",
    ),
    "nested of other lengths": (
        lambda: rs.summarize(
            torch.nested.nested_tensor([LOGPS], layout=torch.jagged),
            *[torch.nested.nested_tensor([LOGPS[:2]], layout=torch.jagged)] * 2,
        ),
        ValueError,
        "rollout_logps with rows of other lengths",
    ),
}


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_a_layout_that_does_not_fit_is_refused(call: Any, error: type[Exception], text: str) -> None:
    """An invalid packing or nested batch raises an error with the given and the expected value."""
    with pytest.raises(error, match=text):
        call()
