"""Checks that every tracker must pass, for any test runner.

    @pytest.mark.parametrize("check", ratioscope.testing.CHECKS)
    def test_conforms(check, tmp_path):
        check(MyTracker, read_back, tmp_path)

``read_back`` reads what one run has, from the backend and not from the tracker. ``check_tracker`` makes all checks at
once.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import ratioscope as rs
from ratioscope.trackers.base import RunContext, Tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from ratioscope.trackers.base import Row

SECRET = "hf_" + "Qv7x2Lr9TkPz4WmB8sNdYc6EgJh3Fa1U"
"""Stands in the config that the checks give a recorder, and must not arrive."""

HOSTILE = ("a b", "ä/ß", "per%cent", "../up", "/root", "a//b", "a:b", "x" * 300, "quote'\"", "new\nline", "p\\q", ".")
"""Names that some backend refuses; a tracker may change them, but each value must arrive."""

FLOAT32_MAX = 3.4e38
"""What a backend of float32 can hold."""


@dataclass(frozen=True)
class Received:
    """What a backend has of one run.

    Attributes:
        scalars: ``(step, value)`` by key, in any order.
        histograms: ``(step, counts)`` by key, the counts of the bins from left to right, empty ones with or without;
            None for a backend that shows no histogram.
        config: what stands under ``ratioscope``, nested; None for a backend that keeps none.
        regrouped: that the backend has bins of its own, so that only the counts' sum is that of ours.
    """

    scalars: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    histograms: Mapping[str, Sequence[tuple[int, Sequence[float]]]] | None = None
    config: Mapping[str, Any] | None = None
    regrouped: bool = False


if TYPE_CHECKING:
    Make = Callable[[], Tracker]
    ReadBack = Callable[[Path], Received]
    Check = Callable[[Make, ReadBack, Path], None]


def check_members(make: Make, read_back: ReadBack, folder: Path) -> None:
    """It is a tracker, it has a name, and before it has a run it can say so and be closed.

    Args:
        make: makes a new tracker, as the entry point's class does.
        read_back: reads what the run in a folder has received.
        folder: an empty folder.

    Raises:
        AssertionError: if the tracker does not conform; so does every check.
    """
    del read_back, folder
    tracker = make()
    _require(isinstance(tracker, Tracker), f"{tracker!r} lacks a member of ratioscope.Tracker")
    _require(bool(tracker.name) and tracker.name == tracker.name.strip(), f"its name is {tracker.name!r}")
    _require(isinstance(tracker.background, bool), f"background is {tracker.background!r}; expected a bool")
    _require(make() is not tracker, "two calls made one tracker; each run needs its own")
    _one_line(tracker)
    tracker.close()


def check_receives(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Scalars, histograms and config of a recorder arrive once, with their steps, evaluations under ``eval/``."""
    sent = _record(make(), folder, steps=(3, 7), evaluation=7)
    received = read_back(folder)
    _compare(sent, received)
    if received.config is not None:
        got = received.config.get("correction", {}).get("upper")
        _require(got == 1.2, f"the config arrived with correction.upper={got!r}; expected 1.2")
        _require(SECRET not in json.dumps(received.config, default=str), "a secret arrived with the config")


