"""``ratioscope sync``: delivers undelivered rows from the journal once, also later and on another machine."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope.cli.main import main
from ratioscope.delivery import background, sender
from ratioscope.delivery.sync import sync
from ratioscope.journal.reader import JournalReader
from ratioscope.journal.schema import FILE, JournalError
from ratioscope.journal.targets import open_target
from ratioscope.journal.targets import targets as targets_of
from ratioscope.journal.writer import Journal
from ratioscope.metrics.catalogue import keys
from tests.support.fake_trackers import Buffering, OneByOne, Server, Together, register
from tests.support.readback import read_mlflow, read_mlflow_artifact, read_tensorboard, read_wandb

if TYPE_CHECKING:
    from collections.abc import Sequence

RULE = rs.Correction("token", "truncate", upper=1.2)
TOKENS = "ratioscope/hist/token_log_ratio"
MEAN = "sampling/raw_importance_sampling_ratio/mean"
ROOT = Path(__file__).resolve().parents[2]


def observe(recorder: rs.Recorder, spread: float = 0.1, split: str = "train") -> None:
    """One batch of 64 tokens."""
    rollout = -torch.rand(4, 16) - 0.1
    recorder.observe(rollout + spread * torch.randn(4, 16), rollout, torch.ones(4, 16), split=split)


def record_run(folder: Path, steps: Sequence[int] = (1, 2, 3, 4, 5), report_to: Any = "none", **options: Any) -> None:
    """One attempt of a run, with an evaluation after its last step."""
    torch.manual_seed(len(steps))
    with rs.Recorder(report_to=report_to, correction=RULE, output_dir=folder, **options) as recorder:
        for step in steps:
            observe(recorder)
            recorder.flush(step=step)
        observe(recorder, split="eval")
        recorder.flush(step=steps[-1], split="eval")


def written(folder: Path) -> list[rs.Record]:
    """Everything in the journal, in the order of writing."""
    with JournalReader(folder) as reader:
        return list(reader.records(superseded=True))


def expected(records: Sequence[rs.Record], key: str = MEAN) -> list[tuple[int, float]]:
    """Step and value of the training's records."""
    return [(record.step, record.scalars[key]) for record in records if record.split == "train"]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Removes the user's tracker settings from the environment."""
    dropped = ("MLFLOW_", "WANDB_", "TENSORBOARD_", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "WANDB_MODE": "offline", **more}


