"""Rows that trackio receives, read back from its database."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ratioscope.journal.reader import JournalReader
from ratioscope.metrics.catalogue import keys
from ratioscope.trackers.base import RunContext, Tracker
from ratioscope_integrations.trackers.trackio.tracker import TrackioTracker
from tests.support.local_server import environment, free_port, served, wait_for
from tests.support.readback import TrackioRun, read_trackio
from tests.support.tracker_rows import CONFIG, FRACTION, SEQUENCES, TOKENS, make_row, normal_bins

ROOT = Path(__file__).resolve().parents[3]
MEAN = "sampling/raw_importance_sampling_ratio/mean"
STEP = "train/global_step"


def call(*command: str | Path, folder: Path, code: int = 0, **more: str) -> str:
    """Runs Python with trackio's data in the folder, and returns its output."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        env=environment(folder) | more,
        cwd=folder,
        timeout=200,
    )
    assert done.returncode == code, done.stderr[-3000:]
    if code == 0:
        assert "reported once" not in done.stderr, done.stderr[-3000:]
    return done.stdout


def play(scenario: str, folder: Path, *, code: int = 0, **more: str) -> str:
    """One of the tracker's scenarios."""
    return call(ROOT / "tests" / "support" / "trackio_scenarios.py", scenario, folder, folder=folder, code=code, **more)


def train(scenario: str, folder: Path) -> list[float]:
    """One of the trainer's scenarios; the mean ratios of its log."""
    call(ROOT / "tests" / "support" / "tracker_scenarios.py", scenario, folder, folder=folder)
    logged: list[float] = json.loads((folder / "logged.json").read_text())
    return logged


def only_run(folder: Path, project: str = "ratioscope") -> TrackioRun:
    """The project's only run."""
    (run,) = read_trackio(folder / "trackio", project).values()
    return run


def histogram(counts: Any, edges: Any) -> dict[str, Any]:
    """A histogram as trackio stores it."""
    return {"_type": "trackio.histogram", "bins": list(edges), "values": list(counts)}


