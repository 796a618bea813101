"""Recorder: windows, trackers, and failures that never end a run."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope.delivery.background import Background
from ratioscope.incidents import Incidents
from ratioscope.metrics.catalogue import keys
from ratioscope.recording.windows import MOST_UNMERGED
from ratioscope.summary.host import HostSummary
from ratioscope.trackers import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN = "ratioscope/"
RAW = "sampling/raw_importance_sampling_ratio/"
FRACTION = "sampling/frac_modified_importance_sampling_ratio"

CAP = rs.Correction("token", "truncate", upper=1.2)


def observe(recorder: rs.Recorder, *log_ratios: float, **options: Any) -> None:
    """Observes one completion with these log-ratios."""
    train = torch.tensor([log_ratios])
    recorder.observe(train, torch.zeros_like(train), torch.ones_like(train), **options)


def flush(recorder: rs.Recorder, step: int = 1, **options: Any) -> rs.Record:
    """Flushes a window that has data."""
    record = recorder.flush(step=step, **options)
    assert record is not None
    return record


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns every warning of ratioscope so far."""
    return [r.getMessage() for r in caplog.records if r.name == "ratioscope" and r.levelno == logging.WARNING]


class Broken(rs.MemoryTracker):
    """Raises in the given methods."""

    name = "broken"

    def __init__(self, *methods: str, background: bool = False) -> None:
        super().__init__()
        self.failing = methods
        self.background = background  # type: ignore[misc]

    def _maybe(self, method: str) -> None:
        if method in self.failing:
            msg = f"the backend's {method} is down"
            raise OSError(msg)

    def open(self, run: rs.RunContext) -> bool:
        """Opens, or raises."""
        self._maybe("open")
        return super().open(run)

    def write(self, row: rs.Row) -> None:
        """Writes, or raises."""
        self._maybe("write")
        super().write(row)

    def close(self) -> None:
        """Closes, or raises."""
        self._maybe("close")
        super().close()

    def where(self) -> str:
        """Returns the location, or raises."""
        self._maybe("where")
        return super().where()


class Held(rs.MemoryTracker):
    """Backend whose writes wait until they are released."""

    name = "held"
    background = True

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.writing = threading.Event()

    def write(self, row: rs.Row) -> None:
        """Waits, then writes."""
        self.writing.set()
        assert self.go.wait(30)
        super().write(row)


class Late(rs.MemoryTracker):
    """Backend whose run is opened later by another program."""

    name = "late"

    def __init__(self) -> None:
        super().__init__()
        self.ready = False

    def open(self, run: rs.RunContext) -> bool:
        """Opens once the run exists."""
        return self.ready and super().open(run)


@pytest.fixture
def held() -> Iterator[Held]:
    """Makes a held backend, released at the end."""
    tracker = Held()
    yield tracker
    tracker.go.set()


# --- windows ------------------------------------------------------------------------------------------------------


def test_a_window_pools_its_observations() -> None:
    """All observations since the last flush are one record, and the next record starts empty."""
    recorder = rs.Recorder(correction=CAP)
    observe(recorder, 0.1, 0.5)
    observe(recorder, -0.3)
    first = flush(recorder, step=7)
    assert (first.step, first.split, first.world_size, first.events) == (7, "train", 1, ())
    assert first.correction == CAP
    assert first.scalars[f"{OWN}counts/tokens"] == 3
    assert first.scalars[f"{OWN}counts/generations"] == 2
    assert first.scalars[FRACTION] == pytest.approx(1 / 3)
    assert first.scalars == first.summary.metrics()
    observe(recorder, 0.2)
    second = flush(recorder, step=8)
    assert second.scalars[f"{OWN}counts/tokens"] == 1
    assert second.scalars[f"{RAW}min"] == pytest.approx(math.exp(0.2))


