"""Rows that W&B receives, read back from its log file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.metrics import catalogue
from ratioscope.runs.history import History
from ratioscope.state.histogram import Bins
from ratioscope.trackers.base import RunContext, Tracker
from ratioscope_integrations.trackers.wandb import runs
from ratioscope_integrations.trackers.wandb.summaries import SUMMARIES
from ratioscope_integrations.trackers.wandb.tables import COLUMNS, FinalSummary, table_rows
from ratioscope_integrations.trackers.wandb.tracker import WandbTracker
from tests.support.faults import WandbServer, wandb_online
from tests.support.kill_writers import make_record
from tests.support.readback import read_wandb
from tests.support.tracker_rows import CONFIG, FRACTION, TOKENS, make_row, normal_bins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPORTER = object()
MODIFIED = "sampling/frac_modified_importance_sampling_ratio"


@pytest.fixture(scope="module")
def _offline() -> Iterator[None]:
    """W&B in offline mode; it reads the environment once, at its first use or after a teardown."""
    import wandb

    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_NAME", "WANDB_DIR"):
            patch.delenv(name, raising=False)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        wandb.teardown()
        yield
        wandb.teardown()


@pytest.fixture
def wandb_dir(_offline: None, tmp_path: Path) -> Iterator[Path]:
    """An empty folder for offline runs; no run is live before or after."""
    import wandb

    assert wandb.run is None
    yield tmp_path
    if wandb.run is not None:
        wandb.run.finish()


def test_import_without_wandb() -> None:
    """The module imports, and a tracker is made, without loading wandb."""
    code = (
        "import sys; from ratioscope_integrations.trackers.wandb.tracker import WandbTracker; WandbTracker();"
        "sys.exit('wandb' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_is_a_tracker() -> None:
    """The class satisfies the protocol and has a location before it has a run."""
    tracker = WandbTracker()
    assert isinstance(tracker, Tracker)
    assert "no run" in tracker.where()
    tracker.write(make_row(1))
    tracker.close()


@pytest.mark.trackers
def test_merges_into_the_row_of_the_trainer(wandb_dir: Path) -> None:
    """Histogram and scalars stand in the row that the trainer's callback logs next, and no other row appears (C51)."""
    import wandb

    live = wandb.init(dir=wandb_dir, project="trainer")
    tracker = WandbTracker()
    assert tracker.open(RunContext(config=CONFIG, reporter=REPORTER))
    for step in (2, 4):
        tracker.write(make_row(step))
        live.log({"train/loss": 1.0 / step, "train/global_step": step})
    tracker.close()
    assert wandb.run is live
    live.finish()

    run = read_wandb(wandb_dir)
    assert [row["train/global_step"] for row in run.history] == [2, 4]
    assert [row[FRACTION] for row in run.history] == [0.02, 0.04]
    assert [row["train/loss"] for row in run.history] == [0.5, 0.25]
    assert run.project == "trainer"


@pytest.mark.trackers
def test_histogram_and_config_arrive_whole(wandb_dir: Path) -> None:
    """Counts sum to the number of values, edges are exact, and the config is nested under ``ratioscope``."""
    import wandb

    live = wandb.init(dir=wandb_dir, project="trainer", config={"ratioscope": {"schema": 0}})
    tracker = WandbTracker()
    tracker.open(RunContext(config=CONFIG, reporter=REPORTER))
    bins = normal_bins(7, n=1234)
    tracker.write(make_row(1, histograms={TOKENS: bins}))
    live.log({"train/global_step": 1})
    live.finish()

    run = read_wandb(wandb_dir)
    row = run.history[0]
    assert row[f"{TOKENS}._type"] == "histogram"
    assert row[f"{TOKENS}.values"] == bins.counts.tolist()
    assert sum(row[f"{TOKENS}.values"]) == 1234
    assert row[f"{TOKENS}.bins"] == bins.edges.tolist()
    assert run.config["ratioscope"] == CONFIG


@pytest.mark.trackers
def test_pending_row_is_kept_at_the_end(wandb_dir: Path) -> None:
    """A window without a later row of the trainer is in the run once the trainer finishes it."""
    import wandb

    live = wandb.init(dir=wandb_dir, project="trainer")
    tracker = WandbTracker()
    tracker.open(RunContext(reporter=REPORTER))
    tracker.write(make_row(3))
    tracker.close()
    live.finish()
    assert [row[FRACTION] for row in read_wandb(wandb_dir).history] == [0.03]


def test_waits_for_the_run_of_the_trainer(wandb_dir: Path) -> None:
    """While the trainer's callback has no run yet, none is opened and the caller must retry."""
    import wandb

    assert not WandbTracker().open(RunContext(reporter=REPORTER))
    assert wandb.run is None
    assert not list(wandb_dir.iterdir())


