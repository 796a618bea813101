"""Further trackers with their real clients, offline: received data is read back from the clients' files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratioscope import testing
from tests.layers.tracker_readers import READERS, tracker

ROOT = Path(__file__).resolve().parents[2]
MEAN = "sampling/raw_importance_sampling_ratio/mean"
TOKENS = "ratioscope/hist/token_log_ratio"
CLEARML = "sdk.development.vcs_repo_detect_async: false\n"
"""``Task.init`` starts git on one thread while it forks on another, and the child may keep open the pipe on whose end
the start of git waits; ``Task.close`` then waits for 300 s."""

pytestmark = [pytest.mark.slow, pytest.mark.trackers]


def run(script: str, name: str, folder: Path, *more: str) -> None:
    """Runs a script of this folder with every client offline and its home in the test's folder."""
    (folder / "clearml.conf").write_text(CLEARML)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "layers" / script), name, str(folder), *more],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "HOME": str(folder),
            "CLEARML_CACHE_DIR": str(folder),
            "CLEARML_CONFIG_FILE": str(folder / "clearml.conf"),
            "CLEARML_LOG_MODEL": "FALSE",
            "CLEARML_OFFLINE_MODE": "1",
            "COMET_OFFLINE_DIRECTORY": str(folder / "comet"),
            "COMET_START_ONLINE": "0",
            "NEPTUNE_MODE": "offline",
            "NEPTUNE_PROJECT": "workspace/project",
            "SWANLAB_LOG_DIR": "" if script.startswith("tracker_readers") else str(folder / "swanlog"),
            "SWANLAB_MODE": "offline",
        },
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "reported once" not in done.stderr, done.stderr[-3000:]


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"clearml"}))
def test_conforms(name: str, tmp_path: Path) -> None:
    """The conformance kit passes."""
    run("tracker_readers.py", name, tmp_path)


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: str(check.__name__))
def test_clearml_conforms(check: testing.Check, tmp_path: Path) -> None:
    """Runs the checks for ClearML in new processes, because it has one task per process."""
    run("tracker_readers.py", "clearml", tmp_path, check.__name__)


@pytest.mark.trl
@pytest.mark.parametrize("name", ["clearml", "comet_ml", "dvclive", "swanlab"])
def test_the_trainers_run_is_shared(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the trainer reports too, one run has the headline once, from the trainer, and the rest from ratioscope."""
    monkeypatch.setenv("CLEARML_CACHE_DIR", str(tmp_path))
    run("tracker_training.py", name, tmp_path)
    logged = json.loads((tmp_path / "logged.json").read_text())
    received = READERS[name](tmp_path)
    assert len(logged) == 2
    means = {key: [value for _, value in points] for key, points in received.scalars.items() if key.endswith(MEAN)}
    ((key, values),) = means.items()
    assert key == (MEAN if name == "dvclive" else f"train/{MEAN}")
    assert values == pytest.approx(logged)
    assert len(received.scalars["ratioscope/counts/tokens"]) == 2
    assert received.config is not None
    assert received.config["correction"]["upper"] == 1.2
    if name != "dvclive":
        assert received.histograms is not None
        assert [step for step, _ in received.histograms[TOKENS]] == [1, 2]


def test_importing_a_tracker_loads_no_client() -> None:
    """The modules import without their clients."""
    code = f"""
import sys
from tests.layers.tracker_readers import tracker
tracker("aim")
sys.exit(bool({set(READERS)!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0


def test_dvclive_reports_its_histogram_limit(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """DVCLive keeps one histogram per name, which is reported."""
    from ratioscope.trackers.base import RunContext

    made = tracker("dvclive")()
    made.open(RunContext(output_dir=tmp_path))
    made.connect()
    made.close()
    assert "newest window only" in caplog.text
