"""Curves of the points that a backend stores, without points that a resumed training superseded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.runs.timeline import Curve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SPLITS = {"train": "", "eval": "eval/"}
"""Prefix of a split's keys."""

COUNT = "ratioscope/counts/tokens"
"""A statistic that each window has and that no trainer reports."""

Point = tuple[int, int, float]
"""Step, milliseconds since the epoch, and value."""


def curves(points: Mapping[str, Sequence[Point]]) -> dict[str, Curve]:
    """Returns a run's curves without superseded points.

    A training that continues from a checkpoint repeats steps. Points of the first repeated step and of later ones that
    were written before the repetition no longer belong to the run, whether or not they were written again. Of several
    points at one step the newest counts. A point that the trainer logged itself gets the time of its window.

    Args:
        points: points by key, in any order.
    """
    own = {prefix: points.get(prefix + COUNT) for prefix in SPLITS.values()}
    train = own[""] or max((points[key] for key in points if not key.startswith("eval/")), key=len, default=())
    restarts = _restarts(train)
    times = {prefix: {step: time for step, time, _ in _live(series or (), restarts)} for prefix, series in own.items()}
    result: dict[str, Curve] = {}
    for key, series in points.items():
        window_times = times["eval/" if key.startswith("eval/") else ""]
        curve = Curve()
        for step, time, value in _live(series, restarts):
            curve.add(step, window_times.get(step, time), value)
        if curve.steps:
            result[key] = curve
    return result


def count_windows(known: Mapping[str, Curve]) -> dict[str, int]:
    """Counts the windows of each split by the curve of token counts, else by the steps that have any value."""
    counted = {split: known.get(f"{prefix}{COUNT}") for split, prefix in SPLITS.items()}
    windows = {split: len(curve.steps) for split, curve in counted.items() if curve}
    if windows:
        return windows
    steps: dict[str, set[int]] = {"train": set(), "eval": set()}
    for key, curve in known.items():
        steps["eval" if key.startswith("eval/") else "train"].update(curve.steps)
    return {split: len(numbers) for split, numbers in steps.items() if numbers}


def _restarts(points: Iterable[Point]) -> list[tuple[int, int]]:
    """Returns step and time of each point that was written after a point of the same or a later step."""
    restarts: list[tuple[int, int]] = []
    last: int | None = None
    for step, time, _ in sorted(points, key=lambda point: (point[1], point[0])):
        if last is not None and step <= last:
            restarts.append((step, time))
        last = step
    return restarts


def _live(points: Iterable[Point], restarts: Sequence[tuple[int, int]]) -> list[Point]:
    """Returns the newest point of each step, in the order of steps, without points that a restart superseded."""
    newest: dict[int, Point] = {}
    for point in sorted(points, key=lambda point: point[1]):
        step, time, _ = point
        if not any(step >= first and time < since for first, since in restarts):
            newest[step] = point
    return [newest[step] for step in sorted(newest)]