def test_import_without_trackio() -> None:
    """The module imports without loading trackio, and a tracker reports that it attaches to nothing."""
    code = (
        "import sys; from ratioscope_integrations.trackers.trackio.tracker import TrackioTracker as T; t = T();"
        "assert not t.attaches(); assert t.background; sys.exit('trackio' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_is_a_tracker() -> None:
    """The class satisfies the protocol and has a location before it has a run."""
    tracker = TrackioTracker()
    assert isinstance(tracker, Tracker)
    assert "no run" in tracker.where()
    tracker.write(make_row(1))
    tracker.close()


def test_waits_for_the_run_of_the_trainer() -> None:
    """While the trainer's callback has no run yet, none is opened and the caller must retry."""
    tracker = TrackioTracker()
    assert not tracker.open(RunContext(reporter=object()))
    assert tracker.identity is None


def test_the_runs_id_is_known_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of ratioscope has its id and project from the start, so that a retry continues the same run."""
    monkeypatch.setenv("TRACKIO_PROJECT", "theirs")
    tracker, second = TrackioTracker(), TrackioTracker()
    tracker.open(RunContext(run_name="mine"))
    assert tracker.identity is not None
    assert {"project": "theirs", "name": "mine", "rows_before": "0"}.items() <= tracker.identity.items()
    second.open(RunContext(identity=tracker.identity))
    assert second.identity == tracker.identity
    assert not tracker.received


@pytest.mark.trackers
def test_rows_histograms_and_config_arrive_whole(tmp_path: Path) -> None:
    """Values are bit-equal, counts and edges exact, the config nested; non-finite values are left out."""
    play("rows", tmp_path)
    run = only_run(tmp_path)
    assert run.config["ratioscope"] == CONFIG
    assert run.name == "rows"
    first, evaluated, third = run.rows
    row = make_row(5)
    assert {key: first[key] for key in row.scalars} == row.scalars
    assert (first["step"], first[STEP]) == (5, 5)
    for key, bins in ((TOKENS, normal_bins(5)), (SEQUENCES, normal_bins(6, n=8, spread=0.3))):
        assert first[key] == histogram(bins.counts.tolist(), bins.edges.tolist())
    assert f"eval/{FRACTION}" in evaluated
    assert f"eval/{TOKENS}" in evaluated
    assert TOKENS not in evaluated
    assert {key: value for key, value in third.items() if not key.startswith("ratioscope/hist/")} == {
        "fine": 0.5,
        STEP: 6,
        "step": 6,
    }


@pytest.mark.trackers
def test_ratioscopes_run_is_opened_ended_and_continued(tmp_path: Path) -> None:
    """One run under ``ratioscope`` is continued by a later process of the same directory; no monitor starts."""
    assert "trackio show --project ratioscope" in play("own", tmp_path)
    before = only_run(tmp_path)
    assert [row["step"] for row in before.rows] == [10, 20]
    play("again", tmp_path)
    run = only_run(tmp_path)
    assert [row["step"] for row in run.rows] == [10, 20, 20]
    assert run.name == "mine"
    assert run.rows[:2] == before.rows


@pytest.mark.trackers
def test_a_live_run_of_the_users_is_used_and_not_ended(tmp_path: Path) -> None:
    """The user's run gets ratioscope's rows and config, keeps its own step counter, and stays open."""
    play("user", tmp_path)
    run = only_run(tmp_path, "user")
    seen = [next((key for key in ("before", "loss", "after") if key in row), row.get(STEP)) for row in run.rows]
    assert seen == ["before", 10, "loss", 20, "loss", "after"]
    assert [row["step"] for row in run.rows] == [0, 10, 1, 20, 2, 3]
    assert run.config["seed"] == 3
    assert run.config["ratioscope"]["user"] == {"engine": "fake"}
    assert not (tmp_path / "trackio" / "ratioscope.db").exists()


@pytest.mark.trackers
def test_two_runs_of_one_name_stay_two(tmp_path: Path) -> None:
    """A second run of ratioscope with an existing name is another run, not a continuation of the first."""
    play("two", tmp_path)
    runs = list(read_trackio(tmp_path / "trackio").values())
    assert [(run.name, [row["step"] for row in run.rows]) for run in runs] == [("same", [1]), ("same", [2])]


@pytest.mark.trackers
def test_rows_that_trackio_drops_are_not_delivered(tmp_path: Path) -> None:
    """If the database cannot be written, trackio only warns; closing the run then fails with both numbers."""
    done = play("full", tmp_path, code=1)
    assert "Run finished" in done


# Exactly once


@pytest.mark.trackers
@pytest.mark.slow
def test_a_process_that_died_is_continued_exactly_once(tmp_path: Path) -> None:
    """After a kill with stored and queued rows, ``sync`` delivers each missing row once, in one run."""
    play("broken", tmp_path, code=-9)
    stored = len(only_run(tmp_path).rows)
    assert 0 < stored < 30
    assert f"trackio: {30 - stored} rows delivered\n" in call("-m", "ratioscope", "sync", "out", folder=tmp_path)
    assert [row["step"] for row in only_run(tmp_path).rows] == list(range(1, 31))
    assert call("-m", "ratioscope", "sync", "out", folder=tmp_path) == "Nothing is missing.\n"


@pytest.mark.trackers
@pytest.mark.slow
def test_sync_is_exactly_once(tmp_path: Path) -> None:
    """A run without trackers is in trackio once, with the journal's values, also after a kill and two repeats."""
    play("record", tmp_path)
    play("killed", tmp_path, code=-9)
    stored = len(only_run(tmp_path).rows)
    assert 10 <= stored <= 20
    command = ("-m", "ratioscope", "sync", "out", "--to", "trackio")
    assert f"trackio: {30 - stored} rows delivered\n" in call(*command, folder=tmp_path)
    run = only_run(tmp_path)
    for _ in range(2):
        assert "Nothing is missing.\n" in call(*command, folder=tmp_path)
    assert only_run(tmp_path) == run
    with JournalReader(tmp_path / "out") as reader:
        records = list(reader.records())
    assert [row["step"] for row in run.rows] == [record.step for record in records] == list(range(1, 31))
    for row, record in zip(run.rows, records, strict=True):
        expected = {key: value for key, value in record.scalars.items() if key in keys("standard")}
        assert all(math.isfinite(value) for value in expected.values())
        assert {key: row[key] for key in expected} == expected
        assert sum(row[TOKENS]["values"]) == 64


@pytest.mark.trackers
@pytest.mark.slow
def test_a_server_that_comes_back_has_every_row_once(tmp_path: Path) -> None:
    """If trackio's server does not answer, nothing counts as delivered, and a later ``sync`` sends each row once."""
    port = free_port()
    away = {"TRACKIO_SERVER_URL": f"http://127.0.0.1:{port}", "TRACKIO_WRITE_TOKEN": "any"}
    play("record", tmp_path)
    command = ("-m", "ratioscope", "sync", "out", "--to", "trackio")
    call(*command, folder=tmp_path, code=1, **away)
    show = ("trackio.cli", "show")
    data = {"TRACKIO_DIR": str(tmp_path / "server"), "GRADIO_SERVER_PORT": str(port)}
    with served(*show, port=port, folder=tmp_path, **data):
        log = tmp_path / "trackio.cli.log"
        (token, *_) = wait_for(lambda: re.findall(r"write_token=([\w-]+)", log.read_text()))
        back = away | {"TRACKIO_WRITE_TOKEN": token}
        play("killed", tmp_path, code=-9, **back)
        stored = len(next(iter(read_trackio(tmp_path / "server").values())).rows)
        assert f"trackio: {30 - stored} rows delivered\n" in call(*command, folder=tmp_path, **back)
        assert "Nothing is missing.\n" in call(*command, folder=tmp_path, **back)
    (run,) = read_trackio(tmp_path / "server").values()
    assert [row["step"] for row in run.rows] == list(range(1, 31))
    assert run.rows[0][TOKENS]["_type"] == "trackio.histogram"
    assert run.config["ratioscope"]


# TRL


@pytest.mark.trackers
@pytest.mark.trl
@pytest.mark.slow
def test_the_trainers_run_is_shared_and_left_open(tmp_path: Path) -> None:
    """There is one run with each scalar once; the trainer's rows equal those of a run without ratioscope."""
    logged = train("trackio_shared", tmp_path)
    train("trackio_alone", tmp_path)
    runs = {run.name: run for run in read_trackio(tmp_path / "trackio", "trained").values()}
    assert set(runs) == {"shared", "alone"}
    run = runs["shared"]
    theirs = [row for row in run.rows if TOKENS not in row and f"eval/{TOKENS}" not in row]
    ours = [row for row in run.rows if row not in theirs]
    alone = [(row["step"], row.get(STEP)) for row in runs["alone"].rows]
    assert [(row["step"], row.get(STEP)) for row in theirs] == alone
    assert [row[f"train/{MEAN}"] for row in theirs if f"train/{MEAN}" in row] == logged
    assert [(row["step"], row[STEP], f"eval/{TOKENS}" in row) for row in ours] == [
        (row["step"], row[STEP], any(key.startswith("eval/") for key in row))
        for row in theirs
        if f"train/{MEAN}" in row or f"eval/{MEAN}" in row
    ]
    assert len(ours) == 4
    assert not [key for row in ours for key in row if "importance_sampling_ratio" in key]
    assert run.config["ratioscope"]["correction"]["mode"] == "token_truncate"
    assert run.config["learning_rate"] == 1e-2
    assert not (tmp_path / "trackio" / "ratioscope.db").exists()


@pytest.mark.trackers
@pytest.mark.trl
@pytest.mark.slow
def test_a_training_that_reports_nowhere_is_relayed(tmp_path: Path) -> None:
    """With report_to for ratioscope only, its run has the histograms, the headline and the trainer's log."""
    logged = train("trackio_own", tmp_path)
    run = only_run(tmp_path)
    rows = [row for row in run.rows if TOKENS in row]
    assert [row[f"train/{MEAN}"] if f"train/{MEAN}" in row else row[MEAN] for row in rows] == logged
    assert [(row["step"], row[STEP]) for row in rows] == [(1, 1), (2, 2)]
    assert all("train/loss" in row for row in rows)
    assert run.name == "mine"
