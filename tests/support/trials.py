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
"""Runs that thresholds were chosen by."""

HELD_OUT: tuple[int, ...] = (20261130,)
"""Runs that nothing was chosen by, nor is to be: rates are told of these. If they change a threshold, take others."""


def diagnosed(spec: Spec, rng: np.random.Generator) -> Diagnosis:
    """The diagnosis of one run."""
    return diagnose(records(spec, rng), spec.config)


def first(diagnosis: Diagnosis) -> str:
    """Name of the first finding above info, or :data:`CLEAN`."""
    return next((finding.name for finding in diagnosis.findings if finding.level != "info"), CLEAN)


def faulty(at: int, seed: int, *, stream: tuple[int, ...] = TUNED) -> str:
    """What the first finding of a run of a scenario is."""
    rng = np.random.default_rng([*stream, at, seed])
    return first(diagnosed(SCENARIOS[at].make(rng), rng))


def named(at: int, runs: int = FAULTY_RUNS) -> Counter[str]:
    """The same of many held-out runs."""
    return Counter(faulty(at, seed, stream=HELD_OUT) for seed in range(runs))


def false_alarms(seeds: Iterable[int], *, stream: tuple[int, ...] = TUNED) -> dict[int, str]:
    """First findings of healthy runs, of those that have any above info, by seed."""
    found = {}
    for seed in seeds:
        rng = np.random.default_rng([*stream, len(SCENARIOS) + 1000, seed])
        if (name := first(diagnosed(healthy(rng), rng))) != CLEAN:
            found[seed] = name
    return found
