"""Observing one batch, against what others do with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

import ratioscope as rs
from benchmarks import peers
from benchmarks.batches import RULE, Case
from benchmarks.harness import Row, interleave

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.batches import Batch
    from benchmarks.peers import Peer

Clock = Callable[[], float]
FULL, HEADLINE = "full set", "headline set"
TARGET_CASES = (Case(64, 4096), Case(128, 8192))
TARGETS = {FULL: {"TRL": 1.0, "verl": 0.25}, HEADLINE: {"TRL": 0.6}}
LONGEST, SHORT_ROW = 8192, 64
LAST_VARIANT = 20
"""Power of two of the tokens up to which variants are measured; beyond, nothing about them changes."""


def cases(short: bool) -> list[Case]:
    """The target shapes, then by size; each variant differs from the plain case in one thing."""
    wanted = list(TARGET_CASES)
    for power in (12, 15, 18) if short else range(12, 25, 2):
        width = min(2**power, LONGEST)
        plain = Case(2**power // width, width)
        wanted += [plain] if plain not in wanted else []
        if power == 15 or (not short and power <= LAST_VARIANT):
            wanted += [
                Case(plain.rows, width, packed=True),
                Case(plain.rows, width, dtype=torch.bfloat16),
                Case(2**power // SHORT_ROW, SHORT_ROW),
            ]
    return wanted


def ours(batch: Batch) -> dict[str, Callable[[], object]]:
    """Both ways in which a batch is observed; adding it to the open window is part of it."""
    full, headline = rs.Recorder(correction=RULE), rs.Recorder(correction=RULE, detail="headline")
    tensors = (batch.train, batch.rollout, batch.mask)
    return {
        FULL: partial(
            full.observe,
            *tensors,
            advantages=batch.advantages,
            token_ids=batch.token_ids,
            applied=batch.applied,
            packing=batch.packing,
        ),
        HEADLINE: partial(headline.observe, *tensors, packing=batch.packing),
    }


def measure(case: Case, found: Mapping[str, Peer], *, seconds: float, clock: Clock = time.perf_counter) -> list[Row]:
    """Everybody on one batch.

    Args:
        case: what it is like.
        found: those to be measured against, by name.
        seconds: how long to go on, about.
        clock: what is measured.
    """
    batch = case.make()
    refused = dict[str, str]()
    contenders = ours(batch)
    for name, peer in found.items():
        try:
            peer(batch)
        except (RuntimeError, TypeError, ValueError) as error:
            refused[name] = f"not run: {str(error).splitlines()[0]}"
        else:
            contenders[name] = partial(peer, batch)
    times = interleave(contenders, seconds=seconds, least=3, clock=clock)
    rows = []
    for name, value in times.items():
        mine = name in (FULL, HEADLINE)
        ratios = {peer: value / times[peer] for peer in found if peer in times} if mine else {}
        targets = TARGETS[name] if mine and case in TARGET_CASES else {}
        rows.append(Row("observe", str(case), name, value, ratios=ratios, targets=targets))
    return rows + [Row("observe", str(case), name, None, note=why) for name, why in refused.items()]


def run(*, short: bool) -> Iterator[Row]:
    """All cases."""
    found, missing = peers.load()
    for case in cases(short):
        yield from measure(case, found, seconds=2.0 if short else 4.0)
    yield from (Row("observe", "every case", name, None, note=why) for name, why in missing.items())
