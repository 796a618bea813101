"""What a W&B run is given at its end: tables of its histograms and worst tokens, and its events.

All go into the run's summary, so that its history has one row a window and no other.
"""

from __future__ import annotations

import logging
import threading
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.runs.history import History, Window
from ratioscope.runs.worst import COLUMNS as WORST_COLUMNS
from ratioscope.runs.worst import WorstOfRun
from ratioscope.runs.worst import table_rows as worst_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import wandb

    from ratioscope.runs.history import Series
    from ratioscope.trackers.base import Row

TABLE = "ratioscope/histogram_table"
WORST = "ratioscope/worst_tokens"
EVENTS = "ratioscope/events"
COLUMNS = ("split", "level", "first_step", "step", "log_ratio", "low", "high", "count", "share")
MAX_ROWS = 10_000
"""W&B's own limit for a table that a chart may load."""
MAX_WINDOWS = 64
"""Windows of each histogram in the table; neighbours are pooled to get there."""
MAX_EVENTS = 100

_PREFIX, _SUFFIX = "ratioscope/hist/", "_log_ratio"

_logger = logging.getLogger("ratioscope")


def table_rows(history: History) -> list[list[str | int | float]]:
    """The table's rows, one for each bin with a value, at most :data:`MAX_ROWS`.

    Columns are :data:`COLUMNS`: the split; ``token``, ``sequence`` or ``corrected``; first and last step of the window;
    centre and edges of the bin in nats, the outer two of a histogram also holding what lies beyond; number of values,
    and their share of the window.
    """
    keys, windows = history.keys(), MAX_WINDOWS
    while True:
        rows = [row for key in keys for row in _rows(key, history.latest(key), windows)]
        if len(rows) <= MAX_ROWS or windows == 1:
            return rows[:MAX_ROWS]
        windows = max(1, windows * 3 // 4)


def _rows(key: str, series: Series, limit: int) -> Iterator[list[str | int | float]]:
    prefix, _, name = key.partition(_PREFIX)
    split, level = prefix.removesuffix("/") or "train", name.removesuffix(_SUFFIX)
    low, high = series.edges[:-1], series.edges[1:]
    for window in _pooled(series.windows, limit):
        total = int(window.counts.sum())
        for index in np.flatnonzero(window.counts):
            edges, count = (float(low[index]), float(high[index])), int(window.counts[index])
            place = [window.first_step, window.last_step, sum(edges) / 2, *edges]
            yield [split, level, *place, count, count / total]


def _pooled(windows: list[Window], limit: int) -> list[Window]:
    """At most so many windows, as even as they come."""
    starts = [len(windows) * part // limit for part in range(limit + 1)]
    groups = [windows[start:end] for start, end in pairwise(starts) if end > start]
    return [reduce(Window.pooled, group) for group in groups]


class Ending:
    """Collects what a run is given at its end.

    Args:
        journal: where the whole run can be read if this process continues one; None if it began the run.
    """

    def __init__(self, journal: Path | None = None) -> None:
        self._journal = journal
        self._history = History()
        self._events: list[tuple[int, str]] = []
        self._worst = WorstOfRun()
        self._rows = 0

    def add(self, row: Row) -> None:
        """Takes one window."""
        self._rows += 1
        for key, bins in row.histograms.items():
            self._history.add(key, row.step, bins)
        self._events = [*self._events, *((row.step, event) for event in row.record.events)][-MAX_EVENTS:]
        self._worst.add(row.record)

    def send(self, run: wandb.Run, timeout: float) -> None:
        """Puts tables and events into the run's summary, if this process had anything for the run. Never raises.

        W&B asks its server before it takes a table, on the thread that brings it, which a server that is away would
        hold; so that is another thread, and what it has not done in time is left out.

        Args:
            run: a live run.
            timeout: seconds to wait at the most.
        """
        if not self._rows:
            return
        left_out = threading.Event()
        thread = threading.Thread(target=self._send, args=(run, left_out), name="ratioscope-wandb-table", daemon=True)
        thread.start()
        thread.join(timeout)
        if thread.is_alive():
            left_out.set()
            _logger.warning("W&B: %s was not ready %.1f s after the end and is left out", TABLE, timeout)

    def _send(self, run: wandb.Run, left_out: threading.Event) -> None:
        import wandb

        try:
            history, events, worst = self._whole()
            if events and not left_out.is_set():
                run.summary[EVENTS] = [[step, event] for step, event in events]
            tokens: list[Any] = worst_rows(worst)
            if tokens and not left_out.is_set():
                run.summary[WORST] = wandb.Table(columns=list(WORST_COLUMNS), data=tokens)
            rows: list[Any] = table_rows(history)
            if rows and not left_out.is_set():
                run.summary[TABLE] = wandb.Table(columns=list(COLUMNS), data=rows, optional=False)
        except Exception as error:
            if not left_out.is_set():
                _logger.warning("W&B: %s is left out: %s: %s", TABLE, type(error).__name__, error)

    def _whole(self) -> tuple[History, list[tuple[int, str]], WorstOfRun]:
        """What is known of the run, from the journal where an earlier process had a part of it."""
        from ratioscope.journal.schema import JournalError
        from ratioscope.runs.read import read_journal

        if self._journal is not None:
            try:
                timeline = read_journal(self._journal)
                return timeline.history, timeline.events[-MAX_EVENTS:], timeline.worst
            except (OSError, JournalError) as error:
                _logger.warning("W&B: %s has only what came since the run was continued: %s", TABLE, error)
        return self._history, self._events, self._worst
