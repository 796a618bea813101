"""Makes trackers from ``report_to``. Errors are raised at set-up, so that no typo or missing package costs a run."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ratioscope.trackers.adaptor import TrackerLike, as_tracker

if TYPE_CHECKING:
    from ratioscope.trackers.base import Tracker

GROUP = "ratioscope.trackers"
"""Entry-point group: a name as in ``report_to`` -> a subclass of ``Tracker`` that is called without arguments."""

ReportTo = str | TrackerLike | Sequence[str | TrackerLike] | None
"""Names of trackers, tracker objects, ``"all"`` for each installed one, ``"none"`` or None for none."""


def names() -> list[str]:
    """Returns the name of each tracker that has an entry point, installed or not."""
    return sorted(entry_points(group=GROUP).names)


def resolve(report_to: ReportTo) -> list[Tracker]:
    """Makes the trackers that ``report_to`` asks for, each one once.

    Raises:
        ValueError: if a name is unknown.
        ImportError: if a named tracker's package is missing.
        TypeError: if an entry is neither a name nor a tracker.
    """
    entries = [report_to] if isinstance(report_to, str) or not isinstance(report_to, Sequence) else list(report_to)
    trackers: list[Tracker] = []
    for index, entry in enumerate(entries):
        if isinstance(entry, str):
            known = {tracker.name for tracker in trackers}
            trackers += [tracker for tracker in _named(entry) if tracker.name not in known]
        elif entry is not None and not any(entry is earlier for earlier in entries[:index]):
            trackers.append(as_tracker(_checked(entry)))
    return trackers


def _named(name: str) -> list[Tracker]:
    if name == "none":
        return []
    if name == "all":
        return [as_tracker(made()) for name in names() if _installed(made := _load(name))]
    if name not in names():
        close = difflib.get_close_matches(name.lower(), names(), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        hint += ' Several names go in a list, as in ["wandb", "mlflow"].' if "," in name else ""
        msg = f"got report_to={name!r}; expected one of {', '.join(map(repr, names()))}, 'all' or 'none'.{hint}"
        raise ValueError(msg)
    make = _load(name)
    if not _installed(make):
        msg = f'report_to names {name!r}, but its package is not installed; run: pip install "ratioscope[{name}]"'
        raise ImportError(msg)
    return [as_tracker(make())]


def _load(name: str) -> Any:
    (entry,) = tuple(entry_points(group=GROUP, name=name))[:1]
    return entry.load()


def _installed(make: Any) -> bool:
    # An entry point may name a class that does not inherit Tracker and has no `package`.
    return find_spec(getattr(make, "package", "") or make.name) is not None


def _checked(tracker: object) -> TrackerLike:
    if isinstance(tracker, type) or not isinstance(tracker, TrackerLike):
        msg = f"got {tracker!r} in report_to; expected a name or an object with name, background, open, write, close "
        msg += "and where, as every subclass of ratioscope.Tracker has them"
        raise TypeError(msg)
    return tracker