def call(*arguments: str | Path, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "ratioscope", *map(str, arguments)]
    env = environment(folder, **more)
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, timeout=120)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that reported nowhere."""
    record_run(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """A backend whose tracker is known as ``fake``."""
    server = Server()
    register(monkeypatch, Together(server))
    return server


# Real trackers


@pytest.mark.trackers
def test_a_run_without_a_tracker_goes_to_mlflow(run: Path) -> None:
    """A run recorded without a tracker is then in MLflow: each value once and equal, histograms complete."""
    done = call("sync", run, "--to", "mlflow", folder=run)
    assert (done.returncode, done.stdout) == (0, "mlflow: 6 rows delivered\n"), done.stderr
    uri = f"sqlite:///{run / 'mlflow.db'}"
    (found,) = _mlflow_runs(uri)
    received = read_mlflow(uri, found.info.run_id)
    records = written(run)
    for record in records:
        prefix = "" if record.split == "train" else "eval/"
        for key in keys("standard") & set(record.scalars):
            points = [each for each in received.metrics[prefix + key] if each.step == record.step]
            assert [each.value for each in points] == [pytest.approx(record.scalars[key], rel=1e-15, abs=1e-300)]
            assert points[0].timestamp == int(record.time * 1000)
    assert [(each.step, each.value) for each in received.metrics[MEAN]] == expected(records)
    assert received.status == "FINISHED"
    stored = json.loads(read_mlflow_artifact(uri, found.info.run_id, "ratioscope/histograms.json"))
    assert TOKENS in json.dumps(stored)
    assert received.params["ratioscope.correction.mode"] == "token_truncate"

    again = call("sync", run, "--to", "mlflow", folder=run)
    assert (again.returncode, again.stdout) == (0, "Nothing is missing.\n")
    assert len(_mlflow_runs(uri)) == 1
    assert {key: len(points) for key, points in read_mlflow(uri, found.info.run_id).metrics.items()} == {
        key: len(points) for key, points in received.metrics.items()
    }


@pytest.mark.trackers
def test_a_run_without_a_tracker_goes_to_tensorboard(run: Path) -> None:
    """The event file has each number once, and histograms whose buckets sum to the number of tokens."""
    assert call("sync", run, "--to", "tensorboard", folder=run).stdout == "tensorboard: 6 rows delivered\n"
    (folder,) = {path.parent for path in run.rglob("events.out.tfevents.*")}
    received = read_tensorboard(folder)
    means = received.scalars[MEAN]
    assert [step for step, _ in means] == [1, 2, 3, 4, 5]
    assert [value for _, value in means] == pytest.approx([value for _, value in expected(written(run))], rel=1e-6)
    assert [sum(count for *_, count in buckets) for _, buckets in received.histograms[TOKENS]] == [64] * 5
    assert [step for step, _ in received.histograms[f"eval/{TOKENS}"]] == [5]
    assert call("sync", run, folder=run).stdout == "Nothing is missing.\n"


@pytest.mark.trackers
def test_a_run_without_a_tracker_goes_to_wandb(run: Path) -> None:
    """W&B has one row per record, with equal values, complete histograms and the trainer's step as x."""
    done = call("sync", run, "--to", "wandb", folder=run)
    assert done.returncode == 0, done.stderr
    assert "wandb: 6 rows delivered\n" in done.stdout
    received = read_wandb(run)
    rows = [row for row in received.history if MEAN in row]
    assert [(row["train/global_step"], row[MEAN]) for row in rows] == expected(written(run))
    assert [sum(row[f"{TOKENS}.values"]) for row in rows] == [64] * 5
    assert len({tuple(row[f"{TOKENS}.bins"]) for row in rows}) == 1
    assert len(received.history) == 6
    assert received.exit_code == 0
    assert call("sync", run, folder=run).stdout == "Nothing is missing.\n"


def _mlflow_runs(uri: str) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    return list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))


@pytest.mark.trackers
def test_a_copied_run_is_delivered_from_its_copy(run: Path, tmp_path: Path) -> None:
    """A copied run directory is delivered from its new place, and the original is unchanged."""
    copy = tmp_path / "elsewhere" / "run"
    shutil.copytree(run, copy)
    before = (run / "ratioscope" / FILE).read_bytes()
    assert call("sync", copy / "ratioscope" / FILE, "--to", "tensorboard", folder=tmp_path).returncode == 0
    assert list(copy.rglob("events.out.tfevents.*"))
    assert not list(run.rglob("events.out.tfevents.*"))
    assert (run / "ratioscope" / FILE).read_bytes() == before


# What is delivered