def test_a_window_of_many_batches_holds_few_states() -> None:
    """A window holds at most eight states however many batches it has, and loses no batch and no failure."""
    recorder = rs.Recorder()
    for number in range(30):
        recorder.observe([[-1.0 - number]], [[-1.0]], [[1]])
        assert len(recorder._windows._open["train"]) <= MOST_UNMERGED
        if number == 20:
            with pytest.raises(ValueError, match="expected"):
                recorder.observe([[-1.0, -1.0]], [[-1.0]], [[1]])
    record = recorder.flush(step=1)
    assert record is not None
    assert [record.summary.count(name) for name in ("token/n", "errors")] == [30, 1]
    assert record.scalars["ratioscope/token/log_ratio/min"] == -29.0


def test_a_rule_that_changes_within_a_window_is_refused_at_once() -> None:
    """A batch under another rule is refused, and the window flushes without it."""
    recorder = rs.Recorder(correction=CAP)
    recorder.observe([[-1.0]], [[-1.5]], [[1]])
    recorder.correction = rs.Correction("token", "mask", upper=3.0)
    with pytest.raises(ValueError, match="different corrections"):
        recorder.observe([[-1.0]], [[-1.5]], [[1]])
    record = recorder.flush(step=1)
    assert record is not None
    assert (record.summary.count("token/n"), record.summary.correction) == (1, CAP)


def test_a_window_without_an_observation_is_none() -> None:
    """Flushing an empty window returns None and sends nothing to trackers."""
    tracker = rs.MemoryTracker()
    recorder = rs.Recorder(report_to=tracker)
    assert recorder.flush(step=1) is None
    observe(recorder, 0.1)
    flush(recorder)
    assert recorder.flush(step=2) is None
    assert len(tracker.rows) == 1


def test_train_and_eval_have_separate_windows() -> None:
    """An eval observation enters only the eval window, and its keys get a prefix."""
    tracker = rs.MemoryTracker()
    recorder = rs.Recorder(report_to=tracker, correction=CAP)
    observe(recorder, 0.1)
    observe(recorder, 0.3, 0.4, split="eval")
    record = flush(recorder, step=5, split="eval")
    assert record.split == "eval"
    assert record.scalars[f"{OWN}counts/tokens"] == 2
    assert flush(recorder, step=5).scalars[f"{OWN}counts/tokens"] == 1
    evaluation, training = tracker.rows
    assert {key.split("/")[0] for key in [*evaluation.scalars, *evaluation.histograms]} == {"eval"}
    assert {key.removeprefix("eval/") for key in evaluation.scalars} == set(training.scalars)
    assert set(training.histograms) == {key.removeprefix("eval/") for key in evaluation.histograms}


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("action", ["truncate", "mask"])
def test_correct_returns_weights_and_records_the_batch(level: Any, action: Any) -> None:
    """``correct`` returns the rule's weights and records the same batch as ``observe``."""
    rule = rs.Correction(level, action, upper=1.2)
    train, mask = torch.tensor([[0.1, 0.5], [0.0, -0.2]]), torch.tensor([[1, 1], [1, 0]])
    advantages = torch.tensor([1.0, -1.0])
    correcting, observing = rs.Recorder(correction=rule), rs.Recorder(correction=rule)
    weights = correcting.correct(train, torch.zeros(2, 2), mask, advantages=advantages)
    assert torch.equal(weights, rs.correct(train, torch.zeros(2, 2), mask, correction=rule))
    observing.observe(train, torch.zeros(2, 2), mask, advantages=advantages)
    assert flush(correcting).summary == flush(observing).summary


