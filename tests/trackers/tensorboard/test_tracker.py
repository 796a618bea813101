"""Rows that TensorBoard receives, read back from its event files."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ratioscope.state.histogram import Bins
from ratioscope.trackers.base import RunContext, Tracker
from ratioscope_integrations.trackers.tensorboard.tracker import TensorBoardTracker
from tests.support.readback import read_tensorboard
from tests.support.tracker_rows import CONFIG, FRACTION, TOKENS, make_row, normal_bins

if TYPE_CHECKING:
    from pathlib import Path


def _writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(log_dir=str(folder))


def test_import_without_tensorboard() -> None:
    """The module imports, and a tracker is made, without loading tensorboard."""
    code = (
        "import sys; from ratioscope_integrations.trackers.tensorboard.tracker import TensorBoardTracker as T; T();"
        "sys.exit('tensorboard' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_is_a_tracker() -> None:
    """The class satisfies the protocol and has a location before it has a run."""
    tracker = TensorBoardTracker()
    assert isinstance(tracker, Tracker)
    assert "no run" in tracker.where()
    tracker.write(make_row(1))
    tracker.close()


@pytest.mark.trackers
def test_writes_through_the_writer_of_the_trainer(tmp_path: Path) -> None:
    """Everything is in the trainer's own event file, next to the trainer's scalars, and the writer stays open."""
    reporter = SimpleNamespace(tb_writer=None)
    tracker = TensorBoardTracker()
    assert not tracker.open(RunContext(config=CONFIG, reporter=reporter))
    reporter.tb_writer = _writer(tmp_path)
    assert tracker.open(RunContext(config=CONFIG, reporter=reporter))
    assert tracker.where() == f"tensorboard --logdir {tmp_path}"
    tracker.write(make_row(5))
    tracker.write(make_row(10))
    tracker.close()
    reporter.tb_writer.add_scalar("train/loss", 0.5, 10)
    reporter.tb_writer.close()

    assert len(list(tmp_path.iterdir())) == 1
    run = read_tensorboard(tmp_path)
    assert run.scalars[FRACTION] == [(5, pytest.approx(0.05)), (10, pytest.approx(0.1))]
    assert run.scalars["train/loss"] == [(10, 0.5)]
    assert json.loads(run.texts["ratioscope/config/text_summary"].strip("`").removeprefix("json")) == CONFIG


@pytest.mark.trackers
def test_histogram_arrives_whole(tmp_path: Path) -> None:
    """The page displays our edges and counts bin by bin, and the counts sum to the number of values."""
    tracker = TensorBoardTracker()
    tracker.open(RunContext(output_dir=tmp_path, run_name="mine"))
    bins = normal_bins(7, n=1234)
    tracker.write(make_row(5, histograms={TOKENS: bins}))
    tracker.close()

    [(step, buckets)] = read_tensorboard(tmp_path / "ratioscope" / "mine").histograms[TOKENS]
    assert step == 5
    assert sum(count for _, _, count in buckets) == 1234
    occupied = np.flatnonzero(bins.counts)
    first, last = occupied[0], occupied[-1]
    assert [count for _, _, count in buckets] == bins.counts[first : last + 1].tolist()
    assert [left for left, _, _ in buckets] == bins.edges[first : last + 1].tolist()
    assert [right for _, right, _ in buckets] == bins.edges[first + 1 : last + 2].tolist()


@pytest.mark.trackers
@pytest.mark.parametrize("place", [0, 32, 64])
def test_one_occupied_bin_keeps_its_width(tmp_path: Path, place: int) -> None:
    """A window whose values share one bin, an outer one included, is drawn one bin wide."""
    edges = normal_bins(0).edges
    counts = np.zeros(65, dtype=np.int64)
    counts[place] = 9
    tracker = TensorBoardTracker()
    tracker.open(RunContext(output_dir=tmp_path, run_name="one"))
    tracker.write(make_row(1, histograms={TOKENS: Bins(counts, edges)}))
    tracker.close()
    [(_, buckets)] = read_tensorboard(tmp_path / "ratioscope" / "one").histograms[TOKENS]
    assert buckets == [(edges[place], edges[place + 1], 9.0)]


@pytest.mark.trackers
def test_empty_histogram_is_left_out(tmp_path: Path) -> None:
    """A window without a valid value has no histogram and raises nothing."""
    tracker = TensorBoardTracker()
    tracker.open(RunContext(output_dir=tmp_path, run_name="none"))
    empty = Bins(np.zeros(65, dtype=np.int64), normal_bins(0).edges)
    tracker.write(make_row(1, histograms={TOKENS: empty}))
    tracker.close()
    run = read_tensorboard(tmp_path / "ratioscope" / "none")
    assert TOKENS not in run.histograms
    assert FRACTION in run.scalars


@pytest.mark.trackers
def test_window_after_the_trainer_closed_its_writer_is_kept(tmp_path: Path) -> None:
    """Rows after the end of training still reach the same folder."""
    reporter = SimpleNamespace(tb_writer=_writer(tmp_path))
    tracker = TensorBoardTracker()
    tracker.open(RunContext(reporter=reporter))
    tracker.write(make_row(1))
    reporter.tb_writer.close()
    reporter.tb_writer = None
    tracker.write(make_row(2))
    tracker.close()
    assert [step for step, _ in read_tensorboard(tmp_path).scalars[FRACTION]] == [1, 2]


@pytest.mark.trackers
@pytest.mark.parametrize("name", ["../../away", "/away", "a/b", "..", "ü" * 9000])
def test_a_runs_name_is_not_a_path(tmp_path: Path, name: str) -> None:
    """For any run name, the event file lies in one folder below ``ratioscope`` in the output directory."""
    tracker = TensorBoardTracker()
    tracker.open(RunContext(output_dir=tmp_path / "out", run_name=name))
    tracker.write(make_row(1))
    tracker.close()
    (file,) = tmp_path.rglob("events.out.tfevents.*")
    assert file.parent.parent == tmp_path / "out" / "ratioscope"


@pytest.mark.trackers
def test_a_row_is_one_event(tmp_path: Path) -> None:
    """A window adds one event to the writer's queue, which holds ten and makes the training wait for more."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    writer = _writer(tmp_path)
    tracker = TensorBoardTracker()
    tracker.open(RunContext(reporter=SimpleNamespace(tb_writer=writer)))
    row = make_row(5, histograms={TOKENS: normal_bins(5)})
    tracker.write(row)
    writer.close()
    (file,) = tmp_path.iterdir()
    (event,) = (event for event in EventFileLoader(str(file)).Load() if event.step == 5)
    assert {value.tag for value in event.summary.value} == {*row.scalars, TOKENS}
    assert event.wall_time == row.time
