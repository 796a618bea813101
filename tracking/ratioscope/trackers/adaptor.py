"""Adaptor for trackers that have the members of ``Tracker`` without inheriting it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ratioscope.trackers.base import Tracker

if TYPE_CHECKING:
    from ratioscope.trackers.base import Row, RunContext


@runtime_checkable
class TrackerLike(Protocol):
    """Members that an object needs to serve as a tracker. To inherit :class:`Tracker` is the better way."""

    @property
    def name(self) -> str:
        """The name in ``report_to``."""
        ...

    @property
    def background(self) -> bool:
        """True if ``write`` and ``close`` may wait."""
        ...

    def open(self, run: RunContext) -> bool:
        """As :meth:`Tracker.open`."""
        ...

    def write(self, row: Row) -> None:
        """As :meth:`Tracker.write`."""
        ...

    def close(self) -> None:
        """As :meth:`Tracker.close`."""
        ...

    def where(self) -> str:
        """As :meth:`Tracker.where`."""
        ...


_MEMBERS = frozenset(name for name in vars(Tracker) if not name.startswith("_")) - {"takes_alerts", "takes_batches"}


def as_tracker(tracker: TrackerLike) -> Tracker:
    """Returns the tracker itself if it inherits :class:`Tracker`, else an adaptor that forwards to it.

    Only members that the object has when it is wrapped are forwarded; the defaults of :class:`Tracker` serve for the
    others.
    """
    if isinstance(tracker, Tracker):
        return tracker
    present = {name for name in (*_MEMBERS, "name") if hasattr(tracker, name)}
    members: dict[str, Any] = {name: _forwarded(tracker, name) for name in present}
    kind: type[Tracker] = type(type(tracker).__name__, (Tracker,), members | {"counts_rows": "received" in present})
    return kind()


def _forwarded(tracker: object, name: str) -> property:
    # Read at each use: a tracker may assign attributes such as `identity` later, and its methods may be replaced.
    return property(lambda _: getattr(tracker, name))
