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

import ratioscope as rs
from ratioscope.testing.comparison import Received, compare, has, require
from ratioscope.trackers.adaptor import TrackerLike, as_tracker
from ratioscope.trackers.base import RunContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from torch import Tensor

    from ratioscope.trackers.base import Row, Tracker

SECRET = "hf_" + "Qv7x2Lr9TkPz4WmB8sNdYc6EgJh3Fa1U"
"""Secret in the config of the checks' recorder; it must not reach the backend."""

HOSTILE = ("a b", "ä/ß", "per%cent", "../up", "/root", "a//b", "a:b", "x" * 300, "quote'\"", "new\nline", "p\\q", ".")
"""Names that some backend refuses. A tracker may change them, but all values must arrive."""

FLOAT32_MAX = 3.4e38
"""Largest magnitude that a backend which stores float32 can hold."""


__all__ = [
    "CHECKS",
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
    sent = _record(make(), folder, steps=(3, 7), evaluation=7)
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
    sent = _record(make(), folder, steps=(1,), corrupt=True)
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
    row = replace(_rows((4,))[0], scalars=scalars, logs={"loss": -2.5})
    tracker = _drive(as_tracker(make()), folder, [row])
    tracker.close()
    points = [point for series in read_back(folder).scalars.values() for point in series]
    missing = [name for name, value in scalars.items() if not has(points, 4, value)]
    require(not missing, f"values did not arrive, or not at their step, of the names {missing}")
    require(has(points, 4, -2.5), "the trainer's own log, row.logs, did not arrive")


def check_ends(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Checks that ``where`` returns one line and that closing twice loses no row."""
    rows = _rows((1, 2))
    tracker = _drive(as_tracker(make()), folder, rows)
    _one_line(tracker)
    tracker.close()
    tracker.close()
    _one_line(tracker)
    compare(rows, read_back(folder))


def check_repeats(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Checks that ``write_many``, if overridden, may be given the same rows twice."""
    tracker = as_tracker(make())
    if not tracker.takes_batches:
        return
    rows = _rows((1, 2, 3))
    _drive(tracker, folder, [])
    tracker.write_many(rows[:2])
    tracker.write_many(rows)
    tracker.close()
    compare(rows, read_back(folder), repeats=True)


def check_continues(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Checks that a tracker with an ``identity`` continues the run of an earlier process, and each row arrives once."""
    first = as_tracker(make())
    sent = _record(first, folder, steps=(1, 2))
    if not first.identity:
        return
    sent += _record(make(), folder, steps=(3,))
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


def _record(
    tracker: TrackerLike, folder: Path, *, steps: Iterable[int], evaluation: int | None = None, corrupt: bool = False
) -> list[Row]:
    """Records windows with a recorder and returns the rows that its trackers receive."""
    import torch

    memory = rs.MemoryTracker()
    recorder = rs.Recorder(
        report_to=[memory, tracker],
        correction=rs.Correction("token", "truncate", upper=1.2),
        config={"api_key": SECRET},
        output_dir=folder,
        run_name="conformance",
        close_timeout=60.0,
    )
    windows = [(step, "train") for step in steps] + ([] if evaluation is None else [(evaluation, "eval")])
    for step, split in windows:
        train, rollout = _batch(step, corrupt=corrupt)
        recorder.observe(train, rollout, torch.ones(6, 9, dtype=torch.bool), split=split)
        recorder.flush(step=step, split=split)
    recorder.close()
    failed = {kind: count for kind, count in recorder.incidents.counts.items() if "failed" in kind or ":" in kind}
    require(not failed, f"the recorder met failures: {failed}")
    return memory.rows


def _batch(seed: int, *, corrupt: bool) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities ``(6, 9)`` of trainer and rollout; if ``corrupt``, one row has invalid values."""
    import torch

    random = torch.Generator().manual_seed(seed)
    rollout = -torch.rand(6, 9, generator=random) - 0.1
    train = rollout + 0.3 * torch.randn(6, 9, generator=random)
    if corrupt:
        rollout[0] = torch.tensor([-1.0, math.nan, -math.inf, -1000.0, 0.5, -1.0, -1.0, -1.0, -1.0])
        train[0, 3] = -0.1
    return train, rollout


def _rows(steps: tuple[int, ...]) -> list[Row]:
    """Makes rows without a journal."""
    import torch

    memory = rs.MemoryTracker()
    with rs.Recorder(report_to=[memory], correction=rs.Correction("token", "truncate", upper=1.2)) as recorder:
        for step in steps:
            logps = -torch.rand(4, 8, generator=torch.Generator().manual_seed(step)) - 0.1
            recorder.observe(logps, logps - 0.01 * step, torch.ones(4, 8, dtype=torch.bool))
            recorder.flush(step=step)
    return memory.rows


def _drive(tracker: Tracker, folder: Path, rows: Iterable[Row]) -> Tracker:
    """Opens a new run and writes rows."""
    config = {"correction": {"upper": 1.2}}
    opened = tracker.open(RunContext(config=config, output_dir=folder, run_name="conformance", close_timeout=60.0))
    require(opened is True, f"open() returned {opened!r} without a reporter to wait for; expected True")
    identity = tracker.connect() or {}
    texts = all(isinstance(part, str) for pair in identity.items() for part in pair)
    require(texts, f"connect() returned {identity!r}; expected a mapping of texts")
    for row in rows:
        tracker.write(row)
    return tracker