def test_delivered_rows_are_not_sent_again(run: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The first call delivers everything; further calls deliver nothing and report that."""
    assert main(["sync", str(run), "--to", "fake"]) == 0
    assert capsys.readouterr().out == "fake: 6 rows delivered\n"
    for arguments in (["--to", "fake"], []):
        assert main(["sync", str(run), *arguments]) == 0
        assert capsys.readouterr().out == "Nothing is missing.\n"
    assert server.runs == {"run-1": [1, 2, 3, 4, 5, 5]}
    assert server.closed == 1


@pytest.mark.parametrize("kind", [OneByOne, Together])
def test_an_interrupted_delivery_continues(
    run: Path, kind: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If a tracker raises at a row, earlier rows are marked as delivered and the next call sends the rest."""
    monkeypatch.setattr(sender, "BATCH", 2)
    server = Server(breaks_at=3)
    register(monkeypatch, kind(server))
    assert main(["sync", str(run), "--to", "fake"]) == 1
    assert capsys.readouterr().err == "ratioscope: ConnectionError: the server broke at 3\n"
    assert server.closed == 1
    server.breaks_at = None
    assert sync(run) == {"fake": 4}
    assert server.runs == {"run-1": [1, 2, 3, 4, 5, 5]}


def test_a_failed_last_upload_is_not_delivered(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If a buffering tracker cannot end its run, the call fails and the next one asks the backend for its rows."""
    server = Server()
    register(monkeypatch, Buffering(server))
    with monkeypatch.context() as patched:
        patched.setattr(Server, "receive", _refuse)
        assert main(["sync", str(run), "--to", "fake"]) == 1
    assert capsys.readouterr().err == "ratioscope: ConnectionError: refused\n"
    server.runs["chosen-fake"] = [1, 2]
    register(monkeypatch, Buffering(server))
    assert sync(run) == {"fake": 4}
    assert server.runs == {"chosen-fake": [1, 2, 3, 4, 5, 5]}


def _refuse(*_: Any) -> None:
    msg = "refused"
    raise ConnectionError(msg)


def test_rows_that_training_could_not_deliver(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without names, each tracker of the training receives its missing rows, in the run that training opened."""
    monkeypatch.setattr(background, "FIRST_DELAY_S", 0.01)
    whole, broken = Server(), Server(breaks_at=3)
    register(monkeypatch, Together(whole, "whole"), OneByOne(broken, "broken"))
    record_run(tmp_path / "other", report_to=["whole", "broken"])
    assert broken.runs == {"run-1": [1, 2]}
    broken.breaks_at = None
    assert sync(tmp_path / "other") == {"broken": 4}
    assert broken.runs == {"run-1": [1, 2, 3, 4, 5, 5]}
    assert whole.runs == {"run-1": [1, 2, 3, 4, 5, 5]}


def test_superseded_records_are_delivered_too(tmp_path: Path, server: Server) -> None:
    """A resumed run is delivered in the order of writing, with superseded records and the step as x."""
    record_run(tmp_path, [1, 2, 3, 4])
    record_run(tmp_path, [3, 4, 5])
    assert sync(tmp_path, to=["fake"]) == {"fake": 9}
    assert server.runs == {"run-1": [1, 2, 3, 4, 4, 3, 4, 5, 5]}
    assert [row.split for row in server.rows].count("eval") == 2


def test_rows_equal_the_journal(run: Path, server: Server) -> None:
    """Each row has the journal's values to the bit, its time, and histograms of every token."""
    sync(run, to=["fake"], detail="full")
    for record, row in zip(written(run), server.rows, strict=True):
        prefix = "" if record.split == "train" else "eval/"
        assert {key: row.scalars[prefix + key] for key in record.scalars} == dict(record.scalars)
        assert row.time == record.time
        assert {name: bins.total for name, bins in row.histograms.items()} == {
            prefix + TOKENS: 64,
            f"{prefix}ratioscope/hist/sequence_log_ratio": 4,
            f"{prefix}ratioscope/hist/corrected_log_ratio": 64,
        }


@pytest.mark.parametrize("relayed_first", [False, True], ids=["ratio first", "log first"])
def test_bins_equal_those_of_training(tmp_path: Path, server: Server, relayed_first: bool) -> None:
    """Edges equal those sent during training, also if training delivered the first rows itself."""
    live = rs.MemoryTracker()
    with rs.Recorder(report_to=[live], correction=RULE, output_dir=tmp_path) as recorder:
        if relayed_first:
            recorder.relay({"loss": 1.0}, step=0)
        for step, spread in enumerate((0.01, 3.0, 0.1), start=1):
            observe(recorder, spread)
            recorder.flush(step=step)
    with Journal(tmp_path, config=None) as journal:
        open_target(journal, "fake", owned=True).mark([1, 2])
    sync(tmp_path, to=["fake"])
    trained = {row.step: row.histograms for row in live.rows}
    assert server.rows
    for row in server.rows:
        assert {key: bins.edges.tolist() for key, bins in row.histograms.items()} == {
            key: bins.edges.tolist() for key, bins in trained[row.step].items()
        }


def test_a_run_by_its_id(run: Path, server: Server) -> None:
    """With an id the rows go into that run; another id is another delivery of everything."""
    server.runs["theirs"] = []
    assert sync(run, to=["fake"], run="theirs") == {"fake": 6}
    assert sync(run, to=["fake"], run="theirs") == {"fake": 0}
    assert sync(run, to=["fake"], run="another") == {"fake": 6}
    assert list(server.runs) == ["theirs", "another"]


def test_trackers_passed_as_objects_are_left_out(tmp_path: Path, server: Server) -> None:
    """A tracker object of the user, which has no name to open it by, does not block the others."""
    server.failures = 10**9
    with rs.Recorder(report_to=[Broken(), "fake"], output_dir=tmp_path) as recorder:
        observe(recorder)
        recorder.flush(step=1)
    server.failures = 0
    assert sync(tmp_path) == {"fake": 1}


class Broken(rs.MemoryTracker):
    """Takes nothing."""

    def write(self, row: rs.Row) -> None:
        """Raises."""
        raise OSError(row.step)


def test_detail_and_name_come_from_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default scalars have the training's detail, and a new run has the training's name."""
    record_run(tmp_path / "run", detail="headline", run_name="a name")
    tracker = Together(Server())
    register(monkeypatch, tracker)
    sync(tmp_path / "run", to=["fake"])
    counts = {"ratioscope/events/warnings", "ratioscope/events/errors"}  # of the diagnosis, whatever the detail
    sent = {key.removeprefix("eval/") for row in tracker.server.rows for key in row.scalars}
    assert sent <= keys("headline") | counts
    assert tracker.run is not None
    assert tracker.run.run_name == "a name"


def test_a_tracker_that_fails_does_not_stop_the_next(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tracker is served although an earlier one fails; then all failures are raised together."""
    broken, well = Server(failures=99), Server()
    register(monkeypatch, Together(broken, "broken"), Together(well, "well"), Together(broken, "worse"))
    with pytest.raises(ConnectionError, match="away"):
        sync(run, to=["broken", "well"])
    assert len(well.rows) == 6
    with pytest.raises(ExceptionGroup, match="2 trackers failed"):
        sync(run, to=["broken", "worse"])


def test_every_failure_is_reported(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints one line for each tracker that failed."""
    register(monkeypatch, Together(Server(failures=9), "broken"), Together(Server(failures=9), "worse"))
    assert main(["sync", str(run), "--to", "broken", "--to", "worse"]) == 1
    assert capsys.readouterr().err == "ratioscope: ConnectionError: the server is away\n" * 2


def test_progress_is_reported(run: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The callback receives the numbers of delivered and missing rows at the start and after each batch."""
    monkeypatch.setattr(sender, "BATCH", 4)
    heard: list[tuple[str, int, int]] = []

    def progress(target: Any, *, delivered: int, missing: int) -> None:
        heard.append((target.tracker, delivered, missing))

    sync(run, to=["fake"], progress=progress)
    assert heard == [("fake", 0, 6), ("fake", 4, 2), ("fake", 6, 0)]


@pytest.mark.parametrize("inside", ["", "ratioscope", f"ratioscope/{FILE}"])
def test_paths_from_within_the_run(run: Path, server: Server, inside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the same journal from any working directory, and creates no second one."""
    place = run / inside
    monkeypatch.chdir(place if place.is_dir() else place.parent)
    assert sync("." if place.is_dir() else FILE, to=["fake"]) == {"fake": 6}
    assert len(list(run.parent.rglob(FILE))) == 1


# What is refused


def failed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line of a call that cannot be done."""
    assert main(["sync", *map(str, arguments)]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    return err


def test_an_unknown_name_is_reported(run: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt tracker is refused with the nearest name before anything is opened."""
    assert "Did you mean 'fake'?" in failed(capsys, run, "--to", "fakee")
    with Journal(run, config=None) as journal:
        assert targets_of(journal) == []


def test_a_missing_journal_is_reported(tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A path without a journal is refused, and no journal is created there."""
    for path in (tmp_path, tmp_path / "nowhere"):
        assert "found no journal there" in failed(capsys, path, "--to", "fake")
    assert not list(tmp_path.iterdir())


def test_a_stray_file_is_reported(
    run: Path, tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """A journal file outside its run directory is refused, and no journal is created beside it."""
    shutil.copy(run / "ratioscope" / FILE, tmp_path / "copy.sqlite")
    assert "lies outside a run directory" in failed(capsys, tmp_path / "copy.sqlite", "--to", "fake")
    assert not (tmp_path / "ratioscope").exists()


def test_a_running_training_is_reported(run: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal that a training is writing is not delivered, and the training continues undisturbed."""
    with Journal(run, config={}) as journal:
        assert "another process writes" in failed(capsys, run, "--to", "fake")
        assert len(journal.query("SELECT id FROM record")) == 6
    assert sync(run, to=["fake"]) == {"fake": 6}


def test_an_empty_journal_is_reported(tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal without a record opens no run."""
    Journal(tmp_path, config={}).close()
    assert "there is nothing to deliver" in failed(capsys, tmp_path, "--to", "fake")
    assert server.runs == {}
    with pytest.raises(JournalError):
        sync(tmp_path)


def test_a_multi_line_error_is_printed_as_one_line(
    run: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of several lines is printed as one."""
    server.failures = 1
    assert failed(capsys, run, "--to", "fake") == "ratioscope: ConnectionError: the server is away\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["--run", "x"], ["--to", "fake", "--to", "other", "--run", "x"], ["--detail", "all"], ["--too"]],
)
def test_wrong_usage_exits_with_2(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Invalid options exit with the usage and code 2."""
    with pytest.raises(SystemExit) as ended:
        main(["sync", *([str(tmp_path)] if arguments else []), *arguments])
    assert ended.value.code == 2
    assert "usage: ratioscope" in capsys.readouterr().err


def test_a_run_needs_one_tracker(run: Path) -> None:
    """The Python function, too, refuses an id without exactly one tracker."""
    for to in ([], ["wandb", "mlflow"]):
        with pytest.raises(ValueError, match="exactly one tracker"):
            sync(run, to=to, run="x")


def test_an_interrupt_is_one_line(
    run: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends a delivery with one line and the shell's exit code, and frees the journal."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Server, "call", interrupt)
        assert main(["sync", str(run), "--to", "fake"]) == 130
    assert capsys.readouterr().err == "ratioscope: interrupted\n"
    assert sync(run, to=["fake"]) == {"fake": 6}


# What the terminal shows


def on_terminal(folder: Path, *arguments: str | Path, code: str = "") -> str:
    """Collects the command's output to a terminal."""
    command = [sys.executable, "-m", "ratioscope", *map(str, arguments)]
    if code:
        command = [sys.executable, "-c", code, *map(str, arguments)]
    ours, theirs = pty.openpty()
    env = environment(folder, TERM="xterm-256color")
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=folder)
    os.close(theirs)
    received = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # on Linux, raised when the terminal's last writer has gone
            break
        if not chunk:
            break
        received += chunk
    os.close(ours)
    process.wait(60)
    return received.decode()


@pytest.mark.trackers
def test_the_bar_ends_full_and_restores_the_cursor(run: Path) -> None:
    """On a terminal the bar ends at the last row, above the result, and the cursor is visible again."""
    text = on_terminal(run, "sync", run, "--to", "tensorboard")
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") > -1
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = [line for line in re.split(r"[\r\n]+", plain) if line.strip()]
    assert lines[-1] == "tensorboard: 6 rows delivered"
    assert "6/6" in lines[-2]


@pytest.mark.trackers
def test_an_error_stops_the_bar_first(run: Path) -> None:
    """If delivery fails, the bar is stopped before the error is printed."""
    text = on_terminal(run, "sync", run, "--to", "nonesuch")
    assert text.rfind("\x1b[?25h") >= text.rfind("\x1b[?25l")
    assert "ratioscope: ValueError: got report_to='nonesuch'" in text


@pytest.mark.trackers
def test_without_rich_there_is_no_bar(run: Path) -> None:
    """Without the package rich the result is the same, and only plain text is written."""
    code = "import sys; sys.modules['rich'] = None; from ratioscope.cli.main import main; sys.exit(main(sys.argv[1:]))"
    text = on_terminal(run, "sync", run, "--to", "tensorboard", code=code)
    assert text == "tensorboard: 6 rows delivered\r\n"
