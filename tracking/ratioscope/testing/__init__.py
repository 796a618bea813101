"""Conformance checks for trackers, for any test runner.

    @pytest.mark.parametrize("check", ratioscope.testing.CHECKS)
    def test_conforms(check, tmp_path):
        check(MyTracker, read_back, tmp_path)

``read_back`` reads the contents of one run from the backend, not from the tracker. ``check_tracker`` runs all checks.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ratioscope.testing.comparison import Received, compare, has, require
from ratioscope.testing.runs import SECRET, drive, record, rows
from ratioscope.trackers.adaptor import TrackerLike, as_tracker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


HOSTILE = ("a b", "ä/ß", "per%cent", "../up", "/root", "a//b", "a:b", "x" * 300, "quote'\"", "new\nline", "p\\q", ".")
"""Names that some backend refuses. A tracker may change them, but all values must arrive."""

FLOAT32_MAX = 3.4e38
"""Largest magnitude that a backend which stores float32 can hold."""


__all__ = [
    "CHECKS",
    "SECRET",
    "Received",
    "check_continues",
    "check_ends",
    "check_members",
    "check_names",
    "check_only_finite",
    "check_receives",
    "check_repeats",
    "check_tracker",
]

if TYPE_CHECKING:
    Make = Callable[[], TrackerLike]
    ReadBack = Callable[[Path], Received]
    Check = Callable[[Make, ReadBack, Path], None]


def check_members(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Checks that a tracker has all members and a name, and that ``where`` and ``close`` work before it has a run.

    Args:
        make: makes a new tracker, as the entry point's class does.
        read_back: reads the run of a folder from the backend.
        folder: an empty folder.

    Raises:
        AssertionError: if the tracker does not conform, as in all other checks.
    """
    del read_back, folder
    tracker = make()
    require(isinstance(tracker, TrackerLike), f"{tracker!r} lacks a member of ratioscope.Tracker")
    require(bool(tracker.name) and tracker.name == tracker.name.strip(), f"its name is {tracker.name!r}")
    require(isinstance(tracker.background, bool), f"background is {tracker.background!r}; expected a bool")
    require(make() is not tracker, "two calls returned the same tracker; each run needs its own")
    _one_line(tracker)
    tracker.close()


def check_receives(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Checks that scalars, histograms and config arrive once, with their steps, evaluations under ``eval/``."""
    sent = record(make(), folder, steps=(3, 7), evaluation=7)
    received = read_back(folder)
    compare(sent, received)
    if received.config is not None:
        got = received.config.get("correction", {}).get("upper")
        require(got == 1.2, f"the config arrived with correction.upper={got!r}; expected 1.2")
        require(SECRET not in json.dumps(received.config, default=str), "a secret arrived with the config")


def check_only_finite(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Checks that only finite values arrive of a batch with NaN, infinite and overflowing ratios.

    A backend that stores float32 may omit values that float32 cannot hold.
    """
    sent = record(make(), folder, steps=(1,), corrupt=True)
    received = read_back(folder)
    small = [{key: value for key, value in row.scalars.items() if abs(value) < FLOAT32_MAX} for row in sent]
    compare([replace(row, scalars=scalars) for row, scalars in zip(sent, small, strict=True)], received)
    wrong = sorted(
        key
        for key, points in received.scalars.items()
        for _, value in points
        if value is None or not math.isfinite(value)
    )
    require(not wrong, f"values that are not finite arrived: {wrong[:5]}")


def check_names(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Checks that all values arrive, whatever their names are, and the trainer's own log too."""
    scalars = {name: 0.5 + index for index, name in enumerate(HOSTILE)}
    row = replace(rows((4,))[0], scalars=scalars, logs={"loss": -2.5})
    tracker = drive(as_tracker(make()), folder, [row])
    tracker.close()
    points = [point for series in read_back(folder).scalars.values() for point in series]
    missing = [name for name, value in scalars.items() if not has(points, 4, value)]
    require(not missing, f"values did not arrive, or not at their step, of the names {missing}")
    require(has(points, 4, -2.5), "the trainer's own log, row.logs, did not arrive")


def check_ends(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Checks that ``where`` returns one line and that closing twice loses no row."""
    sent = rows((1, 2))
    tracker = drive(as_tracker(make()), folder, sent)
    _one_line(tracker)
    tracker.close()
    tracker.close()
    _one_line(tracker)
    compare(sent, read_back(folder))


def check_repeats(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Checks that ``write_many``, if overridden, may be given the same rows twice."""
    tracker = as_tracker(make())
    if not tracker.takes_batches:
        return
    sent = rows((1, 2, 3))
    drive(tracker, folder, [])
    tracker.write_many(sent[:2])
    tracker.write_many(sent)
    tracker.close()
    compare(sent, read_back(folder), repeats=True)


def check_continues(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Checks that a tracker with an ``identity`` continues the run of an earlier process, and each row arrives once."""
    first = as_tracker(make())
    sent = record(first, folder, steps=(1, 2))
    if not first.identity:
        return
    sent += record(make(), folder, steps=(3,))
    compare(sent, read_back(folder))


CHECKS: tuple[Check, ...] = (
    check_members,
    check_receives,
    check_only_finite,
    check_names,
    check_ends,
    check_repeats,
    check_continues,
)
"""All checks. Each takes a factory, a reader, and an empty folder that no other check uses."""


def check_tracker(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Runs all checks, each in its own folder, and reports all faults together.

    Args:
        make: makes a new tracker, as the entry point's class does.
        read_back: reads a run from the backend, given the ``output_dir`` of its ``RunContext``.
        folder: parent of the runs' folders.

    Raises:
        AssertionError: if the tracker does not conform.
    """
    wrong: list[str] = []
    for check in CHECKS:
        run_folder = folder / check.__name__
        run_folder.mkdir(parents=True)
        try:
            check(make, read_back, run_folder)
        except Exception as error:
            wrong.append(f"{check.__name__}: {type(error).__name__}: {error}")
    require(not wrong, "\n".join(["the tracker does not conform:", *wrong]))


def _one_line(tracker: TrackerLike) -> None:
    text = tracker.where()
    require(bool(text) and "\n" not in text, f"where() returned {text!r}; expected one line")