@pytest.mark.trackers
def test_ratioscopes_run_has_its_step_axis_and_is_finished(wandb_dir: Path) -> None:
    """Without a trainer and a live run, one is opened with the step as its axis, and finished at the end."""
    import wandb

    tracker = WandbTracker()
    out = wandb_dir / "out"
    assert tracker.open(RunContext(config=CONFIG, output_dir=out, run_name="mine"))
    tracker.write(make_row(10))
    tracker.write(make_row(20))
    place = tracker.where()
    tracker.close()
    assert wandb.run is None
    assert "offline" in place
    assert str(out) in place

    run = read_wandb(out)
    assert run.project == "ratioscope"
    assert run.exit_code == 0
    assert run.config["ratioscope"] == CONFIG
    assert [row["train/global_step"] for row in run.history] == [10, 20]
    assert [row[FRACTION] for row in run.history] == [0.1, 0.2]
    assert run.step_metrics["*"] == "train/global_step"


@pytest.mark.trackers
def test_live_run_of_the_user_gets_whole_rows_and_stays_open(wandb_dir: Path) -> None:
    """A live run without a trainer's callback gets one row per window, and is neither reconfigured nor finished."""
    import wandb

    live = wandb.init(dir=wandb_dir, project="mine")
    tracker = WandbTracker()
    tracker.open(RunContext())
    tracker.write(make_row(1))
    tracker.write(make_row(1, split="eval"))
    tracker.close()
    tracker.write(make_row(2))
    live.log({"later": 1})
    live.finish()

    run = read_wandb(wandb_dir)
    assert [row.get("train/global_step") for row in run.history] == [1, 1, None]
    assert f"eval/{FRACTION}" in run.history[1]
    assert "*" not in run.step_metrics


@pytest.mark.trackers
def test_ratioscopes_run_has_summary_extremes(wandb_dir: Path) -> None:
    """W&B keeps the smallest or largest value of chosen keys on the run's axis, and defines no other key."""
    tracker = WandbTracker()
    tracker.open(RunContext(output_dir=wandb_dir))
    for step, (ess, kl) in enumerate([(0.9, 0.1), (0.4, 0.7), (0.8, 0.2)], start=1):
        values = {"ratioscope/ess/corrected": ess, "ratioscope/kl/k3": kl, "ratioscope/counts/tokens": 100.0}
        tracker.write(make_row(step, scalars=values))
    tracker.close()

    run = read_wandb(wandb_dir)
    assert run.kept["ratioscope/ess/corrected"] == {"min", "last"}
    assert run.step_metrics["ratioscope/ess/corrected"] == "train/global_step"
    assert run.summary["ratioscope/ess/corrected"] == {"min": 0.4, "last": 0.8}
    assert run.summary["ratioscope/kl/k3"] == {"max": 0.7, "last": 0.2}
    assert run.summary["ratioscope/counts/tokens"] == 100.0
    assert set(run.kept) == {"*", "train/global_step", "ratioscope/ess/corrected", "ratioscope/kl/k3"}


@pytest.mark.trackers
def test_the_trainers_metrics_are_not_redefined(wandb_dir: Path) -> None:
    """In the trainer's run only our keys are defined, by their exact names and on the trainer's axis."""
    import wandb

    live = wandb.init(dir=wandb_dir, project="trainer")
    live.define_metric("train/global_step")
    live.define_metric("*", step_metric="train/global_step", step_sync=True)
    tracker = WandbTracker()
    tracker.open(RunContext(reporter=REPORTER))
    for step, fraction in [(1, 0.3), (2, 0.1)]:
        tracker.write(make_row(step))
        logs = {f"train/{MODIFIED}": fraction, "train/kl": 1.0 / step}
        live.log({**logs, "train/global_step": step})
    tracker.close()
    live.finish()

    run = read_wandb(wandb_dir)
    assert run.summary[f"train/{MODIFIED}"] == {"max": 0.3, "mean": 0.2, "last": 0.1}
    assert run.summary["train/kl"] == 0.5
    assert run.summary[FRACTION] == {"max": 0.02, "mean": 0.015, "last": 0.02}
    ours = set(run.kept) - {"*", "train/global_step"}
    assert {name.removeprefix("train/").split("/")[0] for name in ours} == {"ratioscope", "sampling"}
    assert {run.step_metrics[name] for name in ours} == {"train/global_step"}
    assert len(run.history) == 2


