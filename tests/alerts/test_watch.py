"""Diagnosis during a run: one event for each change, the chosen reaction, and no cost to the run."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ratioscope as rs
from ratioscope.alerts.confirmation import FindingChanges
from ratioscope.alerts.schedule import FIRST_WINDOWS
from ratioscope.alerts.watch import MOST_WAITING, Watch
from ratioscope.cli.diagnose import run as diagnose_command
from ratioscope.delivery.background import Background
from ratioscope.delivery.sender import ALERT_TRIES
from ratioscope.diagnosis import Diagnosis, Finding, NotChecked, Run, diagnose
from ratioscope.incidents import Incidents
from ratioscope.journal.schema import FILE
from ratioscope.runs.pooled import PooledRun
from ratioscope.trackers.rows import RowMaker
from tests.support.synthetic import Spec, records
from tests.support.synthetic_faults import zero

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

BIASED = {"sampling": {"top_p": 0.8, "temperature": 1.0}}
LIMIT_S = 60.0


def finding(name: str, level: str = "warning", confidence: str = "medium") -> Finding:
    """Makes a finding."""
    return Finding(name, "meaning", level, confidence, "numbers", (1, 9), "do this", "source")  # type: ignore[arg-type]


def events_of(
    changes: FindingChanges,
    *findings: Finding,
    explained: Iterable[str] = (),
    unclear: Iterable[str] = (),
    **options: Any,
) -> list[str]:
    """Feeds one diagnosis with the given findings, and returns its events as words."""
    not_checked = tuple(NotChecked(name, "too few") for name in unclear)
    events = changes.update(Diagnosis(findings, not_checked, (), tuple(explained), 5, (1, 9)), **options)
    return [f"{event.name} {event.status}" + (f" because {event.because}" if event.because else "") for event in events]


def faulty(windows: int, **spec: Any) -> list[rs.Record]:
    """Makes records of a run whose engine returned 0 for half of the log-probabilities."""
    return list(records(Spec(windows=windows, rows=8, **{"after": zero(0.5), **spec}), np.random.default_rng(3)))


def wait_for(condition: Callable[[], object]) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns every warning of ratioscope."""
    return [r.getMessage() for r in caplog.records if r.name == "ratioscope" and r.levelno == logging.WARNING]


def test_a_finding_is_reported_once_after_two_diagnoses() -> None:
    """A warning is reported once, after two consecutive diagnoses; an error of high confidence after the first."""
    changes = FindingChanges()
    noisy, certain = finding("outliers"), finding("zero_filled", "error", "high")
    assert events_of(changes, noisy) == []
    assert events_of(changes) == []
    assert events_of(changes, noisy) == []
    assert events_of(changes, noisy) == ["outliers appeared"]
    assert events_of(changes, certain, noisy) == ["zero_filled appeared"]
    assert events_of(changes, certain, noisy) == []
    assert changes.open_counts == {"warning": 1, "error": 1}


def test_a_worse_finding_is_reported_again() -> None:
    """A rise in level, or to certainty, is reported as worse; a fall is not reported."""
    changes = FindingChanges()
    events_of(changes, finding("outliers"))
    assert events_of(changes, finding("outliers")) == ["outliers appeared"]
    assert events_of(changes, finding("outliers", "error")) == []
    assert events_of(changes, finding("outliers", "error")) == ["outliers worse"]
    assert events_of(changes, finding("outliers", "error", "high")) == ["outliers worse"]
    assert events_of(changes, finding("outliers")) == events_of(changes, finding("outliers", "error", "high")) == []


def test_a_finding_is_gone_after_two_diagnoses_and_does_not_flap() -> None:
    """Two diagnoses without a finding clear it, unchecked ones do not count, and the next change takes four."""
    changes, noisy = FindingChanges(), finding("outliers")
    events_of(changes, noisy)
    events_of(changes, noisy)
    assert events_of(changes, unclear=["outliers"]) == events_of(changes, unclear=["outliers"]) == []
    assert events_of(changes) == []
    assert events_of(changes) == ["outliers gone"]
    assert changes.open_counts == {"warning": 0, "error": 0}
    assert [events_of(changes, noisy) for _ in range(4)] == [[], [], [], ["outliers appeared"]]
    assert [events_of(changes) for _ in range(4)] == [[], [], [], ["outliers gone"]]