@pytest.mark.parametrize(
    "rule",
    [
        rs.Correction("sequence", "mask", upper=1.2),
        rs.Correction.of([rs.Stage("ratio", "token", "truncate", upper=1.2)]),
    ],
    ids=["bounds", "stages"],
)
def test_correct_checks_and_corrects_a_batch_once(rule: rs.Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the recorder's correction step makes one observation and applies the rule to it once."""
    calls = []
    for owner, name in ((rs.Observation, "of"), (type(rule), "correct")):
        call = getattr(owner, name)

        def counted(*given: Any, _call: Any = call, _name: str = name, **named: Any) -> Any:
            calls.append(_name)
            return _call(*given, **named)

        monkeypatch.setattr(owner, name, counted)
    recorder = rs.Recorder(correction=rule)
    recorder.correct(torch.tensor([[0.1, 0.5]]), torch.zeros(1, 2), torch.ones(1, 2))
    assert flush(recorder).summary.count("corrected/n") > 0
    assert calls == ["of", "correct"]


def test_other_weights_withhold_corrected_statistics(caplog: pytest.LogCaptureFixture) -> None:
    """Weights that are not the rule's are reported once, and cost only the corrected statistics and histogram."""
    tracker = rs.MemoryTracker()
    recorder = rs.Recorder(report_to=tracker, correction=CAP)
    for step in (1, 2):
        observe(recorder, 0.1, 0.5, applied=torch.tensor([[1.1, 1.2]]))
        record = flush(recorder, step=step)
        assert record.events == (
            "1 of the trainer's weights are not what the rule gives; corrected statistics withheld",
        )
        assert not [key for key in record.scalars if "corrected" in key]
        assert record.scalars[FRACTION] == 0.5
    assert recorder.incidents.counts == {"weights disagree": 2}
    assert len(warnings(caplog)) == 1
    assert {key.rpartition("/")[2] for key in tracker.rows[0].histograms} == {"token_log_ratio", "sequence_log_ratio"}


def test_the_rules_own_weights_are_trusted() -> None:
    """Weights that equal the rule's to the bit cause no event and withhold nothing."""
    recorder = rs.Recorder(correction=CAP)
    observe(recorder, 0.1, 0.5, applied=torch.tensor([[0.1, 0.5]]).exp().clamp(max=1.2))
    record = flush(recorder)
    assert record.events == ()
    assert record.scalars[f"{OWN}corrected/max"] == pytest.approx(1.2)


def test_a_record_has_the_cost_of_recording() -> None:
    """A record's health has the time of its observations, failed ones included, and that of the previous flush."""
    recorder = rs.Recorder()
    has_flush_ms = []
    for batches in (1, 0, 3):
        start = time.perf_counter()
        for _ in range(batches):
            observe(recorder, 0.1)
        with pytest.raises(ValueError, match="Nothing is broadcast"):
            recorder.observe(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 3))
        took = 1000.0 * (time.perf_counter() - start)
        health = flush(recorder).health
        assert 0.0 < health["ratioscope/overhead/observe_ms"] <= took
        has_flush_ms.append("ratioscope/overhead/flush_ms" in health)
    assert has_flush_ms == [False, True, True]


# --- rows of trackers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("detail", ["headline", "standard", "full"])
def test_trackers_get_the_requested_detail(detail: str) -> None:
    """A tracker receives the scalars of the chosen detail; the record has all of them."""
    tracker = rs.MemoryTracker()
    recorder = rs.Recorder(report_to=tracker, correction=CAP, detail=detail)
    observe(recorder, 0.1, 0.5, -0.2)
    record = flush(recorder)
    (row,) = tracker.rows
    health = record.health if detail == "full" else {}
    assert row.scalars == {key: value for key, value in record.scalars.items() if key in keys(detail)} | health
    assert row.record == record
    assert (row.step, row.split, row.time) == (record.step, record.split, record.time)
    assert len(record.scalars) > len(keys("standard"))


def test_an_unknown_detail_is_refused() -> None:
    """A recorder with an unknown detail is refused at once."""
    with pytest.raises(ValueError, match="got detail='everything'"):
        rs.Recorder(detail="everything")


