"""What W&B receives, read back from its own log file."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from ratioscope.trackers.base import RunContext, Tracker
from ratioscope_integrations.trackers import wandb as module
from ratioscope_integrations.trackers.wandb import WandbTracker
from tests.readback import read_wandb
from tests.tracker_rows import CONFIG, FRACTION, TOKENS, make_row, normal_bins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPORTER = object()


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
        "import sys; from ratioscope_integrations.trackers.wandb import WandbTracker; WandbTracker();"
        "sys.exit('wandb' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_is_a_tracker() -> None:
    """The class satisfies the protocol and can say where it writes before it has a run."""
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
    """A window that the trainer logs no row after is still in the run once the trainer finishes it."""
    import wandb

    live = wandb.init(dir=wandb_dir, project="trainer")
    tracker = WandbTracker()
    tracker.open(RunContext(reporter=REPORTER))
    tracker.write(make_row(3))
    tracker.close()
    live.finish()
    assert [row[FRACTION] for row in read_wandb(wandb_dir).history] == [0.03]


def test_waits_for_the_run_of_the_trainer(wandb_dir: Path) -> None:
    """While the trainer's callback has no run yet, none is opened and the caller is told to ask again."""
    import wandb

    assert not WandbTracker().open(RunContext(reporter=REPORTER))
    assert wandb.run is None
    assert not list(wandb_dir.iterdir())


@pytest.mark.trackers
def test_own_run_has_its_step_axis_and_is_finished(wandb_dir: Path) -> None:
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
    """A live run without a trainer's callback gets a row a window, and is neither reconfigured nor finished."""
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


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_finish_is_bounded(seconds: float) -> None:
    """A run of our own whose upload does not end holds ``close`` for a bounded time, and is not taken as delivered."""

    class Hanging:
        def finish(self) -> None:
            time.sleep(seconds)
            raise TimeoutError

    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.1 s after its end"):
        module._finish(Hanging(), 0.1)  # type: ignore[arg-type]
    assert time.monotonic() - start < 2.0


def test_failure_to_finish_is_raised() -> None:
    """What goes wrong while finishing is raised to the caller, who reports it."""

    class Broken:
        def finish(self) -> None:
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        module._finish(Broken(), 1.0)  # type: ignore[arg-type]


def test_the_runs_id_is_known_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of our own has its id from the start, so that a second try or process goes on with the same run."""
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
    """``WANDB_RUN_ID`` names the run, and how many rows it has is not known yet."""
    monkeypatch.setenv("WANDB_RUN_ID", "theirs")
    monkeypatch.setenv("WANDB_PROJECT", "there")
    tracker = WandbTracker()
    assert tracker.open(RunContext(output_dir=tmp_path))
    assert tracker.identity == {"run_id": "theirs", "project": "there"}
