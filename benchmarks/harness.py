"""Interleaved timing of contenders, and the row in which every result is reported."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

WARM_UP = 2
"""Rounds at the start that are not timed."""


@dataclass(frozen=True)
class Row:
    """One result.

    Attributes:
        subject: the part of the benchmark, such as ``"observe"``.
        case: the input that it was measured on.
        name: what was measured.
        value: the median; None if it was not run.
        unit: of the value: ``"ms"``, ``"bytes"``, ``"x"`` for a ratio, ``"exponent"``, ``"%"`` or ``"count"``.
        ratios: the value over the values of other contenders of the same case, by their names.
        targets: upper bound of a ratio, by its name, or of ``"value"`` itself.
        note: the reason why it was not run, or a remark.
    """

    subject: str
    case: str
    name: str
    value: float | None
    unit: str = "ms"
    ratios: dict[str, float] = field(default_factory=dict)
    targets: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def met(self, target: str) -> bool | None:
        """Returns True if a target is met; None if it was not measured."""
        got = self.value if target == "value" else self.ratios.get(target)
        return None if got is None else got <= self.targets[target]


def interleave(
    functions: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 2.0,
    least: int = 5,
    most: int = 200,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median milliseconds of each function, all called in turn within one loop.

    Other work on the machine slows all functions alike, so the ratios of their times stay comparable. Each round begins
    with another function, so that none always follows the same one. The garbage collector is off meanwhile.

    Args:
        functions: contenders by name.
        seconds: approximate duration.
        least: smallest number of rounds.
        most: largest number of rounds.
        clock: returns seconds.
    """
    names = list(functions)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names * WARM_UP:
        functions[name]()
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        for turn in range(most):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                start = clock()
                functions[name]()
                times[name].append(clock() - start)
            if turn + 1 >= least and time.perf_counter() > end:
                break
    finally:
        if collects:
            gc.enable()
    return {name: 1000.0 * statistics.median(values) for name, values in times.items()}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Fits ``p`` in ``values ~ sizes ** p`` by least squares on logarithms."""
    import numpy as np

    return float(np.polyfit(np.log(np.asarray(sizes, float)), np.log(np.asarray(values, float)), 1)[0])
