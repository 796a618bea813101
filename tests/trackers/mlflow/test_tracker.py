"""Rows that MLflow receives, read back through MLflow's client."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from ratioscope.correction.bounds import Correction
from ratioscope.trackers.base import RunContext, Tracker
from ratioscope_integrations.trackers.mlflow import config
from ratioscope_integrations.trackers.mlflow.config import flat_params
from ratioscope_integrations.trackers.mlflow.tracker import MlflowTracker
from ratioscope_integrations.trackers.names import clean_name
from tests.support.readback import MlflowRun, read_mlflow, read_mlflow_artifact
from tests.support.tracker_rows import CONFIG, FRACTION, SEQUENCES, TOKENS, make_row, normal_bins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

REPORTER = object()
_VARIABLES = ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of one SQLite store for all tests of this file; setting one up takes seconds."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/mlflow.db"
    MlflowClient(uri).create_experiment("trainer", artifact_location=(folder / "artifacts").as_uri())
    MlflowClient(uri).create_experiment("ratioscope", artifact_location=(folder / "artifacts").as_uri())
    return uri


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No MLflow setting of the machine reaches a test, and none of a test outlives it."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    if "mlflow" in sys.modules:
        import mlflow

        while mlflow.active_run() is not None:
            mlflow.end_run()
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]
        # set_experiment leaves its experiment in the process and in the environment.
        mlflow.tracking.fluent._active_experiment_id = None
        os.environ.pop("MLFLOW_EXPERIMENT_ID", None)


@pytest.fixture
def live(store: str) -> str:
    """Id of a live run, as the trainer's callback or a user opens it."""
    import mlflow

    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("trainer")
    return str(mlflow.start_run().info.run_id)


