"""Reading a run from wherever it is: a journal, or a tracker by its own address."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratioscope import histogram
from ratioscope.journal_reader import JournalReader
from ratioscope.timeline import Timeline
from ratioscope.trackers.base import prefix_of
from ratioscope.trackers.rows import RowMaker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratioscope.histogram import Bins

GROUP = "ratioscope.sources"
"""Entry-point group: what stands before ``:`` in an address -> a function from what follows to a :class:`Timeline`."""


def read(address: str | Path, *, exponents: Mapping[str, int] | None = None) -> Timeline:
    """Reads a run.

    Args:
        address: a run's output directory, its journal, ``mlflow:RUN_ID`` or ``wandb:ENTITY/PROJECT/RUN``.
        exponents: bin widths by level, to have those of another run; a tracker has only the bins that it was sent.

    Raises:
        FileNotFoundError: if there is no journal, and the address names no tracker either.
        JournalError: if the file is no journal, or of a newer version.
        ImportError: if the tracker's package is missing.
        LookupError: if the tracker has no such run.
    """
    kind = tracker_of(address)
    if kind is not None:
        load = next(iter(entry_points(group=GROUP, name=kind))).load()
        timeline: Timeline = load(str(address).partition(":")[2])
        return timeline
    return read_journal(Path(address), exponents=exponents)


def tracker_of(address: str | Path) -> str | None:
    """The tracker that an address names; None if it is a path."""
    kind, colon, _ = str(address).partition(":")
    return kind if colon and kind in names() and not Path(address).exists() else None


def names() -> list[str]:
    """Every kind of address that is not a path."""
    return sorted(entry_points(group=GROUP).names)


def read_journal(path: Path, *, exponents: Mapping[str, int] | None = None) -> Timeline:
    """Reads the live line of a journal, also while a training writes it.

    Raises:
        FileNotFoundError: if there is no journal.
        JournalError: if the file is no journal, or of a newer version.
    """
    loads = json_reader()
    rows = RowMaker(exponents=exponents)
    with JournalReader(path) as reader:
        folder = reader.path.resolve().parent.parent
        timeline = Timeline(name=folder.name, source=str(path), config=reader.config())
        for body in reader.first_bodies():
            _bins(loads(body), rows)  # the first records of all choose the widths, also where others took their place
        for body in reader.bodies():
            _add(timeline, loads(body), rows)
        timeline.events += [(event.step, event.line) for event in reader.events()]
        timeline.events.sort(key=lambda event: event[0])
    return timeline


def _add(timeline: Timeline, stored: Mapping[str, Any], rows: RowMaker) -> None:
    """Adds a stored record, without making tensors of all that it holds."""
    if not stored["scalars"] and not stored["events"]:
        return  # a log of the trainer's without a window
    prefix = prefix_of(stored["split"])
    scalars = {prefix + key: value for key, value in stored["scalars"].items() if key in rows.wanted}
    bins = _bins(stored, rows)
    timeline.add(stored["step"], stored["split"], stored["time"], scalars, bins, stored["events"])


def _bins(stored: Mapping[str, Any], rows: RowMaker) -> dict[str, Bins]:
    """Even bins of a stored record's histograms."""
    sparse = stored["state"]["histograms"]
    rule = None if stored["state"]["counts"].get("disagreements") else stored["correction"]
    return rows.bins_of(
        lambda name: histogram.from_sparse(sparse[name]),
        stored["scalars"],
        level=None if rule is None else rule["level"],
        prefix=prefix_of(stored["split"]),
    )


def json_reader() -> Callable[[str], Any]:
    """The faster of two readers of JSON, where it is installed."""
    try:
        import orjson
    except ImportError:
        return json.loads
    return orjson.loads
