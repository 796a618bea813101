"""How often the diagnosis is right, by simulation with fixed seeds: few runs of each kind, and all of them if slow.

The slow ones are held out: no threshold was chosen by them. The rates of the reference page are theirs
(``scripts/diagnosis_tables.py`` writes them).
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.scenarios import SCENARIOS
from tests.support.trials import FAULTY_RUNS, HEALTHY_RUNS, HELD_OUT, false_alarms, faulty, named

IDS = [f"{at:02}-{scenario.cause}" for at, scenario in enumerate(SCENARIOS)]


def test_healthy_runs_raise_nothing() -> None:
    """Of 24 healthy runs of all sizes and noises none raises anything above info; the slow test has a thousand."""
    assert false_alarms(range(24)) == {}


@pytest.mark.parametrize("at", range(len(SCENARIOS)), ids=IDS)
def test_each_cause_is_named(at: int) -> None:
    """Of 6 runs with a fault each has that fault as its first finding; the slow test has two hundred."""
    assert Counter(faulty(at, seed) for seed in range(6)) == {SCENARIOS[at].cause: 6}


@pytest.mark.slow
def test_healthy_runs_raise_nothing_in_a_thousand() -> None:
    """Of 1000 healthy runs at most 1 % raise anything above info."""
    alarms = false_alarms(range(HEALTHY_RUNS), stream=HELD_OUT)
    assert len(alarms) <= HEALTHY_RUNS // 100, alarms


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(SCENARIOS)), ids=IDS)
def test_each_cause_is_named_in_two_hundred(at: int) -> None:
    """At least 99 % of the runs with a fault are found, and named right by the first finding."""
    counts = named(at)
    assert counts[SCENARIOS[at].cause] >= 0.99 * FAULTY_RUNS, counts