def _on_thread(work: Callable[[], Any]) -> None:
    """Runs ``work`` on another thread, like delivery, and raises its exception."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def _record(tracker: MlflowTracker, rows: int, **arguments: Any) -> None:
    for step in range(1, rows + 1):
        tracker.write(make_row(step, **arguments))
    tracker.close()


def _n_runs(uri: str) -> int:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    return len(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))


def _pictures(run: MlflowRun) -> list[tuple[str, int]]:
    """Key and step of each full-size picture, in order of time."""
    paths = [path for path in run.artifacts if path.startswith("images/") and path.endswith(".png")]
    names = [path.removeprefix("images/").split("+") for path in paths]
    return [(parts[0].replace("~", "/"), int(parts[2])) for parts in sorted(names, key=lambda parts: parts[4])]


def test_import_without_mlflow() -> None:
    """The module imports, and a tracker is made, without loading mlflow or PIL."""
    code = (
        "import sys; from ratioscope_integrations.trackers.mlflow.tracker import MlflowTracker; MlflowTracker();"
        "sys.exit('mlflow' in sys.modules or 'PIL' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_is_a_tracker() -> None:
    """The class satisfies the protocol and has a location before it has a run."""
    tracker = MlflowTracker()
    assert isinstance(tracker, Tracker)
    assert "no run" in tracker.where()
    tracker.write(make_row(1))
    tracker.close()


@pytest.mark.trackers
def test_metrics_land_in_the_run_of_the_trainer(store: str, live: str) -> None:
    """Metrics carry step and time of the window, a retry adds nothing, and no second run appears."""
    import mlflow

    runs = _n_runs(store)
    tracker = MlflowTracker()
    assert tracker.open(RunContext(config=CONFIG, reporter=REPORTER))
    row = make_row(10)
    _on_thread(lambda: [tracker.write(row), tracker.write(row), tracker.write(make_row(20)), tracker.close()])
    assert mlflow.active_run() is not None
    mlflow.end_run()

    run = read_mlflow(store, live)
    points = [(metric.step, metric.value, metric.timestamp) for metric in run.metrics[FRACTION]]
    assert points == [(10, 0.1, 1_700_000_010_000), (20, 0.2, 1_700_000_020_000)]
    assert _n_runs(store) == runs
    assert live in tracker.where()
    assert "mlflow ui --backend-store-uri sqlite:///" in tracker.where()


@pytest.mark.trackers
def test_config_is_parameters_and_an_artifact(store: str, live: str) -> None:
    """The config is there as dotted parameters to compare runs by, and whole as JSON."""
    tracker = MlflowTracker()
    tracker.open(RunContext(config=CONFIG, reporter=REPORTER))
    _record(tracker, 1)
    run = read_mlflow(store, live)
    assert run.params["ratioscope.correction.upper"] == "1.2"
    assert run.params["ratioscope.vllm.mode"] == "colocate"
    assert run.params["ratioscope.correction.lower"] == "None"
    assert json.loads(read_mlflow_artifact(store, live, "ratioscope/config.json")) == CONFIG


@pytest.mark.trackers
def test_resumed_run_keeps_its_parameters(store: str, live: str, caplog: pytest.LogCaptureFixture) -> None:
    """A changed value stays as it was among the parameters; the new one is a tag, and new keys are added (C52)."""
    first = MlflowTracker()
    first.open(RunContext(config={"upper": "3.0", "same": 1}, reporter=REPORTER))
    _record(first, 1)
    second = MlflowTracker()
    second.open(RunContext(config={"upper": 3, "same": 1, "new": True}, reporter=REPORTER))
    _record(second, 1)

    run = read_mlflow(store, live)
    assert run.params == {"ratioscope.upper": "3.0", "ratioscope.same": "1", "ratioscope.new": "True"}
    assert json.loads(run.tags["ratioscope.changed"]) == {"ratioscope.upper": "3"}
    assert "ratioscope.upper" in caplog.text
    assert json.loads(read_mlflow_artifact(store, live, "ratioscope/config.json"))["upper"] == 3


@pytest.mark.trackers
def test_refused_parameters_are_shortened_one_by_one(
    store: str, live: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that takes 500 characters, or refuses one key, still gets all the others (C53)."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    genuine = MlflowClient.log_batch

    def strict(self: MlflowClient, run_id: str, *args: Any, params: Any = (), **options: Any) -> Any:
        if any(len(param.value) > 500 or "odd" in param.key for param in params):
            raise MlflowException.invalid_parameter_value("refused")
        return genuine(self, run_id, *args, params=params, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", strict)
    tracker = MlflowTracker()
    long = "x" * 6001
    tracker.open(RunContext(config={"long": long, "odd": 1, **{f"k{i}": i for i in range(120)}}, reporter=REPORTER))
    _record(tracker, 1)
    run = read_mlflow(store, live)
    assert run.params["ratioscope.long"] == "x" * 500
    assert len(run.params) == 121
    assert "ratioscope.odd" in caplog.text
    assert json.loads(read_mlflow_artifact(store, live, "ratioscope/config.json"))["long"] == long
    assert config._same("x" * 500, long)


@pytest.mark.trackers
def test_only_finite_metrics_with_legal_names_are_sent(store: str, live: str) -> None:
    """Infinities and NaN are left out, and an illegal or a clashing name costs neither (C54, C55)."""
    tracker = MlflowTracker()
    tracker.open(RunContext(reporter=REPORTER))
    infinite = {"a/nan": np.nan, "a/inf": np.inf, "a/minus": -np.inf}
    odd = {"p99%": 1.0, "p99@": 2.0, "/lead//x/": 3.0, "..": 4.0}
    tracker.write(make_row(1, scalars={**infinite, **odd}))
    tracker.write(make_row(2, scalars={"p99@": 5.0}))
    tracker.close()
    metrics = read_mlflow(store, live).metrics
    assert {key: [metric.value for metric in points] for key, points in metrics.items()} == {
        "p99_": [1.0],
        "p99__2": [2.0, 5.0],
        "lead/x": [3.0],
        "__": [4.0],
    }


@pytest.mark.trackers
def test_pictures_and_counts_of_a_long_training(store: str, live: str) -> None:
    """Pictures are drawn at increasing intervals, the newest also at step 0; the artifact holds every count."""
    tracker = MlflowTracker()
    tracker.open(RunContext(reporter=REPORTER))
    _record(tracker, 14)
    run = read_mlflow(store, live)
    pictures = _pictures(run)
    assert sorted({step for key, step in pictures if key == "ratioscope/log_ratio"}) == [0, 1, 2, 3, 4, 5, 7, 9, 12, 14]
    assert [step for key, step in pictures if key == "ratioscope/log_ratio_over_training"] == [0] * 9
    assert {key for key, _ in pictures} == {"ratioscope/log_ratio", "ratioscope/log_ratio_over_training"}
    assert run.tags["mlflow.loggedImages"] == "True"

    path = next(path for path in run.artifacts if path.startswith("images/") and path.endswith(".png"))
    assert Image.open(io.BytesIO(read_mlflow_artifact(store, live, path))).size == (480, 480)
    [series] = json.loads(read_mlflow_artifact(store, live, "ratioscope/histograms.json"))["histograms"][TOKENS]
    assert [window["steps"] for window in series["windows"]] == [[step, step] for step in range(1, 15)]
    assert [window["counts"] for window in series["windows"]] == [normal_bins(i).counts.tolist() for i in range(1, 15)]
    assert series["edges"] == normal_bins(1).edges.tolist()


@pytest.mark.trackers
def test_evaluation_has_separate_pictures(store: str, live: str) -> None:
    """Windows of an evaluation are drawn under ``eval/``, separately from those of training."""
    tracker = MlflowTracker()
    tracker.open(RunContext(reporter=REPORTER))
    tracker.write(make_row(1))
    tracker.write(make_row(1, split="eval"))
    tracker.close()
    run = read_mlflow(store, live)
    assert ("eval/ratioscope/log_ratio", 1) in _pictures(run)
    assert f"eval/{FRACTION}" in run.metrics
    histograms = json.loads(read_mlflow_artifact(store, live, "ratioscope/histograms.json"))["histograms"]
    assert {key: len(series[0]["windows"]) for key, series in histograms.items()} == {
        TOKENS: 1,
        SEQUENCES: 1,
        f"eval/{TOKENS}": 1,
        f"eval/{SEQUENCES}": 1,
    }


@pytest.mark.trackers
def test_sequence_rule_has_a_picture_at_its_level(store: str, live: str) -> None:
    """A rule on sequences adds their picture, because its bounds do not apply to tokens."""
    tracker = MlflowTracker()
    tracker.open(RunContext(reporter=REPORTER))
    _record(tracker, 1, correction=Correction(level="sequence", action="mask", upper=2.0))
    assert {key for key, _ in _pictures(read_mlflow(store, live))} == {
        "ratioscope/log_ratio",
        "ratioscope/log_ratio_over_training",
        "ratioscope/sequence_log_ratio",
        "ratioscope/sequence_log_ratio_over_training",
    }


@pytest.mark.trackers
def test_resumed_training_keeps_its_history(store: str, live: str) -> None:
    """A process that continues from a checkpoint replaces repeated steps and keeps earlier ones."""
    for steps in (range(1, 7), range(4, 9)):
        tracker = MlflowTracker()
        tracker.open(RunContext(reporter=REPORTER))
        for step in steps:
            tracker.write(make_row(step))
        tracker.close()
    [series] = json.loads(read_mlflow_artifact(store, live, "ratioscope/histograms.json"))["histograms"][TOKENS]
    assert [window["steps"][0] for window in series["windows"]] == list(range(1, 9))


@pytest.mark.trackers
def test_finished_run_of_the_trainer_stays_finished(store: str, live: str) -> None:
    """After the trainer ended its run the remaining rows arrive, and the run's status is unchanged."""
    import mlflow

    tracker = MlflowTracker()
    tracker.open(RunContext(config=CONFIG, reporter=REPORTER))
    mlflow.end_run("KILLED")
    runs = _n_runs(store)
    _on_thread(lambda: _record(tracker, 2))
    run = read_mlflow(store, live)
    assert run.status == "KILLED"
    assert len(run.metrics[FRACTION]) == 2
    assert "ratioscope/config.json" in run.artifacts
    assert _n_runs(store) == runs


