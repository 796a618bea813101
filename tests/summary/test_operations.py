"""Number of operations of observing and flushing, independent of the machine."""

from __future__ import annotations

import pytest
import torch

from benchmarks import operations
from benchmarks.counting import Counting

HELP = "if the change is meant: python -m benchmarks operations --write"


@pytest.fixture(scope="module")
def counts() -> dict[str, operations.Counts]:
    """Counts the operations of the current code."""
    return operations.count()


def test_operations_equal_the_committed_counts(counts: dict[str, operations.Counts]) -> None:
    """Operations, waits, collectives and bytes of observing and flushing equal operations.json."""
    assert counts == operations.expected(), HELP


def test_nothing_waits_and_a_flush_makes_few_collectives(counts: dict[str, operations.Counts]) -> None:
    """Observing never waits for a device; a flush makes two collectives, and none on a single rank."""
    for name, numbers in counts.items():
        if name.startswith("flush"):
            assert numbers["collectives"] == (0 if " 1 " in name else 2)
        else:
            assert numbers["waits"] == 0, name


def test_the_counter_counts_operations_bytes_and_waits() -> None:
    """An operation, the bytes of its result and a wait are each counted once; a view allocates nothing."""
    values = torch.ones(8)
    with Counting() as counting:
        (values + 1.0).view(2, 4)
        values.add_(1.0)
        float(values[0])
    assert (counting.operations, counting.allocated, counting.waits.total()) == (5, 32, 1)