def test_the_final_diagnosis_needs_no_confirmation() -> None:
    """A finding that the final diagnosis shows for the first time is reported."""
    assert events_of(FindingChanges(), finding("outliers"), is_last=True) == ["outliers appeared"]


def test_numbers_that_confirm_a_config_finding_are_not_reported() -> None:
    """Numbers that confirm a config finding are no news of their own, and make it worse where they are; nor is info."""
    for level, worse in (("warning", []), ("error", ["sampling_settings worse"])):
        changes = FindingChanges()
        before = changes.from_config(diagnose(Run(PooledRun(), BIASED)))
        assert [(event.name, event.is_news, event.step) for event in before] == [("sampling_settings", True, 0)]
        both = finding("sampling_settings", level, "high"), finding("support_truncation", level)
        shown = [events_of(changes, *both) for _ in range(2)]
        assert shown == [worse, ["support_truncation appeared because sampling_settings"]]
        assert changes.open_counts is not None
        assert changes.open_counts[level] == 2
        assert (
            changes.from_config(diagnose(Run(PooledRun(), BIASED))) == []
        )  # trackers were opened again, as by an evaluation
    assert events_of(FindingChanges(), finding("precision_noise", "info"), is_last=True) == []


def test_an_event_reaches_tracker_journal_log_and_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fault reaches a tracker and the journal, is logged once with its remedy, and is counted in later rows."""
    tracker = rs.MemoryTracker()
    run = faulty(FIRST_WINDOWS + 3)
    with rs.Recorder(report_to=[tracker], output_dir=tmp_path, config=BIASED) as recorder:
        assert recorder.should_stop is False
        for record in run[:-1]:
            recorder.write(record)
        wait_for(lambda: recorder._changes.open_counts and recorder._changes.open_counts["error"])
        recorder.write(run[-1])
    names = [(event.name, event.status, event.level) for event in tracker.events]
    assert names[0] == ("sampling_settings", "appeared", "warning")
    assert ("zero_filled", "appeared", "error") in names
    assert len({*names}) == len(names)
    first, last = tracker.rows[0].scalars, tracker.rows[-1].scalars
    assert (first["ratioscope/events/warnings"], first["ratioscope/events/errors"]) == (1.0, 0.0)
    assert last["ratioscope/events/errors"] == 1.0
    with rs.JournalReader(tmp_path) as journal:
        assert journal.events() == tracker.events
    (line,) = [text for text in warnings(caplog) if "zero_filled" in text]
    assert "Leave missing log-probabilities missing" in line
    assert not recorder.should_stop
    assert not recorder.incidents.counts


def test_a_healthy_run_has_no_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a fault there is no event; both counts are 0 from the first diagnosis on and absent before."""
    tracker = rs.MemoryTracker()
    run = faulty(FIRST_WINDOWS + 1, after=lambda *_: None)
    with rs.Recorder(report_to=[tracker], output_dir=tmp_path) as recorder:
        for record in run[:-1]:
            recorder.write(record)
        wait_for(lambda: recorder._changes.open_counts is not None)
        recorder.write(run[-1])
    assert tracker.events == []
    assert "ratioscope/events/errors" not in tracker.rows[0].scalars
    assert [tracker.rows[-1].scalars[f"ratioscope/events/{level}s"] for level in ("warning", "error")] == [0.0, 0.0]
    assert warnings(caplog) == []


def test_evaluations_have_no_counts() -> None:
    """A row of an evaluation has no count of open findings, which concern the training."""
    with rs.Recorder() as recorder:
        recorder._changes.open_counts = {"warning": 2, "error": 0}
        (record,) = faulty(1)
        kept = recorder.write(record)
        assert RowMaker().make(kept).scalars["ratioscope/events/warnings"] == 2.0
        other = recorder.write(rs.Record(1, "eval", 0.0, record.scalars, record.summary))
        assert not [key for key in other.health if "events" in key]