def test_scalars_that_the_trainer_reports_are_not_sent_twice() -> None:
    """A backend that the trainer reports to receives the headline only from the trainer."""
    own, carried = rs.MemoryTracker(), Late()
    carried.ready = True
    recorder = rs.Recorder(report_to=[own, carried], correction=CAP)
    reporter = object()
    recorder.open(reporters={"late": reporter})
    observe(recorder, 0.1, 0.5)
    flush(recorder)
    assert carried.run is not None
    assert own.run is not None
    assert (carried.run.reporter, own.run.reporter) == (reporter, None)
    assert set(own.rows[0].scalars) - set(carried.rows[0].scalars) == keys("headline") & set(own.rows[0].scalars)
    assert not keys("headline") & set(carried.rows[0].scalars)


def test_histograms_keep_their_width_over_a_run() -> None:
    """The bin width of a level is chosen at its first record and kept, so that steps can be compared."""
    tracker = rs.MemoryTracker()
    recorder = rs.Recorder(report_to=tracker, correction=CAP)
    for step, size in enumerate((0.01, 5.0)):
        observe(recorder, size, -size, 0.0)
        flush(recorder, step=step)
    first, second = (row.histograms[f"{OWN}hist/token_log_ratio"] for row in tracker.rows)
    assert (first.edges == second.edges).all()
    assert second.counts.tolist() == [1] + [0] * 31 + [1] + [0] * 31 + [1]
    assert first.counts.sum() == second.counts.sum() == 3
    assert (tracker.rows[1].histograms[f"{OWN}hist/corrected_log_ratio"].edges == first.edges).all()


def test_secrets_never_reach_a_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets by name, in a URL or from the environment are redacted before any tracker receives the config."""
    secret = "correct-horse-battery"
    monkeypatch.setenv("SERVICE_API_KEY", f"{secret}-3")
    config = {
        "hub_token": f"{secret}-1",
        "url": f"https://me:{secret}-2@example.com/x",
        "generation_kwargs": {"api_key": f"{secret}-4", "note": f"see {secret}-3"},
        "learning_rate": 1e-6,
    }
    tracker = rs.MemoryTracker()
    with rs.Recorder(report_to=tracker, correction=CAP, config=config) as recorder:
        observe(recorder, 0.1)
        flush(recorder)
    assert tracker.run is not None
    text = json.dumps(dict(tracker.run.config), allow_nan=False)
    assert secret not in text
    assert tracker.run.config["user"]["learning_rate"] == 1e-6
    assert tracker.run.config["correction"]["upper"] == 1.2
    assert tracker.run.config["correction"]["mode"] == "token_truncate"


def test_the_run_has_folder_name_and_sections(tmp_path: Any) -> None:
    """A tracker receives the output folder, the run's name and the sections of the config."""
    tracker = rs.MemoryTracker()
    recorder = rs.Recorder(report_to=tracker, output_dir=str(tmp_path), run_name="first")
    recorder.open(sections={"trainer": {"class": "GRPOTrainer"}})
    assert recorder.is_open
    assert tracker.run is not None
    assert (tracker.run.output_dir, tracker.run.run_name) == (tmp_path, "first")
    assert tracker.run.config["trainer"] == {"class": "GRPOTrainer"}
    assert tracker.run.config["correction"] == {"enabled": False}


def test_a_context_manager_closes() -> None:
    """Leaving the block closes the trackers, also after an exception, which passes."""
    tracker = rs.MemoryTracker()
    recorder = rs.Recorder(report_to=tracker)

    def fail_inside() -> None:
        with recorder as entered:
            assert entered is recorder
            observe(recorder, 0.1)
            flush(recorder)
            assert recorder.is_open
            assert not tracker.closed
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert tracker.closed
    assert not recorder.is_open


