"""A third-party tracker, installed as its own package, passes the checks and receives a training."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "third_party_tracker"
MEAN = "sampling/raw_importance_sampling_ratio/mean"

TRAIN = """
import json, sys
from pathlib import Path
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.support.fake_engine import make_trainer

trainer = make_trainer(Path("out"), report_to="none")
trainer.add_callback(RatioscopeCallback(trainer, report_to="jsonl"))
trainer.train()
print(json.dumps([row["MEAN"] for row in trainer.state.log_history if "MEAN" in row]))
"""

pytestmark = [pytest.mark.slow, pytest.mark.wheel, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command with this project's sources on the path; its output."""
    sources = [ROOT / "tracking", ROOT / "integrations", ROOT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    assert "reported once" not in done.stderr, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment over this one, with the example installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "below.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", EXAMPLE, cwd=folder)
    return python


def test_it_passes_the_checks_from_its_own_tests(python: Path, tmp_path: Path) -> None:
    """The example's own test file, which is the conformance kit, passes on the installed package."""
    test = tmp_path / "test_it.py"
    test.write_text((EXAMPLE / "test_ratioscope_jsonl.py").read_text())
    output = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", test, cwd=tmp_path)
    assert "7 passed" in output, output


@pytest.mark.trl
def test_it_receives_a_training_by_its_name(python: Path, tmp_path: Path) -> None:
    """`report_to="jsonl"` finds the installed tracker, and a TRL training's mean ratios arrive in its file."""
    logged = json.loads(run(python, "-c", TRAIN.replace("MEAN", MEAN), cwd=tmp_path).splitlines()[-1])
    (file,) = tmp_path.rglob("ratioscope.jsonl")
    config, *windows = map(json.loads, file.read_text().splitlines())
    assert config["config"]["correction"]["upper"] == 1.2
    assert [window["step"] for window in windows] == [1, 2]
    assert [window["scalars"][MEAN] for window in windows] == logged
    assert all(sum(bins["counts"]) > 0 for window in windows for bins in window["histograms"].values())
