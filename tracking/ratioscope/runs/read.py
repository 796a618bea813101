"""Reading a run from wherever it is: a journal, or a tracker by its own address."""

from __future__ import annotations

import math
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from ratioscope.journal.reader import JournalReader
from ratioscope.runs import ACCEPTED
from ratioscope.runs.foreign import trainer_state
from ratioscope.runs.foreign.adopt import KNOWN, adopt
from ratioscope.runs.pooled import PooledRun
from ratioscope.runs.timeline import Timeline
from ratioscope.trackers.base import prefix_of
from ratioscope.trackers.rows import RowMaker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratioscope.record import Record

GROUP = "ratioscope.sources"
"""Entry-point group: scheme of an address ``scheme:rest`` -> a function that reads ``rest`` as a :class:`Timeline`."""

_EVENTS = "events.out.tfevents.*"
"""Files of TensorBoard, looked for in a folder and two levels below, where trainers put them."""


def read(address: str | Path, *, exponents: Mapping[str, int] | None = None) -> Timeline:
    """Reads a run, whoever logged it.

    Args:
        address: any of :data:`ratioscope.runs.ACCEPTED`. Of a folder, its journal counts;
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
    """Reads a run that has no journal, from the first other log found.

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


def read_many(addresses: Sequence[str | Path]) -> list[Timeline]:
    """Reads runs for a comparison; journals get, at each level, the widest bins that any of the runs has.

    A tracker has only the bins that were counted in the training.

    Raises:
        FileNotFoundError: if there is no journal, and the address names no tracker either.
        JournalError: if the file is no journal, or of a newer version.
        ImportError: if a tracker's package is missing.
        LookupError: if a tracker has no such run.
    """
    timelines = [read(address) for address in addresses]
    widths = [exponents_of(timeline) for timeline in timelines]
    widest = {level: max(own[level] for own in widths if level in own) for level in set().union(*widths)}
    return [
        timeline
        if tracker_of(address) or all(own[level] == widest[level] for level in own)
        else read(address, exponents=widest)
        for address, timeline, own in zip(addresses, timelines, widths, strict=True)
    ]


def exponents_of(timeline: Timeline) -> dict[str, int]:
    """Returns the widths of a run's bins, ``2**exponent``, by level."""
    exponents = {}
    for level in ("token", "sequence"):
        for prefix in ("", "eval/"):
            with suppress(KeyError):
                edges = timeline.history.latest(f"{prefix}ratioscope/hist/{level}_log_ratio").edges
                exponents[level] = round(math.log2(edges[1] - edges[0]))
    return exponents


def read_journal(path: Path, *, exponents: Mapping[str, int] | None = None) -> Timeline:
    """Reads the live line of a journal, also while a training writes it.

    Args:
        path: a run's output directory, its ``ratioscope`` folder, or the journal file.
        exponents: bin widths by level; chosen as the training did where they are missing.

    Raises:
        FileNotFoundError: if there is no journal.
        JournalError: if the file is no journal, or of a newer version.
    """
    rows = RowMaker(exponents=exponents)
    with JournalReader(path) as reader:
        folder = reader.path.resolve().parent.parent
        timeline = Timeline(name=folder.name, source=str(path), config=reader.config(), pooled=PooledRun())
        # The first records of all attempts choose the widths, also where later ones replaced them.
        rows.follow(reader.first_records())
        for record in reader.records():
            _add(timeline, record, rows)
        timeline.events += [(event.step, event.line) for event in reader.events()]
        timeline.events.sort(key=lambda event: event[0])
    return timeline


def _add(timeline: Timeline, record: Record, rows: RowMaker) -> None:
    if not record.scalars and not record.events:
        return  # a log of the trainer's without a window
    prefix = prefix_of(record.split)
    scalars = {prefix + key: value for key, value in record.scalars.items() if key in rows.wanted}
    timeline.add(record.step, record.split, record.time, scalars, rows.bins(record, prefix), record.events)
    timeline.worst.add(record)
    if timeline.pooled is not None:
        timeline.pooled.add(record)
