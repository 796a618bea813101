"""Points of curves as a tracker keeps them, in order and without those that a resumed training wrote again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.runs.timeline import Curve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SPLITS = {"train": "", "eval": "eval/"}
"""Prefix of a split's keys."""

COUNT = "ratioscope/counts/tokens"
"""A statistic that every window has, and that no trainer reports by itself."""

Point = tuple[int, int, float]
"""Step, milliseconds since the epoch, and value."""


def curves(points: Mapping[str, Sequence[Point]]) -> dict[str, Curve]:
    """What is left of the points of a run once each part of it that was trained again has superseded the first try.

    A training that goes on from a checkpoint writes steps again. Whatever was written before the first of them, for
    that step or a later one, no longer belongs to the run, whether or not it was written again. Of several points at
    one step the newest counts. A point that the trainer logged itself gets the time of its window.

    Args:
        points: by key, in any order.
    """
    own = {prefix: points.get(prefix + COUNT) for prefix in SPLITS.values()}
    train = own[""] or max((points[key] for key in points if not key.startswith("eval/")), key=len, default=())
    restarts = _restarts(train)
    times = {prefix: {step: time for step, time, _ in _live(known or (), restarts)} for prefix, known in own.items()}
    kept: dict[str, Curve] = {}
    for key, known in points.items():
        at = times["eval/" if key.startswith("eval/") else ""]
        curve = Curve()
        for step, time, value in _live(known, restarts):
            curve.add(step, at.get(step, time), value)
        if curve.steps:
            kept[key] = curve
    return kept


def count_windows(found: Mapping[str, Curve]) -> dict[str, int]:
    """How many windows of each split curves are of: those that count tokens, else the steps that have any value."""
    counted = {split: found.get(f"{prefix}{COUNT}") for split, prefix in SPLITS.items()}
    windows = {split: len(curve.steps) for split, curve in counted.items() if curve}
    if windows:
        return windows
    steps: dict[str, set[int]] = {"train": set(), "eval": set()}
    for key, curve in found.items():
        steps["eval" if key.startswith("eval/") else "train"].update(curve.steps)
    return {split: len(known) for split, known in steps.items() if known}


def _restarts(points: Iterable[Point]) -> list[tuple[int, int]]:
    """Step and time of each point that was written after one of the same or a later step."""
    restarts: list[tuple[int, int]] = []
    last: int | None = None
    for step, time, _ in sorted(points, key=lambda point: (point[1], point[0])):
        if last is not None and step <= last:
            restarts.append((step, time))
        last = step
    return restarts


def _live(points: Iterable[Point], restarts: Sequence[tuple[int, int]]) -> list[Point]:
    """The points that no restart has superseded, the newest of each step, in the order of the steps."""
    newest: dict[int, Point] = {}
    for point in sorted(points, key=lambda point: point[1]):
        step, time, _ = point
        if not any(step >= first and time < since for first, since in restarts):
            newest[step] = point
    return [newest[step] for step in sorted(newest)]
