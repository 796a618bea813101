"""Cost and names of `import ratioscope`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import ratioscope

HEAVY = {"accelerate", "mlflow", "numpy", "tensorboard", "torch", "transformers", "trl", "vllm", "wandb"}

PROBE = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
import ratioscope
print(json.dumps({"seconds": time.perf_counter() - start, "loaded": sorted(set(sys.modules) - before)}))
"""


class Import(NamedTuple):
    """One import of ratioscope, in a new process."""

    seconds: float
    loaded: set[str]


def import_once() -> Import:
    """Imports ratioscope in a new process, from the same folder as here."""
    root = str(Path(ratioscope.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout)
    return Import(report["seconds"], set(report["loaded"]))


def test_import_loads_neither_torch_nor_a_tracker() -> None:
    """Importing ratioscope loads no heavy package."""
    assert HEAVY & import_once().loaded == set()


def test_import_takes_under_100_ms() -> None:
    """Importing ratioscope takes less than 100 ms in the best of five tries."""
    assert min(import_once().seconds for _ in range(5)) < 0.1


def test_every_listed_name_exists() -> None:
    """Every name in `__all__` resolves, is listed by `dir` and is unique."""
    names = ratioscope.__all__
    assert len(names) == len(set(names))
    assert [name for name in names if getattr(ratioscope, name, None) is None] == []
    assert set(names) <= set(dir(ratioscope))


PUBLIC_FUNCTIONS = """
import ratioscope as rs
functions = [rs.diagnose, rs.read_run, rs.sweep_view, rs.sync]
import ratioscope.delivery.sync, ratioscope.diagnosis, ratioscope.runs.read, ratioscope.sweep.outcome
assert functions == [rs.diagnose, rs.read_run, rs.sweep_view, rs.sync]
assert functions[2] is ratioscope.sweep.outcome.sweep_view
"""


@pytest.mark.parametrize("first", ["", "import ratioscope.sweep.outcome, ratioscope.delivery.sync"])
def test_public_functions_are_not_replaced_by_packages(first: str) -> None:
    """Functions for finished runs stay the same before and after an import of their modules."""
    root = str(Path(ratioscope.__file__).parent.parent)
    code = f"{first}\n{PUBLIC_FUNCTIONS}"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, check=True)


def test_no_public_name_is_a_package() -> None:
    """No public name is that of a module or package of ratioscope, whose import would replace the name."""
    modules = {path.stem for path in Path(ratioscope.__file__).parent.iterdir()}
    assert not modules & set(ratioscope.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that the package does not have raises an AttributeError that names it."""
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ratioscope.no_such_name
