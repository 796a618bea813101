"""Fanout: one record to many trackers, each failing on its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ratioscope import metrics
from ratioscope.histogram import even_bins, view_exponent
from ratioscope.trackers.base import Row
from ratioscope.trackers.delivery import Background

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratioscope.histogram import Bins
    from ratioscope.incidents import Incidents
    from ratioscope.record import Record
    from ratioscope.trackers.base import RunContext, Tracker

SHOWN = ("token_log_ratio", "sequence_log_ratio", "corrected_log_ratio")
"""Histograms that trackers receive, under ``ratioscope/hist/``."""


@dataclass
class _Sink:
    tracker: Tracker
    run: RunContext
    scalars: frozenset[str]
    opened: bool = False
    waiting: deque[Row] = field(default_factory=lambda: deque(maxlen=64))


class Fanout:
    """Sends records to trackers.

    A tracker whose trainer has not opened its run yet keeps its rows until it has. Scalars that the trainer itself
    reports to a backend are not sent there a second time.

    Args:
        trackers: the backends.
        run: the run that they attach to.
        incidents: where failures are reported.
        detail: which scalars are sent, as in :mod:`ratioscope.metrics`.
        reporters: the trainer's own callback for a backend, by tracker name.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        run: RunContext,
        *,
        incidents: Incidents,
        detail: str = "standard",
        reporters: Mapping[str, object] | None = None,
    ) -> None:
        self._incidents = incidents
        self._exponents: dict[str, int] = {}
        wanted, carried = metrics.keys(detail), metrics.keys("headline")
        self._sinks: list[_Sink] = []
        for tracker in trackers:
            reporter = (reporters or {}).get(tracker.name)
            served = Background(tracker, incidents) if tracker.background else tracker
            scalars = wanted if reporter is None else wanted - carried
            self._sinks.append(_Sink(served, replace(run, reporter=reporter), scalars))

    def open(self) -> None:
        """Opens what is not open yet. Call it again whenever the trainer may have opened its runs."""
        for sink in self._sinks:
            if not sink.opened:
                with self._incidents.guard(f"{sink.tracker.name} open"):
                    sink.opened = sink.tracker.open(sink.run)
            while sink.opened and sink.waiting:
                self._write(sink, sink.waiting.popleft())

    def write(self, record: Record) -> None:
        """Sends one record to every tracker."""
        prefix = "" if record.split == "train" else f"{record.split}/"
        bins = self._bins(record, prefix)
        for sink in self._sinks:
            scalars = {prefix + key: value for key, value in record.scalars.items() if key in sink.scalars}
            row = Row(record.step, record.split, record.time, scalars, bins, record)
            if sink.opened:
                self._write(sink, row)
            else:
                self._wait(sink, row)

    def close(self) -> None:
        """Closes every tracker, each on its own."""
        self.open()
        for sink in self._sinks:
            if sink.opened:
                with self._incidents.guard(f"{sink.tracker.name} close"):
                    sink.tracker.close()
            elif sink.waiting:
                name, rows = sink.tracker.name, len(sink.waiting)
                self._incidents.report(f"{name} never opened", f"{name} never had a run; {rows} rows were not sent")

    def where(self) -> list[str]:
        """One line for each open tracker: where to look."""
        lines: list[str] = []
        for sink in self._sinks:
            if sink.opened:
                with self._incidents.guard(f"{sink.tracker.name} where"):
                    lines.append(f"{sink.tracker.name}: {sink.tracker.where()}")
        return lines

    def _wait(self, sink: _Sink, row: Row) -> None:
        if len(sink.waiting) == sink.waiting.maxlen:
            name = sink.tracker.name
            self._incidents.report(f"{name} queue full", f"{name} has no run yet; its oldest row was dropped")
        sink.waiting.append(row)

    def _write(self, sink: _Sink, row: Row) -> None:
        with self._incidents.guard(f"{sink.tracker.name} write"):
            sink.tracker.write(row)

    def _bins(self, record: Record, prefix: str) -> dict[str, Bins]:
        """Even bins of each histogram; widths are chosen at a level's first record and kept, so that steps compare."""
        shown: dict[str, Bins] = {}
        for name in SHOWN:
            counts = record.counts(name)
            level = name.split("_")[0]
            if level == "corrected":
                if record.correction is None or record.summary.count("disagreements"):
                    continue
                level = record.correction.level
            if not counts.any():
                continue
            if level not in self._exponents:
                low, high = (record.scalars.get(f"ratioscope/{level}/log_ratio/{end}", 0.0) for end in ("min", "max"))
                self._exponents[level] = view_exponent(counts, minimum=low, maximum=high)
            shown[f"{prefix}ratioscope/hist/{name}"] = even_bins(counts, self._exponents[level])
        return shown