@pytest.mark.parametrize("action", ["stop", "callable", "warn", None])
@pytest.mark.filterwarnings("ignore::ratioscope.FindingWarning")
def test_only_a_run_that_asks_for_it_is_stopped(action: str | None) -> None:
    """With "stop" a certain error ends the training, with a callable its True; with "warn" or None nothing does."""
    events: list[rs.Event] = []
    threads: set[threading.Thread] = set()

    def judge(event: rs.Event) -> bool:
        events.append(event)
        threads.add(threading.current_thread())
        return event.name == "zero_filled"

    on_finding: Any = judge if action == "callable" else action
    recorder = rs.Recorder(on_finding=on_finding)
    for record in faulty(FIRST_WINDOWS):
        recorder.write(record)
    wait_for(lambda: recorder._changes.open_counts and recorder._changes.open_counts["error"])
    wait_for(lambda: on_finding is None or recorder._reaction._waiting)
    assert not recorder.should_stop
    recorder.merge(step=9)
    assert recorder.should_stop is (action in ("stop", "callable"))
    recorder.close()
    assert recorder.should_stop is (action in ("stop", "callable"))
    recorder.start_anew()
    assert not recorder.should_stop
    if action == "callable":
        assert events
        assert threads == {threading.current_thread()}


def test_warn_is_a_python_warning() -> None:
    """With "warn" a finding is a FindingWarning with evidence and remedy."""
    recorder = rs.Recorder(on_finding="warn", config=BIASED)
    recorder.open()
    with pytest.warns(rs.FindingWarning, match=r"sampling_settings \(warning\).*top_p=0.8.*Set top_p=1"):
        recorder.merge(step=1)
    recorder.close()


def test_an_action_that_raises_costs_nothing() -> None:
    """A callable that raises is an incident, and training continues."""
    recorder = rs.Recorder(on_finding=lambda event: 1 / 0, config=BIASED)
    recorder.open()
    recorder.merge(step=1)
    recorder.close()
    assert recorder.incidents.counts == {"on_finding: ZeroDivisionError": 1}
    assert not recorder.should_stop


def test_an_unknown_action_is_refused() -> None:
    """A value that is neither a known name nor callable raises when the recorder is made."""
    with pytest.raises(ValueError, match=r"got on_finding='halt'; expected \"warn\", \"stop\""):
        rs.Recorder(on_finding="halt")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got on_finding of type int"):
        rs.Recorder(on_finding=3)  # type: ignore[arg-type]


class FailsAtAlerts(rs.MemoryTracker):
    """Takes rows, and raises at each event."""

    background: bool = False  # type: ignore[misc]
    tries = 0

    def alert(self, event: rs.Event) -> None:
        """Raises."""
        self.tries += 1
        msg = "no alerts today"
        raise OSError(msg)


