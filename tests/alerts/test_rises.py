"""Rises of the mismatch while a run goes on: told soon, once, and not withdrawn while they last."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ratioscope.alerts.confirmation import FindingChanges
from ratioscope.alerts.watch import Watch
from ratioscope.incidents import Incidents
from tests.diagnosis.test_over_time import RISES, never_synced
from tests.support.rises import told, windows_of

if TYPE_CHECKING:
    from ratioscope.event import Event


@pytest.mark.parametrize("stop", [10, 57, 140, 395])
def test_weights_that_stop_are_told_in_the_third_window(stop: int) -> None:
    """Weights that stop are told within three windows in which the engine is behind, also late in a long run."""
    spread = never_synced(0.03, 0.012, stop)
    events = told(windows_of([spread(k) for k in range(stop + 6)]))
    assert [(event.name, event.status) for event in events] == [("stale_weights", "appeared")]
    assert events[0].step <= stop + 4  # the first window behind is stop + 2


def test_a_restart_is_told_once_and_stays_open() -> None:
    """A restart with old weights that drifts on past 1 nat is told in its third window and never withdrawn."""
    spreads = [0.02 if k < 40 else 0.3 + 0.06 * (k - 40) for k in range(62)]
    events = told(windows_of(spreads))
    assert [(event.step, event.name, event.status) for event in events] == [(43, "wrong_weights", "appeared")]
    assert events[0].is_certain


def test_a_rise_that_ends_is_told_as_gone() -> None:
    """A rise is gone after the mismatch fell back to the level before."""
    events = [event for event in told(windows_of([0.012] * 20 + [0.3] * 20 + [0.012] * 10)) if event.name in RISES]
    assert [(event.status, event.step) for event in events] == [("appeared", 23), ("gone", 42)]


def test_two_windows_by_chance_stop_nothing() -> None:
    """Two windows far off are no event of high confidence."""
    events = told(windows_of([0.012] * 20 + [0.8] * 2 + [0.012] * 10))
    assert not [event for event in events if event.is_certain]


def test_the_watch_tells_a_late_stop_soon() -> None:
    """The watch diagnoses the windows in which the mismatch rises, though its share of the processor is used up."""
    events: list[Event] = []
    spread = never_synced(0.05, 0.012, 10)
    watch = Watch({}, events.append, incidents=Incidents(), changes=FindingChanges())
    for record in windows_of([spread(k) for k in range(20)], rows=8):
        watch.add(record)
        time.sleep(0.15)
        if events:
            break
    watch.close(60.0)
    assert [(event.name, event.status) for event in events] == [("stale_weights", "appeared")]
    assert events[0].step <= 20
