"""Diagnoses of synthetic runs, by seed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ratioscope.diagnosis import Diagnosis, diagnose
from tests.support.scenarios import SCENARIOS, healthy
from tests.support.synthetic import Spec, records

if TYPE_CHECKING:
    from collections.abc import Iterable

HEALTHY_RUNS, FAULTY_RUNS = 1000, 200
CLEAN = "nothing"

TUNED: tuple[int, ...] = ()
"""Seed stream with which thresholds were chosen."""

HELD_OUT: tuple[int, ...] = (20261201,)
"""Seed stream of the reported rates; no threshold may be chosen with it. If one was, use another stream."""


def diagnosed(spec: Spec, rng: np.random.Generator) -> Diagnosis:
    """Diagnosis of one synthetic run."""
    return diagnose(records(spec, rng), spec.config)


def first(diagnosis: Diagnosis) -> str:
    """Name of the first finding above info, or :data:`CLEAN`."""
    return next((finding.name for finding in diagnosis.findings if finding.level != "info"), CLEAN)


def faulty(index: int, seed: int, *, stream: tuple[int, ...] = TUNED) -> str:
    """Name of the first finding of one run of a scenario."""
    rng = np.random.default_rng([*stream, index, seed])
    return first(diagnosed(SCENARIOS[index].make(rng), rng))


def named(index: int, runs: int = FAULTY_RUNS) -> Counter[str]:
    """Counts the first findings of many held-out runs of a scenario."""
    return Counter(faulty(index, seed, stream=HELD_OUT) for seed in range(runs))


def false_alarms(seeds: Iterable[int], *, stream: tuple[int, ...] = TUNED) -> dict[int, str]:
    """First findings above info of healthy runs, by seed; runs without one are left out."""
    alarms = {}
    for seed in seeds:
        rng = np.random.default_rng([*stream, len(SCENARIOS) + 1000, seed])
        if (name := first(diagnosed(healthy(rng), rng))) != CLEAN:
            alarms[seed] = name
    return alarms