@pytest.mark.parametrize("background", [False, True])
def test_an_alert_that_fails_is_one_warning(
    background: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tracker that fails at events costs one warning, gets every row, and is tried a bounded number of times."""
    monkeypatch.setattr("ratioscope.delivery.background.FIRST_DELAY_S", 0.01)
    tracker = FailsAtAlerts()
    tracker.background = background
    with rs.Recorder(report_to=[tracker], config=BIASED, close_timeout=LIMIT_S) as recorder:
        for record in faulty(2):
            recorder.write(record)
        wait_for(lambda: tracker.tries == (ALERT_TRIES if background else 1))
    assert [row.step for row in tracker.rows] == [1, 2]
    assert recorder.incidents.counts == {"memory alert: OSError": tracker.tries}
    assert len([text for text in warnings(caplog) if "no alerts today" in text]) == 1


def test_a_tracker_without_alert_gets_rows_alone() -> None:
    """A tracker that has no ``alert`` is served in the background like any other."""

    class Plain(rs.Tracker):
        name = "plain"

        def __init__(self) -> None:
            self.rows: list[rs.Row] = []

        def open(self, run: rs.RunContext) -> bool:
            return True

        def write(self, row: rs.Row) -> None:
            self.rows.append(row)

        def close(self) -> None: ...

        def where(self) -> str:
            return "nowhere"

    served = Background(Plain(), Incidents())
    served.alert(rs.Event("a", "appeared", "error", "high", "m", "e", "r", 1, 0.0, 0, 1))
    assert served._sender.send_alerts()
    assert not served.queued()


def test_texts_are_bounded_and_name_the_remedy() -> None:
    """A title is shorter than 64 characters, a text has evidence and remedy, and an event survives JSON."""
    event = rs.Event("long_name_" * 9, "worse", "error", "low", "it is off", "3 of 4", "Do this.", 7, 1.0, 1, 2, None)
    assert len(event.title) < 64
    assert event.text == "Step 7: it is off; 3 of 4 (low confidence). Do this."
    assert rs.Event.from_json(event.to_json()) == event


def test_an_older_journal_is_read_and_continued(tmp_path: Path) -> None:
    """A journal of the version before events has none, and a run that continues it adds the table."""
    with rs.Recorder(output_dir=tmp_path) as recorder:
        recorder.write(faulty(1)[0])
    connection = sqlite3.connect(tmp_path / "ratioscope" / FILE)
    connection.executescript("DROP TABLE event; PRAGMA user_version = 1;")
    connection.close()
    with rs.JournalReader(tmp_path) as journal:
        assert journal.events() == []
        assert len(list(journal.records())) == 1
    with rs.Recorder(output_dir=tmp_path, config=BIASED) as recorder:
        recorder.open(restored_step=1)
    with rs.JournalReader(tmp_path) as journal:
        assert [event.name for event in journal.events()] == ["sampling_settings"]


def test_events_of_repeated_steps_are_left_out(tmp_path: Path) -> None:
    """An event beyond the checkpoint that a later attempt continues from is superseded, like the records."""
    with rs.Recorder(output_dir=tmp_path) as recorder:
        for record in faulty(FIRST_WINDOWS):
            recorder.write(record)
    with rs.JournalReader(tmp_path) as journal:
        assert [event.name for event in journal.events()] == ["zero_filled"]
    with rs.Recorder(output_dir=tmp_path) as recorder:
        recorder.open(restored_step=FIRST_WINDOWS - 1)
    with rs.JournalReader(tmp_path) as journal:
        assert journal.events() == []


def test_diagnose_lists_the_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``ratioscope diagnose`` prints the step at which a finding was first reported."""
    from argparse import Namespace

    from ratioscope.cli.arguments import Steps

    with rs.Recorder(output_dir=tmp_path) as recorder:
        for record in faulty(FIRST_WINDOWS):
            recorder.write(record)
    assert diagnose_command(Namespace(path=str(tmp_path), steps=Steps(), json=False)) == 1
    assert "step 3: zero_filled appeared, error" in capsys.readouterr().out


def test_a_full_queue_leaves_windows_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the thread cannot keep up, windows are left out and counted, and adding one never waits."""
    incidents = Incidents()
    watch = Watch({}, lambda event: None, incidents=incidents, changes=FindingChanges())
    monkeypatch.setattr("ratioscope.alerts.watch.FIRST_WINDOWS", math.inf)  # the thread is never started
    (record,) = faulty(1)
    for _ in range(MOST_WAITING + 2):
        watch.add(record)
    watch.close(1.0)
    assert incidents.counts == {"diagnosis queue full": 2}


def test_an_end_does_not_wait_for_a_diagnosis_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """``close`` waits a bounded time for the final diagnosis; its later events are not reported."""
    go, events = threading.Event(), []
    monkeypatch.setattr("ratioscope.alerts.watch.diagnose", lambda run: go.wait(LIMIT_S) and diagnose(run))
    incidents = Incidents()
    watch = Watch({}, events.append, incidents=incidents, changes=FindingChanges())
    for record in faulty(FIRST_WINDOWS):
        watch.add(record)
    watch.close(0.05)
    assert incidents.counts == {"diagnosis did not finish": 1}
    go.set()
    assert watch._worker.join(LIMIT_S)
    assert events == []


def test_a_forked_child_diagnoses_nothing() -> None:
    """A child that was forked while a run is watched takes no window and ends at once."""
    watch = Watch({}, lambda event: None, incidents=Incidents(), changes=FindingChanges())
    run = faulty(FIRST_WINDOWS)
    for record in run:
        watch.add(record)
    child = os.fork()
    if child == 0:
        watch.add(run[0])
        watch.close(LIMIT_S)
        os._exit(len(watch._waiting) > FIRST_WINDOWS)
    assert os.waitpid(child, 0)[1] == 0
    watch.close(LIMIT_S)


def test_windows_one_by_one_give_the_same_diagnosis_as_all_at_once() -> None:
    """A growing run gives at each length the diagnosis of its records so far, and keeps few pools."""
    run = faulty(6, after=lambda *_: None, behind=lambda window: 0.02 * window)
    growing = Run(PooledRun(), {})
    for windows, record in enumerate(run, start=1):
        growing.add(record)
        assert diagnose(growing) == diagnose(run[:windows])
