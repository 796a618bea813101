"""Contents of a run in a backend, compared with the rows that were sent."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ratioscope.trackers.base import Row


@dataclass(frozen=True)
class Received:
    """Holds the contents of one run in a backend.

    Attributes:
        scalars: pairs ``(step, value)`` by key, in any order.
        histograms: pairs ``(step, counts)`` by key; the counts of the bins from left to right, with or without empty
            bins; None for a backend without histograms.
        config: the nested config under ``ratioscope``; None for a backend that stores none.
        regrouped: True if the backend has its own bins, so that only the sum of the counts can be compared.
    """

    scalars: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    histograms: Mapping[str, Sequence[tuple[int, Sequence[float]]]] | None = None
    config: Mapping[str, Any] | None = None
    regrouped: bool = False


def require(condition: bool, message: str) -> None:
    """Raises an AssertionError with this message unless the condition holds; works under ``python -O`` too."""
    if not condition:
        raise AssertionError(message)


def has(points: Iterable[tuple[int, float]], step: int, value: float) -> bool:
    """Returns whether a value arrived at a step, to the precision of float32."""
    # Backends of float32 keep about seven digits.
    return any(index == step and math.isclose(got, value, rel_tol=1e-5, abs_tol=1e-9) for index, got in points)


def compare(sent: Sequence[Row], received: Received, *, repeats: bool = False) -> None:
    """Compares received with sent rows; with ``repeats``, a point that arrived several times counts once."""
    expected = Counter(key for row in sent for key in row.scalars)
    for key, count in expected.items():
        points = received.scalars.get(key, ())
        got = len({step for step, _ in points}) if repeats else len(points)
        require(got == count, f"{key} arrived {got} times; expected {count}")
    for row in sent:
        wrong = [key for key, value in row.scalars.items() if not has(received.scalars[key], row.step, value)]
        require(not wrong, f"{wrong[:5]} of step {row.step} arrived with other values, or at another step")
        if received.histograms is not None:
            _compare_histograms(row, received.histograms, regrouped=received.regrouped, repeats=repeats)


def _compare_histograms(
    row: Row,
    histograms: Mapping[str, Sequence[tuple[int, Sequence[float]]]],
    *,
    regrouped: bool,
    repeats: bool,
) -> None:
    for key, bins in row.histograms.items():
        arrived = [counts for step, counts in histograms.get(key, ()) if step == row.step]
        require(bool(arrived), f"the histogram {key} of step {row.step} did not arrive")
        total = sum(arrived[0])
        require(total == bins.total, f"{key} of step {row.step} sums to {total}; expected {bins.total}")
        wanted = [count for count in bins.counts.tolist() if count]
        equal = regrouped or all([n for n in counts if n] == wanted for counts in arrived)
        require(equal, f"the counts of {key} of step {row.step} differ from those sent")
        require(repeats or len(arrived) == 1, f"the histogram {key} of step {row.step} arrived {len(arrived)} times")
