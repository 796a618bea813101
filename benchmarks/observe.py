"""Time to observe one batch, against the times of other tools for it."""

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
"""Power of two of the tokens up to which variants are measured; in larger batches their ratios stay the same."""


def cases(short: bool) -> list[Case]:
    """Target shapes, then other cases by size; each variant differs from the plain case in one property."""
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
    """Makes both contenders of ratioscope; their time includes adding the batch to the open window."""
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


def measure(case: Case, others: Mapping[str, Peer], *, seconds: float, clock: Clock = time.perf_counter) -> list[Row]:
    """Measures all contenders on one batch.

    Args:
        case: shape and kind of the batch.
        others: contenders beside ratioscope, by name.
        seconds: approximate duration.
        clock: returns seconds.
    """
    batch = case.make()
    refused = dict[str, str]()
    contenders = ours(batch)
    for name, peer in others.items():
        try:
            peer(batch)
        except (RuntimeError, TypeError, ValueError) as error:
            refused[name] = f"not run: {str(error).splitlines()[0]}"
        else:
            contenders[name] = partial(peer, batch)
    times = interleave(contenders, seconds=seconds, least=3, clock=clock)
    rows = []
    for name, value in times.items():
        is_ours = name in (FULL, HEADLINE)
        ratios = {peer: value / times[peer] for peer in others if peer in times} if is_ours else {}
        targets = TARGETS[name] if is_ours and case in TARGET_CASES else {}
        rows.append(Row("observe", str(case), name, value, ratios=ratios, targets=targets))
    return rows + [Row("observe", str(case), name, None, note=reason) for name, reason in refused.items()]


def run(*, short: bool) -> Iterator[Row]:
    """Measures all cases, with a row for each contender that is not installed."""
    others, missing = peers.load()
    for case in cases(short):
        yield from measure(case, others, seconds=2.0 if short else 4.0)
    yield from (Row("observe", "every case", name, None, note=reason) for name, reason in missing.items())