@pytest.mark.trackers
def test_a_users_run_keeps_its_axis(wandb_dir: Path) -> None:
    """In a live run without a trainer's callback no key gets another axis."""
    import wandb

    live = wandb.init(dir=wandb_dir, project="mine")
    tracker = WandbTracker()
    tracker.open(RunContext())
    tracker.write(make_row(1))
    tracker.close()
    live.finish()
    run = read_wandb(wandb_dir)
    assert run.kept[FRACTION] == {"max", "mean", "last"}
    assert set(run.step_metrics.values()) == {""}


def table(folder: Path) -> list[dict[str, Any]]:
    """The rows of the histogram table that W&B has on disk."""
    (file,) = folder.rglob("histogram_table*.table.json")
    content = json.loads(file.read_text())
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


@pytest.mark.trackers
def test_the_table_is_in_the_summary_and_no_row(wandb_dir: Path) -> None:
    """At the end the trainer's run has all histograms as a table in its summary, and its history has no more rows."""
    import wandb

    live = wandb.init(dir=wandb_dir, project="trainer")
    tracker = WandbTracker()
    tracker.open(RunContext(reporter=REPORTER))
    for step in (2, 4):
        tracker.write(make_row(step))
        live.log({"train/loss": 1.0, "train/global_step": step})
    tracker.close()
    live.finish()

    run = read_wandb(wandb_dir)
    assert len(run.history) == 2
    entry = run.summary["ratioscope/histogram_table"]
    rows = table(wandb_dir)
    assert (entry["_type"], entry["nrows"]) == ("table-file", len(rows))
    for step in (2, 4):
        bins = normal_bins(step)
        mine = [row for row in rows if (row["step"], row["level"]) == (step, "token")]
        assert [row["count"] for row in mine] == bins.counts[bins.counts > 0].tolist()
        assert [row["low"] for row in mine] == bins.edges[:-1][bins.counts > 0].tolist()
        assert sum(row["share"] for row in mine) == pytest.approx(1.0)
    assert {row["split"] for row in rows} == {"train"}


@pytest.mark.trackers
def test_a_continued_run_has_the_whole_table(wandb_dir: Path) -> None:
    """A process that continues ratioscope's run logs the table of all steps, the first process's included."""
    out = wandb_dir / "out"
    for steps in ((1, 2), (3,)):
        with rs.Recorder(report_to="wandb", output_dir=out) as recorder:
            for step in steps:
                rollout = torch.full((2, 8), -1.0)
                recorder.observe(rollout + 0.01 * step, rollout, torch.ones(2, 8))
                recorder.flush(step=step)
    newest = max((out / "wandb").glob("offline-run-*"), key=lambda folder: folder.stat().st_mtime_ns)
    assert {row["step"] for row in table(newest)} == {1, 2, 3}


def test_the_table_is_bounded() -> None:
    """The table of a long run keeps W&B's limit, holds every value, and pools neighbouring windows."""
    history = History()
    wide = np.ones(65, dtype=np.int64)
    edges = np.arange(66, dtype=np.float64)
    for key in (TOKENS, f"eval/{TOKENS}", "ratioscope/hist/corrected_log_ratio"):
        for step in range(1, 3001):
            history.add(key, step, Bins(wide, edges))
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table_rows(history)]
    assert len(rows) <= 10_000
    assert {(row["split"], row["level"]) for row in rows} == {
        ("train", "token"),
        ("eval", "token"),
        ("train", "corrected"),
    }
    mine = [row for row in rows if (row["split"], row["level"], row["low"]) == ("eval", "token", 3.0)]
    assert sum(row["count"] for row in mine) == 3000
    assert (mine[0]["first_step"], mine[-1]["step"]) == (1, 3000)
    assert all(after["first_step"] == before["step"] + 1 for before, after in pairwise(mine))
    assert max(row["count"] for row in mine) <= 3 * min(row["count"] for row in mine)


def test_a_table_that_hangs_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """An unreachable server delays the end of a run by the table's share at most, and one line reports it."""

    class Hanging:
        @property
        def summary(self) -> dict[str, Any]:
            time.sleep(2.0)
            return {}

    summary = FinalSummary()
    summary.add(make_row(1))
    start = time.monotonic()
    summary.send(Hanging(), 0.1)  # type: ignore[arg-type]
    assert time.monotonic() - start < 1.5
    assert [record.message for record in caplog.records] == [
        "ratioscope: W&B: ratioscope/histogram_table was not ready 0.1 s after the end and is left out"
    ]


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_finish_is_bounded(seconds: float) -> None:
    """An upload that does not end delays ``close`` for a bounded time, and does not count as delivered."""

    class Hanging:
        def finish(self) -> None:
            time.sleep(seconds)
            raise TimeoutError

    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.1 s after its end"):
        runs.finish(Hanging(), 0.1)  # type: ignore[arg-type]
    assert time.monotonic() - start < 2.0


