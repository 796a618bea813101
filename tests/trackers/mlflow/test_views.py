"""Artifacts of an MLflow run beside its metrics, and runs read back from MLflow only."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.delivery.sync import sync
from ratioscope.runs.history import MAX_WINDOWS
from ratioscope.runs.read import read as read_run
from ratioscope.runs.timeline import Curve
from ratioscope.trackers.base import RunContext
from ratioscope_integrations.pictures.cells import CELL_SIZE, cell_picture
from ratioscope_integrations.trackers.mlflow import artifacts
from ratioscope_integrations.trackers.mlflow import panels as panels
from ratioscope_integrations.trackers.mlflow.stored import (
    BIN_EXPONENTS,
    MAX_EVENTS,
    StoredWindows,
    choose_exponent,
    table_steps,
)
from ratioscope_integrations.trackers.mlflow.tracker import MlflowTracker
from ratioscope_integrations.trackers.points import COUNT, curves
from tests.support.readback import read_mlflow, read_mlflow_artifact
from tests.support.tracker_rows import CONFIG, FRACTION, TOKENS, make_row, normal_bins, normal_counts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ratioscope.runs.timeline import Timeline

REPORTER = object()
MAX_TAG = 20_000
"""Characters that MLflow accepts in a tag of an experiment."""
RULE = rs.Correction(level="token", action="truncate", lower=0.5, upper=1.2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of one SQLite store for all tests of this file; setting one up takes seconds."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/mlflow.db"
    MlflowClient(uri).create_experiment("ratioscope", artifact_location=(folder / "artifacts").as_uri())
    return uri


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No MLflow setting of the machine reaches a test, and none of a test outlives it."""
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    yield
    if "mlflow" in sys.modules:
        import mlflow

        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]