@pytest.mark.trackers
def test_run_without_a_window_has_the_config(store: str, live: str) -> None:
    """A training without a generation leaves its config, and no picture."""
    tracker = MlflowTracker()
    tracker.open(RunContext(config=CONFIG, reporter=REPORTER))
    tracker.close()
    assert read_mlflow(store, live).artifacts == ["ratioscope/config.json"]


def test_waits_for_the_run_of_the_trainer() -> None:
    """While the trainer's callback has no run yet, none is opened and the caller must retry."""
    assert not MlflowTracker().open(RunContext(reporter=REPORTER))


@pytest.mark.trackers
def test_ratioscopes_run_is_created_late_and_finished(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a trainer and a live run, the first window opens a run by the environment; it ends FINISHED."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    runs = _n_runs(store)
    tracker = MlflowTracker()
    tracker.open(RunContext(config=CONFIG, run_name="mine"))
    assert _n_runs(store) == runs
    _on_thread(lambda: _record(tracker, 2))
    assert _n_runs(store) == runs + 1
    run = read_mlflow(store, str(tracker.run_id))
    assert run.status == "FINISHED"
    assert run.tags["mlflow.runName"] == "mine"
    assert len(run.metrics[FRACTION]) == 2


@pytest.mark.trackers
def test_named_run_of_the_environment_is_continued(store: str, live: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``MLFLOW_RUN_ID`` names the run to write to, which ratioscope does not end."""
    import mlflow

    mlflow.end_run()
    monkeypatch.setenv("MLFLOW_RUN_ID", live)
    tracker = MlflowTracker()
    tracker.open(RunContext())
    runs = _n_runs(store)
    _record(tracker, 1)
    assert FRACTION in read_mlflow(store, live).metrics
    assert _n_runs(store) == runs


@pytest.mark.slow
@pytest.mark.trackers
def test_default_store_lies_in_the_output_folder(tmp_path: Path) -> None:
    """Without configuration, database and artifacts go to the output folder, not to the current one."""
    tracker = MlflowTracker()
    tracker.open(RunContext(config=CONFIG, output_dir=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    _record(tracker, 1)
    uri = f"sqlite:///{tmp_path}/out/mlflow.db"
    assert uri in tracker.where()
    assert read_mlflow(uri, str(tracker.run_id)).status == "FINISHED"
    assert list((tmp_path / "out" / "mlartifacts").rglob("config.json"))


@pytest.fixture(scope="module")
def server(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real MLflow server on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("served")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", store, "--artifacts-destination", str(folder)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/health", process, folder / "server.log")
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        else:
            return


@pytest.mark.slow
@pytest.mark.trackers
def test_ratioscopes_run_on_a_real_server(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics, parameters, pictures and artifacts pass through a server's REST interface."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "served")
    tracker = MlflowTracker()
    tracker.open(RunContext(config=CONFIG, run_name="served"))
    _on_thread(lambda: _record(tracker, 3))
    run_id = str(tracker.run_id)
    run = read_mlflow(server, run_id)
    assert run.status == "FINISHED"
    assert [metric.step for metric in run.metrics[FRACTION]] == [1, 2, 3]
    assert run.params["ratioscope.correction.upper"] == "1.2"
    assert {step for _, step in _pictures(run)} == {0, 1, 2, 3}
    assert tracker.where().startswith(f"{server}/#/experiments/")
    assert json.loads(read_mlflow_artifact(server, run_id, "ratioscope/config.json")) == CONFIG


def test_where_hides_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """The displayed address has no credentials."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@mlflow.example.org/")
    tracker = MlflowTracker()
    tracker.open(RunContext())
    assert tracker.where() == "a run will be opened at https://mlflow.example.org"


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("timing(s)/gen", "timing_s_/gen"),
        ("mean@1", "mean_1"),
        ("/a", "a"),
        ("a/../b", "a/__/b"),
        ("ratioscope/token/raw/p99", "ratioscope/token/raw/p99"),
        ("x" * 300, "x" * 250),
        ("//", "_"),
    ],
)
def test_clean_name(name: str, clean: str) -> None:
    """An illegal name becomes the nearest legal one, and a legal one is unchanged."""
    assert clean_name(name) == clean


def test_flat_params() -> None:
    """Nested sections become dotted keys; lists and empty sections become JSON."""
    assert flat_params({"a": {"b": [1, 2]}, "c": {}, "d": None}) == {
        "ratioscope.a.b": "[1, 2]",
        "ratioscope.c": "{}",
        "ratioscope.d": "None",
    }
    assert flat_params({}) == {}
