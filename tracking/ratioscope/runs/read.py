"""Reading a run from wherever it is: a journal, or a tracker by its own address."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratioscope.journal.reader import JournalReader
from ratioscope.runs.addresses import ACCEPTED
from ratioscope.runs.foreign import trainer_state
from ratioscope.runs.foreign.adopt import KNOWN, adopt
from ratioscope.runs.timeline import Timeline
from ratioscope.state import histogram
from ratioscope.trackers.base import prefix_of
from ratioscope.trackers.rows import RowMaker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from ratioscope.state.histogram import Bins

GROUP = "ratioscope.sources"
"""Entry-point group: what stands before ``:`` in an address -> a function from what follows to a :class:`Timeline`."""


_EVENTS = "events.out.tfevents.*"
"""Files of TensorBoard, looked for in a folder and two levels below, where trainers put them."""


def read(address: str | Path, *, exponents: Mapping[str, int] | None = None) -> Timeline:
    """Reads a run, whoever logged it.

    Args:
        address: any of :data:`ratioscope.runs.addresses.ACCEPTED`. Of a folder, its journal counts;
            without one a ``trainer_state.json``; without that TensorBoard's files.
        exponents: bin widths by level, to have those of another run; a tracker has only the bins that it was sent.

    Raises:
        FileNotFoundError: if nothing of this is there.
        JournalError: if the file is no journal, or of a newer version.
        ValueError: if a ``trainer_state.json`` is none.
        ImportError: if the tracker's package is missing.
        LookupError: if the tracker has no such run, or a log has nothing to say of the two engines.
    """
    kind = tracker_of(address)
    if kind is not None:
        return adopt(_load(kind, str(address).partition(":")[2]))
    journal = journal_of(address)
    return _without_journal(Path(address)) if journal is None else read_journal(journal, exponents=exponents)


def journal_of(address: str | Path) -> Path | None:
    """The journal's path, if that is what an address names; None for every other kind of run."""
    if tracker_of(address) is not None:
        return None
    path = Path(address)
    if path.is_file():
        return None if trainer_state.is_state(path) or path.match(_EVENTS) else path
    try:
        JournalReader(path).close()
    except FileNotFoundError:
        return None
    return path


def _load(kind: str, rest: str) -> Timeline:
    load = next(iter(entry_points(group=GROUP, name=kind))).load()
    timeline: Timeline = load(rest)
    return timeline


def _without_journal(path: Path) -> Timeline:
    """What other logs there are.

    Raises:
        FileNotFoundError: if there is none.
        LookupError: if it holds nothing that is known.
    """
    state = trainer_state.find(path)
    if state is not None:
        timeline = trainer_state.read(state)
        if not timeline.windows:
            msg = f"got {state}, whose log has no statistic of the two engines; known are ratioscope's, {KNOWN}. "
            msg += "TRL logs its own where use_vllm and vllm_importance_sampling_correction are on"
            raise LookupError(msg)
        return adopt(timeline)
    if path.match(_EVENTS) or any(any(path.glob(f"{deep}{_EVENTS}")) for deep in ("", "*/", "*/*/")):
        return adopt(_load("tensorboard", str(path)))
    msg = f"got {path}, where no run is; expected {ACCEPTED}"
    raise FileNotFoundError(msg)


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
    from ratioscope.runs.pooled import Pooled

    loads = json_reader()
    rows = RowMaker(exponents=exponents)
    with JournalReader(path) as reader:
        folder = reader.path.resolve().parent.parent
        timeline = Timeline(name=folder.name, source=str(path), config=reader.config())
        timeline.pooled = Pooled(timeline.config)
        for body in reader.first_bodies():
            first = loads(body)
            # The first records of all choose the widths, also where others took their place.
            _bins(first, rows, _counts(first))
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
    scalars = {key: value for key, value in stored["scalars"].items() if key in rows.wanted}
    if prefix:
        scalars = {prefix + key: value for key, value in scalars.items()}
    counts_of = _counts(stored)
    bins = _bins(stored, rows, counts_of)
    if timeline.pooled is not None:
        timeline.pooled.add(stored, counts_of)
    timeline.add(stored["step"], stored["split"], stored["time"], scalars, bins, stored["events"])
    timeline.worst.add_stored(stored)


def _counts(stored: Mapping[str, Any]) -> Callable[[str], NDArray[np.int64]]:
    """Bucket counts of a stored record's histograms by name, each made once."""
    sparse = stored["state"]["histograms"]
    return cache(lambda name: histogram.from_sparse(sparse.get(name, {})))


def _bins(stored: Mapping[str, Any], rows: RowMaker, counts_of: Callable[[str], NDArray[np.int64]]) -> dict[str, Bins]:
    """Even bins of a stored record's histograms."""
    rule = None if stored["state"]["counts"].get("disagreements") else stored["correction"]
    return rows.bins_of(
        counts_of,
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