def test_failure_to_finish_is_raised() -> None:
    """An error while finishing is raised to the caller, who reports it."""

    class Broken:
        def finish(self) -> None:
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        runs.finish(Broken(), 1.0)  # type: ignore[arg-type]


def test_the_runs_id_is_known_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of ratioscope has its id from the start, so that a retry or process continues the same run."""
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    tracker = WandbTracker()
    assert tracker.open(RunContext(output_dir=tmp_path))
    assert tracker.identity is not None
    assert tracker.identity["rows_before"] == "0"
    again = WandbTracker()
    again.open(RunContext(output_dir=tmp_path, identity=tracker.identity))
    assert again.identity == tracker.identity
    assert not list(tmp_path.iterdir())


def test_a_run_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``WANDB_RUN_ID`` selects the run, whose number of rows is not known yet."""
    monkeypatch.setenv("WANDB_RUN_ID", "theirs")
    monkeypatch.setenv("WANDB_PROJECT", "there")
    tracker = WandbTracker()
    assert tracker.open(RunContext(output_dir=tmp_path))
    assert tracker.identity == {"run_id": "theirs", "project": "there"}


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A stand-in for W&B's server, used by the real client."""
    with wandb_online(monkeypatch) as server:
        yield server


@pytest.mark.trackers
def test_resume_follows_the_environment(online: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``WANDB_RESUME`` applies to the run of ``WANDB_RUN_ID``, and not to one that ratioscope continues."""

    def use(resume: str, run_id: str, identity: Any = None) -> WandbTracker:
        monkeypatch.setenv("WANDB_RESUME", resume)
        monkeypatch.setenv("WANDB_RUN_ID", run_id)
        tracker = WandbTracker()
        tracker.open(RunContext(output_dir=tmp_path, identity=identity))
        tracker.write(make_row(len(online.runs[run_id].lines) + 1 if run_id in online.runs else 1))
        tracker.close()
        return tracker

    with pytest.raises(Exception, match="does not exist"):
        use("must", "absent")
    assert "absent" not in online.runs
    first = use("never", "theirs")
    use("never", "theirs", first.identity)
    for resume in ("must", "allow", "auto", "nonsense"):
        use(resume, "theirs")
    with pytest.raises(Exception, match="exists"):
        use("never", "theirs")
    assert [row["train/global_step"] for row in online.runs["theirs"].history] == [1, 2, 3, 4, 5, 6]


@pytest.mark.trackers
def test_online_a_run_has_one_row_per_window_and_a_table(online: WandbServer, tmp_path: Path) -> None:
    """The server receives one history row per window, and table, extremes and events with the summary."""
    with rs.Recorder(report_to="wandb", output_dir=tmp_path, close_timeout=60.0) as recorder:
        for step in (1, 2):
            rollout = torch.full((2, 8), -1.0)
            recorder.observe(rollout + 0.01 * step, rollout, torch.ones(2, 8))
            with pytest.raises(ValueError, match="shape"):
                recorder.observe(rollout, rollout[:1], torch.ones(2, 8))
            recorder.flush(step=step)
    (run,) = online.runs.values()
    assert [row["train/global_step"] for row in run.history] == [1, 2]
    assert run.summary["ratioscope/histogram_table"]["_type"] == "table-file"
    assert run.summary["ratioscope/kl/k3"]["max"] >= run.summary["ratioscope/kl/k3"]["last"] > 0
    assert [step for step, _ in run.summary["ratioscope/events"]] == [1, 2]
    assert run.exit_code == 0


@pytest.fixture
def _disabled(_offline: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """W&B in disabled mode."""
    import wandb

    monkeypatch.setenv("WANDB_MODE", "disabled")
    wandb.teardown()
    yield
    if wandb.run is not None:
        wandb.run.finish()
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()


@pytest.mark.usefixtures("_disabled")
@pytest.mark.parametrize("live", [False, True])
def test_a_disabled_run_takes_no_row(tmp_path: Path, *, live: bool) -> None:
    """Rows that a disabled run was given stay missing, whoever opened it, and are delivered later."""
    import wandb

    if live:
        wandb.init(mode="disabled")
    with rs.Recorder(output_dir=tmp_path, report_to="wandb") as recorder:
        recorder.write(make_record(1))
    assert any(kind.startswith("wandb write") for kind in recorder.incidents.counts)
    if live:
        assert wandb.run is not None
        wandb.run.finish()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        wandb.teardown()
        assert rs.sync(tmp_path, to=["wandb"]) == {"wandb": 1}
    assert len(read_wandb(tmp_path).history) == 1
    wandb.teardown()


def test_only_existing_metrics_have_a_summary() -> None:
    """Every key whose extremes W&B keeps is in the catalogue."""
    assert set(SUMMARIES) <= catalogue.keys("full")
