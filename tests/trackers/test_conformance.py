"""The conformance kit: every built-in tracker passes it, and it detects faults of a tracker."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import ratioscope as rs
from ratioscope import testing
from ratioscope.testing import Received
from tests.support.conformance_readers import READERS
from tests.support.local_server import environment

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]


class Store:
    """A correct tracker whose backend is a dict of the class, by folder; each subclass adds a fault."""

    name = "store"
    background = False
    runs: ClassVar[dict[Path, list[Any]]] = {}
    configs: ClassVar[dict[Path, Any]] = {}

    def __init__(self) -> None:
        self._place: Path | None = None
        self.identity: dict[str, str] | None = None

    def open(self, run: rs.RunContext) -> bool:
        """Takes the folder for the run's id."""
        assert run.output_dir is not None
        self._place = run.output_dir
        self.identity = self.connect()
        self.runs.setdefault(self._place, [])
        self.configs[self._place] = run.config
        return True

    def connect(self) -> dict[str, str]:
        """Uses the folder as the run's id."""
        return {"run_id": str(self._place)}

    def write(self, row: rs.Row) -> None:
        """Keeps the row unless it is there."""
        assert self._place is not None
        if row.time not in [each.time for each in self.runs[self._place]]:
            self.runs[self._place].append(row)

    def write_many(self, rows: list[rs.Row]) -> None:
        """Writes the rows one by one."""
        for row in rows:
            self.write(row)

    def close(self) -> None:
        """Does nothing."""

    def where(self) -> str:
        """The folder."""
        return f"in memory: {self._place}"


def read_back(folder: Path) -> Received:
    """Reads the contents of the dict."""
    scalars, histograms = defaultdict(list), defaultdict(list)
    for row in Store.runs[folder]:
        for key, value in {**row.scalars, **row.logs}.items():
            scalars[key].append((row.step, value))
        for key, bins in row.histograms.items():
            histograms[key].append((row.step, bins.counts.tolist()))
    return Received(scalars, histograms, Store.configs[folder])


def faulty(change: Callable[[rs.Row], rs.Row | None]) -> type[Store]:
    """A store that changes rows; None drops one."""

    class Faulty(Store):
        def write(self, row: rs.Row) -> None:
            changed = change(row)
            if changed is not None:
                super().write(changed)

    return Faulty


class Doubling(Store):
    """Stores every repetition of a row."""

    def write(self, row: rs.Row) -> None:
        """Appends the row twice."""
        assert self._place is not None
        self.runs[self._place].append(row)
        self.runs[self._place].append(row)


class Moving(Store):
    """Gives a repeated row another step."""

    def write(self, row: rs.Row) -> None:
        """Moves a row if its step is taken."""
        assert self._place is not None
        taken = [each.step for each in self.runs[self._place]]
        self.runs[self._place].append(replace(row, step=max(taken) + 1) if row.step in taken else row)


class Forgetful(Store):
    """Starts a new run instead of continuing one."""

    def open(self, run: rs.RunContext) -> bool:
        """Empties the run."""
        assert run.output_dir is not None
        self.runs.pop(run.output_dir, None)
        return super().open(run)


class ClosedOnce(Store):
    """Fails when it is closed again."""

    def close(self) -> None:
        """Deletes the run, which fails the second time."""
        del self._place
        self._place = None

    def where(self) -> str:
        """Returns two lines."""
        return "here\nor there"


def without(row: rs.Row, part: str) -> rs.Row:
    """The row without its histograms of one kind."""
    return replace(row, histograms={key: bins for key, bins in row.histograms.items() if part not in key})


def unprefixed(row: rs.Row) -> rs.Row:
    """The row without the split's prefix."""
    return replace(row, scalars={key.removeprefix("eval/"): value for key, value in row.scalars.items()})


