"""The distribution: built, installed, and run without the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"ratioscope": ROOT / "tracking", "ratioscope_integrations": ROOT / "integrations"}

USE = """
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import torch

import ratioscope as rs
import ratioscope_integrations

target = Path(sys.argv[1])
for package in (rs, ratioscope_integrations):
    folder = Path(package.__file__).parent
    assert folder.is_relative_to(target), folder
    assert (folder / "py.typed").is_file(), folder

assert rs.__version__ == version("ratioscope")
names = {entry.name for entry in entry_points(group="ratioscope.trackers")}
assert {"wandb", "mlflow", "tensorboard"} <= names, names

ones = torch.ones(2, 3, dtype=torch.bool)
metrics = rs.summarize(torch.full((2, 3), -1.0), torch.full((2, 3), -1.5), ones).metrics()
assert abs(metrics["ratioscope/token/raw/mean"] - 1.6487212) < 1e-6, metrics
"""

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(900)]


def run(*arguments: str, cwd: Path, target: Path | None = None) -> None:
    """Runs this Python on `arguments`; with `target`, has it import from there before anywhere else."""
    path = {} if target is None else {"PYTHONPATH": str(target)}
    done = subprocess.run(
        [sys.executable, "-P", *arguments], cwd=cwd, env={**os.environ, **path}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{arguments} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed into it, and nothing else."""
    target = tmp_path_factory.mktemp("site")
    (wheel,) = dist.glob("*.whl")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel), cwd=target)
    return target


def test_wheel_holds_exactly_the_two_packages(dist: Path) -> None:
    """The wheel has every module of both roots, their `py.typed`, and no other code."""
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        path.relative_to(root).as_posix()
        for package, root in PACKAGES.items()
        for path in (root / package).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert {name for name in names if name.endswith((".py", "py.typed"))} == sources
    assert {name.split("/")[0] for name in names} == set(PACKAGES)


def test_sdist_has_everything_for_its_tests(dist: Path) -> None:
    """The sdist has the sources, the tests, the license and the readme, and no file that git ignores."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "tests/project/test_wheel.py",
        "tracking/ratioscope/py.typed",
    } <= names
    assert not [name for name in names if name.startswith((".venv", "demo/", "runs/")) or "__pycache__" in name]


def test_installed_wheel_works_without_the_sources(installed: Path, tmp_path: Path) -> None:
    """Both packages import from the installed wheel, trackers are found, and a batch is summarized."""
    run("-c", USE, str(installed), cwd=tmp_path, target=installed)


def test_unit_tests_pass_on_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    """The fast tests pass on the installed wheel, in a copy of the project without its two source roots.

    The rules of the house are about those roots, so their tests stay out.
    """
    project = tmp_path / "project"
    left_behind = ("tracking", "integrations", ".*", "demo", "runs", "dist", "build", "wandb", "__pycache__")
    shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(*left_behind))
    fast = "not (slow or distributed or trackers or trl or vllm or wheel)"
    house = ("--ignore", "tests/project/test_house.py")
    run("-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *house, "-m", fast, cwd=project, target=installed)
