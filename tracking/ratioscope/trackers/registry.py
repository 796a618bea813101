"""From ``report_to`` to trackers: strict at set-up, so that a typo or a missing package never costs a run later."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from ratioscope.trackers.base import Tracker

GROUP = "ratioscope.trackers"
"""Entry-point group: a name as in ``report_to`` -> a class that is a :class:`Tracker` without arguments."""

ReportTo = str | Tracker | Sequence[str | Tracker] | None
"""Names of trackers, trackers themselves, ``"all"`` for each installed one, ``"none"`` or None for none."""


def names() -> list[str]:
    """Every tracker that has an entry point, installed or not."""
    return sorted(entry_points(group=GROUP).names)


def resolve(report_to: ReportTo) -> list[Tracker]:
    """Makes the trackers that ``report_to`` asks for.

    Raises:
        ValueError: if a name is unknown.
        ImportError: if a named tracker's package is missing.
    """
    asked = [report_to] if isinstance(report_to, str) or not isinstance(report_to, Sequence) else list(report_to)
    trackers: list[Tracker] = []
    for entry in asked:
        if isinstance(entry, str):
            known = {tracker.name for tracker in trackers}
            trackers += [tracker for tracker in _named(entry) if tracker.name not in known]
        elif entry is not None and not any(entry is tracker for tracker in trackers):
            trackers.append(_checked(entry))
    return trackers


def _named(name: str) -> list[Tracker]:
    if name == "none":
        return []
    if name == "all":
        return [tracker() for each in names() if _installed(tracker := _load(each))]
    if name not in names():
        close = difflib.get_close_matches(name.lower(), names(), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        hint += ' Several names go in a list, as in ["wandb", "mlflow"].' if "," in name else ""
        msg = f"got report_to={name!r}; expected one of {', '.join(map(repr, names()))}, 'all' or 'none'.{hint}"
        raise ValueError(msg)
    tracker = _load(name)
    if not _installed(tracker):
        msg = f'report_to names {name!r}, but its package is not installed; run: pip install "ratioscope[{name}]"'
        raise ImportError(msg)
    return [tracker()]


def _load(name: str) -> Any:
    (entry,) = tuple(entry_points(group=GROUP, name=name))[:1]
    return entry.load()


def _installed(tracker: Any) -> bool:
    return find_spec(getattr(tracker, "package", tracker.name)) is not None


def _checked(tracker: object) -> Tracker:
    if isinstance(tracker, type) or not isinstance(tracker, Tracker):
        msg = f"got {tracker!r} in report_to; expected a name or an object with name, background, open, write, close "
        msg += "and where, as ratioscope.MemoryTracker has them"
        raise TypeError(msg)
    return tracker