@pytest.fixture
def uri(store: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store, as the environment names it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    return store


def tracked(rows: int, *, close_timeout: float = 60.0, config: dict[str, Any] | None = None, **arguments: Any) -> str:
    """Writes a run of its own through the tracker and returns its id."""
    tracker = MlflowTracker()
    tracker.open(RunContext(config=config or {}, run_name="mine", close_timeout=close_timeout))
    for step in range(1, rows + 1):
        tracker.write(make_row(step, **arguments))
    tracker.close()
    return str(tracker.run_id)


def record(
    recorder: rs.Recorder, step: int, *, split: str = "train", applied: bool = False, noise: float = 0.1
) -> None:
    """One window of a training."""
    generator = torch.Generator().manual_seed(step)
    rollout = -torch.rand(4, 16, generator=generator) - 0.5
    train = rollout + noise * torch.randn(4, 16, generator=generator)
    mask = torch.ones(4, 16, dtype=torch.bool)
    weights = torch.ones(4, 16) if applied else None
    recorder.observe(train, rollout, mask, applied=weights, split=split)
    recorder.flush(step=step, split=split)


def assert_same(mlflow: Timeline, journal: Timeline) -> None:
    """Checks that everything from scalars and bins, and its report, is equal to the last bit.

    Only the journal has the full state of the windows, and when a finding was reported.
    """
    from ratioscope.report.page.page import report_html

    shared = [event for event in journal.events if not event[1].startswith("finding ")]
    journal = replace(journal, pooled=None, events=shared)
    assert mlflow.scalars.keys() == journal.scalars.keys()
    for key, curve in journal.scalars.items():
        assert mlflow.scalars[key] == curve, key
    assert mlflow.history.to_json() == journal.history.to_json()
    assert mlflow.events == journal.events
    assert mlflow.config == journal.config
    assert mlflow.windows == journal.windows
    mlflow.name, mlflow.source = journal.name, journal.source
    assert report_html(mlflow) == report_html(journal)


def own_run(uri: str, name: str) -> str:
    """Id of the run with this name."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    (run,) = client.search_runs(experiments, f"attributes.run_name = '{name}'")
    return str(run.info.run_id)


# The run rebuilt from MLflow


@pytest.mark.slow
@pytest.mark.trackers
def test_a_long_run_is_rebuilt_from_mlflow(uri: str, tmp_path: Path) -> None:
    """Pooled windows, evaluations and events read from MLflow equal the journal's, and so does the report."""
    steps = MAX_WINDOWS + 100
    with rs.Recorder(correction=RULE, output_dir=tmp_path / "long", config={"note": "<b>"}) as recorder:
        for step in range(1, steps + 1):
            record(recorder, step, applied=step in (7, 500))
            if step % 100 == 0:
                record(recorder, step, split="eval")
    known = set(own_runs(uri))
    assert sync(tmp_path / "long", to=["mlflow"]) == {"mlflow": steps + 6}
    (run_id,) = set(own_runs(uri)) - known
    rebuilt = read_run(f"mlflow:{run_id}")
    assert rebuilt.windows == {"train": steps, "eval": 6}
    assert len(rebuilt.events) == 2
    assert_same(rebuilt, read_run(tmp_path / "long"))


def own_runs(uri: str) -> list[str]:
    """Ids of all runs."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    return [run.info.run_id for run in client.search_runs([each.experiment_id for each in client.search_experiments()])]


@pytest.mark.slow
@pytest.mark.trackers
def test_a_resumed_run_is_rebuilt_from_mlflow(uri: str, tmp_path: Path) -> None:
    """Steps that a second process repeats supersede the first attempt's, evaluations and histograms included."""
    for restored, steps, noise in ((None, range(1, 21), 0.1), (8, range(9, 15), 0.3)):
        recorder = rs.Recorder(
            report_to="mlflow", correction=RULE, output_dir=tmp_path / "out", run_name="resumed", close_timeout=120.0
        )
        recorder.open(restored_step=restored)
        for step in steps:
            record(recorder, step, noise=noise)
            if step % 5 == 0:
                record(recorder, step, split="eval", noise=noise)
        recorder.close()
        assert not recorder.incidents.counts
    run_id = own_run(uri, "resumed")
    rebuilt = read_run(f"mlflow:{run_id}")
    assert rebuilt.name == "resumed"
    assert rebuilt.scalars[f"eval/{COUNT}"].steps == [5, 10]
    assert rebuilt.windows == {"train": 14, "eval": 2}
    page = read_mlflow_artifact(uri, run_id, "ratioscope_report.html").decode()
    assert "resumed" in page
    assert_same(rebuilt, read_run(tmp_path / "out"))


@pytest.mark.trackers
def test_the_artifact_of_an_older_version_is_read(uri: str) -> None:
    """An artifact with histograms only is read; windows are counted by the metrics."""
    from mlflow import MlflowClient

    run_id = tracked(3, scalars={COUNT: 7.0})
    stored = json.loads(read_mlflow_artifact(uri, run_id, "ratioscope/histograms.json"))
    MlflowClient(uri).log_text(run_id, json.dumps(stored["histograms"]), "ratioscope/histograms.json")
    rebuilt = read_run(f"mlflow:{run_id}")
    assert rebuilt.windows == {"train": 3}
    assert rebuilt.history.to_json() == stored["histograms"]
    assert rebuilt.scalars[COUNT].values == [7.0, 7.0, 7.0]


@pytest.mark.trackers
def test_an_unknown_run_is_named_with_its_store(uri: str) -> None:
    """For an unknown run, the message names the requested run and the store."""
    for wrong in ("0" * 32, "no/such run", ""):
        with pytest.raises(LookupError, match=rf"got mlflow:{wrong}; .*{uri}.*MLFLOW_TRACKING_URI"):
            read_run(f"mlflow:{wrong}")


@pytest.mark.parametrize("store", ["sqlite:///{}/mlflow.db", "{}/mlruns", "file://{}/mlruns"])
def test_reading_makes_no_store(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local store that is not there has no such run, and is not made."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.format(tmp_path))
    with pytest.raises(LookupError, match="got mlflow:abc; there is no such run"):
        read_run("mlflow:abc")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_unreachable_server_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable server is an error at once, not after minutes of retries."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    with pytest.raises(ConnectionError, match=r"no MLflow server answers at http://127\.0\.0\.1:9: "):
        read_run("mlflow:" + "0" * 32)


def test_points_of_a_resumed_run() -> None:
    """A restart supersedes every earlier point from its step on, also of metrics that were not written again."""
    first = [(step, 100 + step, 1.0) for step in range(1, 7)]
    second = [(step, 200 + step, 2.0) for step in range(4, 6)]
    read = curves({COUNT: second + first, "rare": [(2, 102, 9.0), (6, 106, 9.0)], f"eval/{COUNT}": [(6, 107, 3.0)]})
    assert read == {
        COUNT: Curve([1, 2, 3, 4, 5], [101, 102, 103, 204, 205], [1.0, 1.0, 1.0, 2.0, 2.0]),
        "rare": Curve([2], [102], [9.0]),
    }


def test_points_that_the_trainer_logged() -> None:
    """The trainer's point, logged a moment later, gets its window's time; the newest of a step counts."""
    read = curves({COUNT: [(1, 100, 5.0), (2, 200, 5.0)], "loss": [(1, 103, 1.0), (2, 201, 2.0), (2, 204, 3.0)]})
    assert read["loss"] == Curve([1, 2], [100, 200], [1.0, 3.0])


@pytest.mark.trackers
def test_statistics_that_the_trainer_logged_are_read_by_its_names(uri: str) -> None:
    """If the trainer's callback sent the headline, its names for evaluations are understood."""
    from mlflow import MlflowClient

    run_id = tracked(1, scalars={COUNT: 7.0})
    client = MlflowClient(uri)
    client.log_metric(run_id, "ratioscope/ess/raw", 0.5, step=1, timestamp=1_700_000_001_005)
    client.log_metric(run_id, "eval_ratioscope/ess/raw", 0.25, step=1, timestamp=1_700_000_001_007)
    rebuilt = read_run(f"mlflow:{run_id}")
    assert rebuilt.scalars["ratioscope/ess/raw"] == Curve([1], [1_700_000_001_000], [0.5])
    assert rebuilt.scalars["eval/ratioscope/ess/raw"] == Curve([1], [1_700_000_001_007], [0.25])


# What the tracker remembers


def test_memory_survives_its_artifact() -> None:
    """Windows read back from the artifact continue without a break."""
    whole, broken = StoredWindows(), StoredWindows()
    for step in (1, 2, 3, 10, 20, 30, 45):
        for memory in (whole, broken):
            assert memory.add(make_row(step))
            memory.add(make_row(step, split="eval"))
        broken = StoredWindows.from_json(json.loads(json.dumps(broken.to_json())))
        assert not broken.add(make_row(step))
    assert broken.to_json() == whole.to_json()
    assert whole.to_json()["steps"]["train"] == [[1, 1, 3], [10, 10, 3], [45, 0, 1]]
    assert broken.steps == {split: [1, 2, 3, 10, 20, 30, 45] for split in ("train", "eval")}


def test_memory_is_bounded() -> None:
    """The memory keeps the newest of very many events."""
    memory = StoredWindows()
    row = make_row(1)
    row.record.events = tuple(map(str, range(MAX_EVENTS + 5)))  # type: ignore[misc]
    memory.add(row)
    assert memory.events[0] == (1, "5")
    assert len(memory.events) == MAX_EVENTS


@pytest.mark.parametrize(("spread", "reach"), [(0.01, 1), (0.2, 1), (1.0, 8), (10.0, 64), (100.0, 512), (1000.0, 512)])
def test_axes_come_from_four_widths(spread: float, reach: int) -> None:
    """The axis is the shortest of four that leaves out at most 0.1 % of the values."""
    exponent = choose_exponent(normal_counts(0, n=4000, spread=spread))
    assert exponent in BIN_EXPONENTS
    assert 32 * 2.0**exponent == reach


def test_runs_share_their_axes() -> None:
    """Runs with different bins are drawn on the same axis, which a run keeps."""
    edges: list[Any] = []
    for exponent in (-7, -4):
        memory = StoredWindows()
        for step in (1, 2):
            memory.add(make_row(step, histograms={TOKENS: normal_bins(step, exponent=exponent)}))
        series = memory.pictures.latest("pictures/token_log_ratio")
        assert [window.last_step for window in series.windows] == [1, 2]
        edges.append(series.edges.tolist())
    assert edges[0] == edges[1]
    assert edges[0][1] - edges[0][0] == 2.0**-5


@pytest.mark.parametrize(
    ("last_steps", "rows"),
    [
        ([], []),
        ([1], [1]),
        (list(range(1, 13)), [1, 2, 5, 10, 12]),
        (list(range(10, 301, 10)), [10, 20, 50, 100, 200, 300]),
        (list(range(8, 101, 8)), [5, 10, 20, 50, 96]),
        ([0, 5], [5]),
        (list(range(1, 20001)), [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000]),
    ],
)
def test_rows_of_the_table(last_steps: list[int], rows: list[int]) -> None:
    """Rows are round steps that other runs have, each of another window, and the last step."""
    found = table_steps(last_steps)
    assert list(found) == rows
    for step, position in found.items():
        assert step <= last_steps[position]
        assert position == 0 or step > last_steps[position - 1]


# What the run shows


def test_cell_has_its_content_in_the_upper_half() -> None:
    """The upper half of a picture has bars, bound and labels; explanations are below."""
    pixels = np.asarray(cell_picture(normal_bins(1, exponent=-5), title="step 1", bounds=(None, 1.2)))
    assert pixels.shape == (CELL_SIZE, CELL_SIZE, 3)
    colors = {"bar": (61, 111, 180), "bound": (209, 36, 47)}
    for color in colors.values():
        rows = np.nonzero((pixels == color).all(axis=-1))[0]
        assert 0 < rows.max() < CELL_SIZE // 2 - 20
    assert (pixels[310:390] == 255).all()


@pytest.mark.trackers
def test_table_and_report_at_the_end(uri: str) -> None:
    """The table has a picture for each of its steps; a second process rewrites it with both processes' steps."""
    run_id = tracked(6)
    os.environ["MLFLOW_RUN_ID"] = run_id
    try:
        tracker = MlflowTracker()
        tracker.open(RunContext(close_timeout=60.0))
        for step in range(7, 13):
            tracker.write(make_row(step))
        tracker.close()
    finally:
        del os.environ["MLFLOW_RUN_ID"]
    run = read_mlflow(uri, run_id)
    table = json.loads(read_mlflow_artifact(uri, run_id, artifacts.TABLE_ARTIFACT))
    assert table["columns"] == ["step", "token_log_ratio"]
    assert [row[0] for row in table["data"]] == [1, 2, 5, 10, 12]
    for _, cell in table["data"]:
        assert cell["type"] == "image"
        assert {cell["filepath"], cell["compressed_filepath"]} <= set(run.artifacts)
    entries = json.loads(run.tags["mlflow.loggedArtifacts"])
    assert entries == [{"path": artifacts.TABLE_ARTIFACT, "type": "table"}]
    page = read_mlflow_artifact(uri, run_id, artifacts.REPORT_ARTIFACT).decode()
    assert "mine" in page
    assert page.startswith("<!doctype html>")


@pytest.mark.trackers
def test_windows_that_come_together_are_all_drawn(uri: str) -> None:
    """A run delivered at once has a histogram at each due step; a superseded evaluation changes nothing."""
    tracker = MlflowTracker()
    tracker.open(RunContext(close_timeout=60.0))
    tracker.write_many([*(make_row(step) for step in range(1, 9)), make_row(8, split="eval")])
    again = make_row(3)
    tracker.write_many([replace(again, time=again.time + 100)])
    tracker.close()
    run = read_mlflow(uri, str(tracker.run_id))
    names = [path.removeprefix("images/").split("+") for path in run.artifacts if path.endswith(".png") and "+" in path]
    assert {int(parts[2]) for parts in names if parts[0] == "ratioscope~log_ratio"} == {0, 1, 2, 3, 4, 5, 7}
    assert artifacts.REPORT_ARTIFACT in run.artifacts
    table = json.loads(read_mlflow_artifact(uri, str(tracker.run_id), artifacts.TABLE_ARTIFACT))
    assert [row[0] for row in table["data"]] == [1, 2, 3]


@pytest.mark.trackers
def test_without_plotly_there_is_no_report(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without plotly one line says what to install, and everything else is logged."""
    monkeypatch.setattr(artifacts, "find_spec", lambda _: None)
    caplog.set_level(logging.INFO, "ratioscope")
    run = read_mlflow(uri, tracked(2))
    assert artifacts.REPORT_ARTIFACT not in run.artifacts
    assert artifacts.TABLE_ARTIFACT in run.artifacts
    assert [entry.getMessage() for entry in caplog.records if "ratioscope[report]" in entry.getMessage()] == [
        'ratioscope: MLflow: no ratioscope_report.html was made; it needs pip install "ratioscope[report]"'
    ]


@pytest.mark.trackers
def test_a_slow_server_costs_pictures_only(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """After the closing timeout the run is ended and can be rebuilt; left-out pictures are reported."""
    run_id = tracked(3, close_timeout=0.0, config=CONFIG)
    run = read_mlflow(uri, run_id)
    assert run.status == "FINISHED"
    assert len(run.metrics[FRACTION]) == 3
    assert run.params["ratioscope.correction.upper"] == "1.2"
    assert artifacts.TABLE_ARTIFACT not in run.artifacts
    assert f"of run {run_id} are not complete" in caplog.text
    assert read_run(f"mlflow:{run_id}").windows == {"train": 3}


@pytest.mark.trackers
def test_parameters_of_two_runs_differ_where_the_runs_do(uri: str, tmp_path: Path) -> None:
    """Mode, bounds and the user's notes are separate parameters, so that a comparison displays the difference."""
    params: list[dict[str, str]] = []
    for name, upper in (("one", 1.2), ("two", 2.0)):
        rule = rs.Correction(level="token", action="truncate", upper=upper)
        config = {"dtype": name}
        out = tmp_path / name
        with rs.Recorder(report_to="mlflow", correction=rule, output_dir=out, run_name=name, config=config) as recorder:
            record(recorder, 1)
        params.append(read_mlflow(uri, own_run(uri, name)).params)
    differing = {key for key in params[0] if params[0][key] != params[1][key]}
    assert {"ratioscope.correction.upper", "ratioscope.user.dtype"} <= differing
    assert "ratioscope.correction.mode" not in differing
    assert params[0]["ratioscope.correction.mode"] == "token_truncate"
    assert max(map(len, params[0].values())) < 100


# The shared view


@pytest.mark.trackers
def test_panels_write_one_view(uri: str, tmp_path: Path) -> None:
    """The command writes the view into the experiment once, and prints its address."""
    from mlflow import MlflowClient

    tracked(1, scalars={f"ratioscope/token/raw/{name}": 1.0 for name in panels.QUANTILES})
    command = [sys.executable, "-m", "ratioscope", "panels", "mlflow", "--experiment", "ratioscope"]
    for _ in range(2):
        done = subprocess.run([*command, "--tracking-uri", uri], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    experiment = MlflowClient(uri).get_experiment_by_name("ratioscope")
    assert experiment is not None
    assert done.stdout == (
        f"mlflow ui --backend-store-uri {uri}\nThen open http://127.0.0.1:5000/#/experiments/"
        f"{experiment.experiment_id}/runs?compareRunsMode=CHART&viewStateShareKey=ratioscope\n"
    )
    (tag,) = [key for key in experiment.tags if key.startswith("mlflow.sharedViewState.")]
    charts = json.loads(json.loads(experiment.tags[tag])["state"])["compareRunCharts"]
    fan = next(chart for chart in charts if chart["type"] == "LINE")
    assert fan["selectedMetricKeys"] == [f"ratioscope/token/raw/{name}" for name in panels.QUANTILES]
    assert fan["scaleType"] == "log"

    command[-1] = "<nope>"
    done = subprocess.run([*command, "--tracking-uri", uri], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("ratioscope: LookupError: got --experiment '<nope>'; ")
    assert "'ratioscope'" in done.stderr


def test_view_fits_into_a_tag() -> None:
    """With every chart the view is far below MLflow's limit, and each chart lies in a section."""
    content = panels.view(frozenset(), now=1)
    assert len(content) < MAX_TAG // 2
    state = json.loads(json.loads(content)["state"])
    sections = {section["uuid"] for section in state["compareRunSections"]}
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == sections
    assert len({chart["uuid"] for chart in state["compareRunCharts"]}) == len(state["compareRunCharts"])
    assert "ratioscope/sequence" in content
    assert "ratioscope/sequence" not in panels.view(frozenset({"ratioscope/token/raw/p01"}))
    images = [chart for chart in state["compareRunCharts"] if chart["type"] == "IMAGE"]
    assert [(chart["step"], chart["showRunParams"]) for chart in images] == [(0, False), (0, False)]


@pytest.mark.parametrize(
    ("version", "fine"), [("3.14.1", False), ("2.22.0", False), ("3.15.0", True), ("4.0rc1", True)]
)
def test_an_older_server_gets_no_view(version: str, fine: bool) -> None:
    """A server without shared views gets none, and the text names the first version that has them."""
    if fine:
        panels.check_version(version, "http://x")
    else:
        with pytest.raises(RuntimeError, match=rf"got MLflow {version} at http://x; shared views need 3\.15 or newer"):
            panels.check_version(version, "http://x")