def halved(row: rs.Row) -> rs.Row:
    """The row with half of the counts."""
    bins = {key: replace(bins, counts=bins.counts // 2) for key, bins in row.histograms.items()}
    return replace(row, histograms=bins)


def known_names(row: rs.Row) -> rs.Row:
    """The row without names that are longer than 250 characters."""
    return replace(row, scalars={key: value for key, value in row.scalars.items() if len(key) < 250})


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: str(check.__name__))
def test_a_correct_tracker_passes(check: testing.Check, tmp_path: Path) -> None:
    """A tracker that follows the protocol passes each check."""
    check(Store, read_back, tmp_path)


@pytest.mark.parametrize(
    ("make", "check", "message"),
    [
        (faulty(lambda row: replace(row, step=row.step + 1)), testing.check_receives, "at another step"),
        (faulty(lambda row: row if row.split == "train" else None), testing.check_receives, "arrived 0 times"),
        (faulty(unprefixed), testing.check_receives, "arrived 3 times; expected 2"),
        (faulty(lambda row: without(row, "sequence")), testing.check_receives, "did not arrive"),
        (faulty(halved), testing.check_receives, "sums to"),
        (faulty(known_names), testing.check_names, "xxx"),
        (faulty(lambda row: replace(row, logs={})), testing.check_names, "trainer's own log"),
        (Moving, testing.check_repeats, "arrived 5 times; expected 3"),
        (Doubling, testing.check_receives, "arrived 4 times; expected 2"),
        (Forgetful, testing.check_continues, "arrived 1 times; expected 3"),
        (ClosedOnce, testing.check_ends, "expected one line"),
        (lambda: object(), testing.check_members, "lacks a member"),
    ],
)
def test_the_kit_finds_a_fault(make: Any, check: testing.Check, message: str, tmp_path: Path) -> None:
    """Each check reports its fault in a tracker."""
    with pytest.raises(AssertionError, match=message):
        check(make, read_back, tmp_path)


def test_a_value_that_is_not_finite_is_found(tmp_path: Path) -> None:
    """NaN in a backend fails the check."""

    def spoilt(folder: Path) -> Received:
        received = read_back(folder)
        return replace(received, scalars={**received.scalars, "more": [(1, float("nan"))]})

    with pytest.raises(AssertionError, match=r"not finite arrived: \['more'\]"):
        testing.check_only_finite(Store, spoilt, tmp_path)


def test_a_secret_is_found(tmp_path: Path) -> None:
    """A secret in the backend's config fails the check."""

    def leaking(folder: Path) -> Received:
        received = read_back(folder)
        assert testing.SECRET not in str(received.config)
        return replace(received, config={**(received.config or {}), "key": testing.SECRET})

    with pytest.raises(AssertionError, match="a secret arrived"):
        testing.check_receives(Store, leaking, tmp_path)


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    """Running all checks at once reports every fault, exceptions included."""

    def broken(folder: Path) -> Received:
        raise FileNotFoundError(folder)

    with pytest.raises(AssertionError, match=r"(?s)check_receives: FileNotFoundError.*check_names: FileNotFoundError"):
        testing.check_tracker(Store, broken, tmp_path)


def test_every_entry_point_names_its_tracker() -> None:
    """A name in `report_to` is the tracker's name, and an extra of that name exists."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, place in project["entry-points"]["ratioscope.trackers"].items():
        module, _, attribute = place.partition(":")
        tracker = getattr(importlib.import_module(module), attribute)()
        assert isinstance(tracker, rs.Tracker)
        assert tracker.name == name
        assert name.replace("_", "-") in project["optional-dependencies"]


@pytest.mark.trackers
@pytest.mark.parametrize("name", sorted(READERS))
def test_every_built_in_tracker_conforms(name: str, tmp_path: Path) -> None:
    """The kit passes on every real backend, read back from its storage."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "conformance_readers.py"), name, str(tmp_path / "runs")]
    done = subprocess.run(
        command,
        env=environment(tmp_path) | {"WANDB_MODE": "offline"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
