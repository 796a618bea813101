"""Amount of work in numbers that do not depend on the machine: operations, waits, collectives, bytes.

`tests/summary/test_operations.py` compares them with operations.json. After an intended change:
python -m benchmarks operations --write
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import ratioscope as rs
from benchmarks import simulated
from benchmarks.batches import RULE, Case
from benchmarks.counting import Counting
from benchmarks.harness import Row
from benchmarks.observe import ours
from ratioscope.summary import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATH = Path(__file__).with_name("operations.json")
CASES = (Case(4, 64), Case(4, 64, packed=True))

Counts = dict[str, int]


def counted(work: Callable[[], object]) -> Counts:
    """Counts the work of a call on CPU tensors."""
    work()  # fills caches, which are not counted
    with Counting() as counting:
        work()
    return {
        "operations": counting.operations,
        "waits": counting.waits.total(),
        "bytes allocated": counting.allocated,
    }


def count() -> dict[str, Counts]:
    """Counts everything, by name; observing uses the reference implementation, which runs on every device."""
    with mock.patch.object(kernels, "reduced", return_value=None):
        return _count()


def _count() -> dict[str, Counts]:
    padded, packed = (case.make() for case in CASES)
    counts = {}
    for case, batch in zip(CASES, (padded, packed), strict=True):
        for name, observe in ours(batch).items():
            counts[f"observe, {name}, {case}"] = counted(observe)
    tensors = (padded.train, padded.rollout, padded.mask)
    counts[f"correct, {CASES[0]}"] = counted(partial(rs.correct, *tensors, correction=RULE))
    summary = rs.summarize(*tensors, correction=RULE)
    for ranks in (1, 4):
        group = simulated.Group(ranks)
        merged = counted(partial(group.merge, summary))
        counts[f"flush, merging over {ranks} ranks"] = merged | {
            "collectives": group.collectives,
            "bytes sent": group.sent,
        }
    return counts


def expected() -> dict[str, Counts]:
    """Committed numbers."""
    counts: dict[str, Counts] = json.loads(PATH.read_text())
    return counts


def run(*, short: bool, write: bool = False) -> Iterator[Row]:  # noqa: ARG001 - every part of the benchmarks is called with `short`
    """Counts everything; with ``write`` replaces the committed numbers."""
    counts = count()
    if write:
        PATH.write_text(json.dumps(counts, indent=1) + "\n")
    for name, numbers in counts.items():
        for what, number in numbers.items():
            yield Row("operations", name, what, float(number), "bytes" if what.startswith("bytes") else "count")