def check_only_finite(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Of a batch with NaN, infinite and overflowing ratios nothing arrives that is not finite.

    A value that float32 cannot hold may be left out, for a backend that stores float32.
    """
    sent = _record(make(), folder, steps=(1,), spoilt=True)
    received = read_back(folder)
    small = [{key: value for key, value in row.scalars.items() if abs(value) < FLOAT32_MAX} for row in sent]
    _compare([replace(row, scalars=scalars) for row, scalars in zip(sent, small, strict=True)], received)
    wrong = sorted(
        key
        for key, points in received.scalars.items()
        for _, value in points
        if value is None or not math.isfinite(value)
    )
    _require(not wrong, f"values that are not finite arrived: {wrong[:5]}")


def check_names(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Every value arrives, whatever its name is, and so does the trainer's own log."""
    scalars = {name: 0.5 + index for index, name in enumerate(HOSTILE)}
    row = replace(_rows((4,))[0], scalars=scalars, logs={"loss": -2.5})
    tracker = _drive(make(), folder, [row])
    tracker.close()
    points = [point for series in read_back(folder).scalars.values() for point in series]
    missing = [name for name, value in scalars.items() if not _has(points, 4, value)]
    _require(not missing, f"values did not arrive, or not at their step, of the names {missing}")
    _require(_has(points, 4, -2.5), "the trainer's own log, row.logs, did not arrive")


def check_ends(make: Make, read_back: ReadBack, folder: Path) -> None:
    """It says in one line where the run is, may be closed twice, and keeps what it has."""
    rows = _rows((1, 2))
    tracker = _drive(make(), folder, rows)
    _one_line(tracker)
    tracker.close()
    tracker.close()
    _one_line(tracker)
    _compare(rows, read_back(folder))


def check_repeats(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Where it takes rows together, the same rows a second time change nothing."""
    tracker = make()
    together: Any = getattr(tracker, "write_many", None)
    if together is None:
        return
    rows = _rows((1, 2, 3))
    _drive(tracker, folder, [])
    together(rows[:2])
    together(rows)
    tracker.close()
    _compare(rows, read_back(folder), repeats=True)


def check_continues(make: Make, read_back: ReadBack, folder: Path) -> None:
    """A tracker with an ``identity`` goes on with the run of the process before, and each row arrives once."""
    first = make()
    sent = _record(first, folder, steps=(1, 2))
    if not getattr(first, "identity", None):
        return
    sent += _record(make(), folder, steps=(3,))
    _compare(sent, read_back(folder))


CHECKS: tuple[Check, ...] = (
    check_members,
    check_receives,
    check_only_finite,
    check_names,
    check_ends,
    check_repeats,
    check_continues,
)
"""Every check; each takes a factory, a reader and an empty folder of its own."""


def check_tracker(make: Make, read_back: ReadBack, folder: Path) -> None:
    """Makes all checks, each in a folder of its own, and tells everything that is wrong.

    Args:
        make: makes a new tracker, as the entry point's class does.
        read_back: reads what the run in a folder has received: the ``output_dir`` of its ``RunContext``.
        folder: where the runs go.

    Raises:
        AssertionError: if the tracker does not conform.
    """
    wrong: list[str] = []
    for check in CHECKS:
        place = folder / check.__name__
        place.mkdir(parents=True)
        try:
            check(make, read_back, place)
        except Exception as error:
            wrong.append(f"{check.__name__}: {type(error).__name__}: {error}")
    _require(not wrong, "\n".join(["the tracker does not conform:", *wrong]))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _one_line(tracker: Tracker) -> None:
    place = tracker.where()
    _require(bool(place) and "\n" not in place, f"where() gave {place!r}; expected one line for a person")


def _record(
    tracker: Tracker, folder: Path, *, steps: Iterable[int], evaluation: int | None = None, spoilt: bool = False
) -> list[Row]:
    """Records windows as a training does, and returns the rows that trackers receive."""
    import torch

    memory: Any = rs.MemoryTracker()
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
        random = torch.Generator().manual_seed(step)
        rollout = -torch.rand(6, 9, generator=random) - 0.1
        train = rollout + 0.3 * torch.randn(6, 9, generator=random)
        if spoilt:
            rollout[0] = torch.tensor([-1.0, math.nan, -math.inf, -1000.0, 0.5, -1.0, -1.0, -1.0, -1.0])
            train[0, 3] = -0.1
        recorder.observe(train, rollout, torch.ones(6, 9, dtype=torch.bool), split=split)
        recorder.flush(step=step, split=split)
    recorder.close()
    failed = {kind: count for kind, count in recorder.incidents.counts.items() if "failed" in kind or ":" in kind}
    _require(not failed, f"the recorder met failures: {failed}")
    rows: list[Row] = memory.rows
    return rows


def _rows(steps: tuple[int, ...]) -> list[Row]:
    """Rows with a time of their own, without a journal."""
    import torch

    memory: Any = rs.MemoryTracker()
    with rs.Recorder(report_to=[memory], correction=rs.Correction("token", "truncate", upper=1.2)) as recorder:
        for step in steps:
            logps = -torch.rand(4, 8, generator=torch.Generator().manual_seed(step)) - 0.1
            recorder.observe(logps, logps - 0.01 * step, torch.ones(4, 8, dtype=torch.bool))
            recorder.flush(step=step)
    rows: list[Row] = memory.rows
    return rows


def _drive(tracker: Tracker, folder: Path, rows: Iterable[Row]) -> Tracker:
    """Opens a run of the tracker's own and writes rows."""
    config = {"correction": {"upper": 1.2}}
    opened = tracker.open(RunContext(config=config, output_dir=folder, run_name="conformance", patience=60.0))
    _require(opened is True, f"open() gave {opened!r} without a reporter to wait for; expected True")
    connect: Any = getattr(tracker, "connect", None)
    if connect is not None:
        identity = connect()
        _require(all(isinstance(part, str) for pair in identity.items() for part in pair), f"identity {identity!r}")
    for row in rows:
        tracker.write(row)
    return tracker


def _has(points: Iterable[tuple[int, float]], step: int, value: float) -> bool:
    return any(at == step and math.isclose(got, value, rel_tol=1e-5, abs_tol=1e-9) for at, got in points)


def _compare(sent: Sequence[Row], received: Received, *, repeats: bool = False) -> None:
    """Holds what arrived to what was sent; a point that came twice is one if ``repeats``."""
    expected = Counter(key for row in sent for key in row.scalars)
    for key, count in expected.items():
        points = received.scalars.get(key, ())
        got = len({step for step, _ in points}) if repeats else len(points)
        _require(got == count, f"{key} arrived {got} times; expected {count}")
    shown = received.histograms
    for row in sent:
        wrong = [key for key, value in row.scalars.items() if not _has(received.scalars[key], row.step, value)]
        _require(not wrong, f"of step {row.step} the values of {wrong[:5]} are others, or at another step")
        for key, bins in row.histograms.items() if shown is not None else ():
            found = [counts for step, counts in (shown or {}).get(key, ()) if step == row.step]
            _require(bool(found), f"the histogram {key} of step {row.step} did not arrive")
            total = sum(found[0])
            _require(total == bins.total, f"{key} of step {row.step} sums to {total}; expected {bins.total}")
            wanted = [count for count in bins.counts.tolist() if count]
            same = received.regrouped or all([n for n in counts if n] == wanted for counts in found)
            _require(same, f"the counts of {key} of step {row.step} are others than were sent")
            _require(repeats or len(found) == 1, f"the histogram {key} of step {row.step} arrived {len(found)} times")
