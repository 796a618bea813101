"""How much work there is to do, by numbers that do not depend on the machine: operations, waits, collectives, bytes.

They stand in operations.json and `tests/summary/test_operations.py` holds the code to them. Where a change is meant:
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
    """What a call of some work does, on CPU tensors."""
    work()  # what is made once and kept
    with Counting() as counting:
        work()
    return {
        "operations": counting.operations,
        "waits": counting.waits.total(),
        "bytes allocated": counting.allocated,
    }


def count() -> dict[str, Counts]:
    """Everything that is counted, by what it is; of observing the plain path, which every device has."""
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
    """What is committed."""
    counts: dict[str, Counts] = json.loads(PATH.read_text())
    return counts


def run(*, short: bool, write: bool = False) -> Iterator[Row]:
    """Counts; with ``write`` commits what it counted."""
    counts = count()
    if write:
        PATH.write_text(json.dumps(counts, indent=1) + "\n")
    for name, numbers in counts.items():
        for what, number in numbers.items():
            yield Row("operations", name, what, float(number), "bytes" if what.startswith("bytes") else "count")