def test_closing_twice_closes_once() -> None:
    """Closing again does nothing, and closing an unopened recorder opens nothing."""
    tracker = rs.MemoryTracker()
    recorder = rs.Recorder(report_to=tracker)
    recorder.close()
    assert tracker.run is None
    observe(recorder, 0.1)
    flush(recorder)
    recorder.close()
    tracker.closed = False
    recorder.close()
    assert not tracker.closed


def test_where_names_each_open_tracker() -> None:
    """``where`` has one line for each open tracker, and none before the first flush."""
    recorder = rs.Recorder(report_to=[rs.MemoryTracker(), Broken("where"), Broken("open")])
    assert recorder.where() == []
    observe(recorder, 0.1)
    flush(recorder)
    assert recorder.where() == ["memory: 1 rows in memory"]
    recorder.close()
    assert recorder.where() == []
    assert recorder.incidents.counts["broken where: OSError"] == 1


# --- failing and slow trackers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["open", "write", "close"])
@pytest.mark.parametrize("background", [False, True], ids=["inline", "background"])
def test_a_broken_tracker_is_isolated(method: str, background: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A failing tracker causes one warning, is counted each time, and harms neither the run nor the other tracker.

    In the background a failed write is tried again, here once more at the end.
    """
    broken, healthy = Broken(method, background=background), rs.MemoryTracker()
    with rs.Recorder(report_to=[broken, healthy]) as recorder:
        for step in range(3):
            observe(recorder, 0.1)
            assert flush(recorder, step=step).step == step
    assert len(healthy.rows) == 3
    assert healthy.closed
    writes = 2 if background else 3
    reason = f"OSError: the backend's {method} is down"
    assert recorder.incidents.counts[f"broken {method}: OSError"] == {"open": 4, "write": writes, "close": 1}[method]
    assert [text for text in warnings(caplog) if reason in text] == [
        f"ratioscope: broken {method} failed: {reason} (reported once; training continues)"
    ]


def test_interrupts_are_not_swallowed() -> None:
    """An interrupt inside a tracker is not swallowed."""

    class Interrupted(rs.MemoryTracker):
        def write(self, row: rs.Row) -> None:
            raise KeyboardInterrupt

    recorder = rs.Recorder(report_to=Interrupted())
    observe(recorder, 0.1)
    with pytest.raises(KeyboardInterrupt):
        recorder.flush(step=1)


def test_a_slow_backend_does_not_slow_training(held: Held) -> None:
    """A flush returns while a background tracker is still writing, and closing delivers every row in order."""
    recorder = rs.Recorder(report_to=held)
    for step in range(5):
        observe(recorder, 0.1)
        flush(recorder, step=step)
    assert held.writing.wait(30)
    assert held.rows == []
    held.go.set()
    recorder.close()
    assert [row.step for row in held.rows] == [0, 1, 2, 3, 4]
    assert held.closed


def row(step: int) -> rs.Row:
    """Makes a row that has only a step."""
    record = rs.Record(step=step, split="train", time=0.0, scalars={}, summary=HostSummary.empty())
    return rs.Row(step, "train", 0.0, {}, {}, record)


def test_closing_a_hanging_backend_is_bounded(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    """Closing waits for a hanging backend no longer than the timeout, and reports how many rows were left."""
    incidents = Incidents()
    background = Background(held, incidents, timeout=0.2)
    assert background.open(rs.RunContext())
    for step in range(3):
        background.write(row(step))
    assert held.writing.wait(30)
    start = time.monotonic()
    background.close()
    assert 0.1 < time.monotonic() - start < 2.5
    assert incidents.counts == {"held did not finish": 1}
    assert "3 rows were left" in warnings(caplog)[0]


def test_a_full_queue_drops_its_oldest_rows(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    """A slow backend loses its oldest rows, which is counted and reported once, and gets the newest."""
    incidents = Incidents()
    background = Background(held, incidents, capacity=2)
    background.open(rs.RunContext())
    background.write(row(0))
    assert held.writing.wait(30)
    for step in (1, 2, 3, 4):
        background.write(row(step))
    assert incidents.counts == {"held queue full": 3}
    assert len(warnings(caplog)) == 1
    held.go.set()
    background.close()
    assert [row.step for row in held.rows] == [0, 3, 4]


def test_a_background_tracker_that_never_opened_is_not_closed() -> None:
    """Closing an unopened background tracker returns at once."""
    tracker = Late()
    background = Background(tracker, Incidents())
    assert not background.open(rs.RunContext())
    background.close()
    assert not tracker.closed


def test_rows_wait_for_the_run() -> None:
    """Rows written before the backend's run exists are kept and sent in order once it does."""
    tracker, prompt = Late(), rs.MemoryTracker()
    recorder = rs.Recorder(report_to=[tracker, prompt])
    for step in (1, 2):
        observe(recorder, 0.1)
        flush(recorder, step=step)
    assert tracker.rows == []
    tracker.ready = True
    observe(recorder, 0.1)
    flush(recorder, step=3)
    recorder.close()
    assert [row.step for row in tracker.rows] == [row.step for row in prompt.rows] == [1, 2, 3]
    assert tracker.closed


def test_rows_that_wait_are_sent_at_the_end() -> None:
    """A run that appears only at the end still gets every row before it is closed."""
    tracker = Late()
    recorder = rs.Recorder(report_to=tracker)
    observe(recorder, 0.1)
    flush(recorder)
    tracker.ready = True
    recorder.close()
    assert len(tracker.rows) == 1
    assert tracker.closed


def test_rows_that_were_never_sent_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Rows for a run that never appeared are bounded in number, and their loss is counted and reported."""
    tracker = Late()
    with rs.Recorder(report_to=tracker) as recorder:
        for step in range(66):
            observe(recorder, 0.1)
            flush(recorder, step=step)
    assert recorder.incidents.counts == {"late queue full": 2, "late never opened": 1}
    assert "64 rows were not sent" in warnings(caplog)[-1]
    assert not tracker.closed


def test_a_failing_merge_is_an_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    """If merging the ranks fails, the flush returns None and counts the failure, and the next window works."""
    recorder = rs.Recorder()
    observe(recorder, 0.1)
    with monkeypatch.context() as patch:
        patch.setattr("ratioscope.recording.windows.all_merge", lambda *arguments, **options: 1 / 0)
        assert recorder.flush(step=1) is None
    assert recorder.incidents.counts == {"merging ranks: ZeroDivisionError": 1}
    observe(recorder, 0.2)
    assert flush(recorder).scalars[f"{OWN}counts/tokens"] == 1


# --- report_to ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("report_to", ["none", None, [], (), ["none"], [None]])
def test_no_tracker_is_requested(report_to: Any) -> None:
    """With `none`, None or an empty list no tracker receives the record, which is still made."""
    recorder = rs.Recorder(report_to=report_to)
    assert recorder.tracker_names == []
    observe(recorder, 0.1)
    assert flush(recorder).scalars[f"{OWN}counts/tokens"] == 1


@pytest.mark.parametrize(
    ("installed", "expected"),
    [({"wandb", "mlflow"}, ["mlflow", "wandb"]), ({"tensorboard"}, ["tensorboard"]), (set(), [])],
)
def test_all_is_every_installed_tracker(
    installed: set[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`all` reports to each tracker whose package is installed, and to no other."""
    monkeypatch.setattr(registry, "_installed", lambda tracker: tracker.name in installed)
    assert rs.Recorder(report_to="all").tracker_names == expected


def test_names_and_trackers_may_be_mixed() -> None:
    """A list may hold names and trackers; a repeated name counts once."""
    memory = rs.MemoryTracker()
    names = rs.Recorder(report_to=["tensorboard", memory, "tensorboard", memory]).tracker_names
    assert names == ["tensorboard", "memory"]
    assert rs.Recorder(report_to="tensorboard").tracker_names == ["tensorboard"]
    assert rs.Recorder(report_to=("tensorboard",)).tracker_names == ["tensorboard"]
    assert rs.Recorder(report_to=["tensorboard", "all"]).tracker_names.count("tensorboard") == 1


def test_a_tracker_may_be_a_plain_dataclass() -> None:
    """A tracker may be unhashable, like a dataclass."""

    @dataclass
    class Plain(rs.MemoryTracker):
        wanted: int = 0

        def __post_init__(self) -> None:
            super().__init__()

    tracker = Plain()
    with rs.Recorder(report_to=tracker) as recorder:
        observe(recorder, 0.1)
        flush(recorder)
    assert len(tracker.rows) == 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("wanbd", "Did you mean 'wandb'?"),
        ("Wandb", "Did you mean 'wandb'?"),
        ("mlfow", "Did you mean 'mlflow'?"),
        ("wandb,mlflow", r'Several names go in a list, as in \["wandb", "mlflow"\]'),
        ("", "expected one of 'aim', 'clearml', .*'tensorboard', 'trackio', 'wandb', 'all' or 'none'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    """An unknown name raises at once, and the error suggests the nearest one."""
    for report_to in (name, [name]):
        with pytest.raises(ValueError, match=rf"got report_to='{name}'.*{hint}"):
            rs.Recorder(report_to=report_to)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_a_missing_package_is_refused_with_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named tracker without its package raises an error with the command that installs it."""
    monkeypatch.setattr(registry, "find_spec", lambda package: None)
    with pytest.raises(ImportError, match=rf'{name}.*not installed; run: pip install "ratioscope\[{name}\]"'):
        rs.Recorder(report_to=["none", name])
    assert rs.Recorder(report_to="all").tracker_names == []


@pytest.mark.parametrize(
    "wrong", [3, object(), rs.MemoryTracker, {"wandb": True}], ids=["int", "object", "class", "dict"]
)
def test_an_object_that_is_no_tracker_is_refused(wrong: Any) -> None:
    """An object that is neither a name nor a tracker raises an error that lists a tracker's members."""
    with pytest.raises(TypeError, match="expected a name or an object with name, background, open, write, close"):
        rs.Recorder(report_to=[wrong])


# --- incidents ------------------------------------------------------------------------------------------------------


def test_incidents_are_reported_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The first incident of each kind is logged as a warning, and all are counted."""
    incidents = Incidents()
    for number in range(3):
        incidents.report("slow", f"it is slow, {number}")
    incidents.report("gone", "it is gone")
    assert incidents.counts == {"slow": 3, "gone": 1}
    assert [text.removesuffix(" (reported once; training continues)") for text in warnings(caplog)] == [
        "ratioscope: it is slow, 0",
        "ratioscope: it is gone",
    ]


def test_a_guard_turns_exceptions_into_incidents(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a guarded block is counted by action and type, and is not raised."""
    incidents = Incidents()
    for error in (ValueError("one"), ValueError("two"), KeyError("three")):
        with incidents.guard("drawing"):
            raise error
    with incidents.guard("drawing"):
        pass
    assert incidents.counts == {"drawing: ValueError": 2, "drawing: KeyError": 1}
    assert len(warnings(caplog)) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_guard_lets_interrupts_pass(error: type[BaseException]) -> None:
    """An interrupt or an exit in a guarded block is not an incident."""
    incidents = Incidents()
    with pytest.raises(error), incidents.guard("drawing"):
        raise error
    assert not incidents.counts


def test_incidents_of_many_threads_are_all_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Incidents of several threads at once are all counted, and reported once."""
    incidents = Incidents()
    barrier = threading.Barrier(8)

    def report() -> None:
        barrier.wait()
        for _ in range(200):
            incidents.report("busy", "busy")

    threads = [threading.Thread(target=report) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert incidents.counts == {"busy": 1600}
    assert len(warnings(caplog)) == 1
