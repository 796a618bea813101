"""Runs the checks of `make test`, and names in its last lines whatever was left out.

    python scripts/check.py            everything
    python scripts/check.py lint unit  some stages

A stage that fails does not stop the following ones. With `CI=true` nothing may be left out: a skipped test fails the
run. Standard library only; runs in the environment that scripts/setup.sh made.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
SLOW = "slow or distributed or trackers or trl or vllm or wheel"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class Outcome:
    """Result of one stage."""

    passed: bool
    left_out: tuple[str, ...] = ()


def tool(module: str, *arguments: str, python: str = sys.executable) -> bool:
    """Runs a module of this environment, or of another, and returns whether it succeeded."""
    print(f"$ {module} {' '.join(arguments)}", flush=True)
    return subprocess.run([python, "-m", module, *arguments], cwd=ROOT).returncode == 0


def program(*command: str) -> bool:
    """Runs a command in the project's root, and returns whether it succeeded."""
    print(f"$ {' '.join(command)}", flush=True)
    return subprocess.run(command, cwd=ROOT).returncode == 0


def lint() -> Outcome:
    """Style, types, who imports whom, sizes and docstrings."""
    results = [
        tool("ruff", "check", "."),
        tool("ruff", "format", "--check", "."),
        tool("mypy"),
        tool("pyright", "--pythonpath", sys.executable),
        program(str(Path(sys.executable).with_name("lint-imports"))),
        program(sys.executable, "scripts/house.py"),
    ]
    return Outcome(all(results))


def unit() -> Outcome:
    """The fast tests."""
    return run_pytest("-n", "2", "-m", f"not ({SLOW} or browser)")


def slow() -> Outcome:
    """Several processes, TRL, real trackers, real vLLM, the built wheel."""
    if LINUX:
        return run_pytest("-m", f"({SLOW}) and not browser")
    outcome = run_pytest("-m", f"({SLOW}) and not browser and not vllm")
    return Outcome(outcome.passed, (*outcome.left_out, f"tests with real vLLM: no CPU build for {sys.platform}"))


def browser() -> Outcome:
    """Pages in Chromium: reports, MLflow, trackio, TensorBoard."""
    if any(map(shutil.which, BROWSERS)) and shutil.which("chromedriver"):
        pictures = Path(os.environ.setdefault("RATIOSCOPE_SCREENSHOTS", str(ROOT / "build" / "screenshots")))
        pictures.mkdir(parents=True, exist_ok=True)
        print(f"screenshots: {pictures}", flush=True)
        return run_pytest("-m", "browser")
    return Outcome(True, ("tests in a browser: no Chromium with chromedriver on the PATH",))


def other_versions() -> Outcome:
    """Other versions of TRL, other frameworks and trackers, each in an environment that lies over this one."""
    passed, left_out = True, list[str]()
    for name in layers.names():
        os.environ[layers.VARIABLE] = name
        try:
            outcome = run_pytest(layers.tests(name), python=str(layers.make(name)))
        except subprocess.CalledProcessError as error:
            print(f"layer {name}: {error}", flush=True)
            outcome = Outcome(False)
        finally:
            del os.environ[layers.VARIABLE]
        passed &= outcome.passed
        left_out.extend(outcome.left_out)
    return Outcome(passed, tuple(left_out))


def run_pytest(*arguments: str, python: str = sys.executable) -> Outcome:
    """Runs pytest and reads the skipped tests from its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        passed = tool("pytest", *arguments, f"--junitxml={report}", python=python)
        return Outcome(passed, tuple(skipped(report)) if report.exists() else ())


def skipped(report: Path) -> Iterator[str]:
    """Yields one line for each skipped test of a JUnit report."""
    for case in ET.parse(report).iter("testcase"):
        for reason in case.iter("skipped"):
            if reason.get("type") != "pytest.xfail":
                yield f"{case.get('classname')}::{case.get('name')}: {reason.get('message')}"


STAGES: dict[str, Callable[[], Outcome]] = {
    "lint": lint,
    "unit": unit,
    "slow": slow,
    "layers": other_versions,
    "browser": browser,
}


def main() -> int:
    """Runs the stages named on the command line and prints a summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stages", nargs="*", metavar="stage", help=f"any of: {', '.join(STAGES)} (default: all)")
    names = parser.parse_args().stages or list(STAGES)
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"unknown stage {unknown[0]!r}: expected any of {', '.join(STAGES)}")

    strict = os.environ.get("CI", "").lower() in ("1", "true")
    failed, left_out, lines = False, list[str](), list[str]()
    for name in names:
        print(f"\n== {name}: {STAGES[name].__doc__}", flush=True)
        start = time.monotonic()
        outcome = STAGES[name]()
        failed |= not outcome.passed
        left_out.extend(outcome.left_out)
        lines.append(f"{name:7} {'passed' if outcome.passed else 'FAILED'} in {time.monotonic() - start:.0f} s")

    print("\n== summary")
    print("\n".join(lines))
    print("\n".join(["left out:", *(f"  {line}" for line in left_out)]) if left_out else "left out: nothing")
    if strict and left_out:
        print("FAILED: CI=true, and with it nothing may be left out")
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
