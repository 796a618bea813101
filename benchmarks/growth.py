"""Growth of costs: exponents of fitted power laws."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import ratioscope as rs
from benchmarks import simulated
from benchmarks.batches import RULE, Case
from benchmarks.flush import WHOLE, in_one_process
from benchmarks.harness import Row, exponent, interleave
from benchmarks.observe import FULL, HEADLINE, LONGEST, ours

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALLEST, LARGEST, LARGEST_SHORT = 17, 22, 20
"""Powers of two of the tokens; in smaller batches the constant cost per operation dominates."""
RANKS = (4, 32, 256, 1024)


def run(*, short: bool) -> Iterator[Row]:
    """Fits observing by tokens, and flushing by tokens and by ranks."""
    powers = range(SMALLEST, (LARGEST_SHORT if short else LARGEST) + 1)
    cases = [Case(2**power // LONGEST, LONGEST) for power in powers]
    sizes = [float(case.tokens) for case in cases]
    span = f"2^{powers[0]} to 2^{powers[-1]} tokens"
    for name in (FULL, HEADLINE):
        works = {str(case): ours(case.make())[name] for case in cases}
        times = interleave(works, seconds=3.0 if short else 20.0, least=3)
        fitted = exponent(sizes, list(times.values()))
        yield Row("growth", f"observe, {span}", name, fitted, "exponent", note="1 expected")
    flushes = [in_one_process(case, flushes=15 if short else 40)[WHOLE] for case in cases]
    yield Row("growth", f"flush, {span}", WHOLE, exponent(sizes, flushes), "exponent", note="0 expected")
    yield from in_ranks(seconds=1.0 if short else 3.0)


def in_ranks(*, seconds: float) -> Iterator[Row]:
    """Fits computing time, bytes sent and bytes received of a merge, by the number of ranks."""
    batch = Case(16, 256).make()
    summary = rs.summarize(batch.train, batch.rollout, batch.mask, correction=RULE, token_ids=batch.token_ids)
    groups = {str(ranks): simulated.Group(ranks) for ranks in RANKS}
    times = interleave({name: partial(group.merge, summary) for name, group in groups.items()}, seconds=seconds)
    case = f"flush, {RANKS[0]} to {RANKS[-1]} simulated ranks"
    for name, values in (
        ("merge without the network", list(times.values())),
        ("bytes sent by a rank", [float(group.sent) for group in groups.values()]),
        ("bytes received by a rank", [float(group.received) for group in groups.values()]),
    ):
        yield Row("growth", case, name, exponent(RANKS, values), "exponent", note="0 expected")
