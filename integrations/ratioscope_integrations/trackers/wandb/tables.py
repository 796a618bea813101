"""Summary of a W&B run, written at its end: tables of its histograms and worst tokens, and its events.

Everything goes into the run's summary, so that its history has exactly one row per window.
"""

from __future__ import annotations

import threading
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.incidents import log
from ratioscope.journal.schema import JournalError
from ratioscope.metrics.terms import PREFIX
from ratioscope.runs.history import History, Window
from ratioscope.runs.read import read_journal
from ratioscope.runs.worst import COLUMNS as WORST_COLUMNS
from ratioscope.runs.worst import WorstOfRun
from ratioscope.runs.worst import table_rows as worst_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import wandb

    from ratioscope.runs.history import Series
    from ratioscope.trackers.base import Row

TABLE = f"{PREFIX}histogram_table"
WORST = f"{PREFIX}worst_tokens"
EVENTS = f"{PREFIX}events"
COLUMNS = ("split", "level", "first_step", "step", "log_ratio", "low", "high", "count", "share")
MAX_ROWS = 10_000
"""W&B's limit for a table that a chart can load."""
MAX_WINDOWS = 64
"""Largest number of windows of each histogram in the table; neighbours are pooled to reach it."""
MAX_EVENTS = 100

_HISTOGRAM, _SUFFIX = f"{PREFIX}hist/", "_log_ratio"


def table_rows(history: History) -> list[list[str | int | float]]:
    """Returns the table's rows, one for each bin with a value, at most :data:`MAX_ROWS`.

    Columns are :data:`COLUMNS`: the split; ``token``, ``sequence`` or ``corrected``; first and last step of the window;
    centre and edges of the bin in nats, where the outer two bins also hold the values beyond; number of values, and
    their share of the window.
    """
    keys, windows = history.keys(), MAX_WINDOWS
    while True:
        rows = [row for key in keys for row in _rows(key, history.latest(key), windows)]
        if len(rows) <= MAX_ROWS or windows == 1:
            return rows[:MAX_ROWS]
        windows = max(1, windows * 3 // 4)


def _rows(key: str, series: Series, limit: int) -> Iterator[list[str | int | float]]:
    prefix, _, name = key.partition(_HISTOGRAM)
    split, level = prefix.removesuffix("/") or "train", name.removesuffix(_SUFFIX)
    low, high = series.edges[:-1], series.edges[1:]
    for window in _pooled(series.windows, limit):
        total = int(window.counts.sum())
        for index in np.flatnonzero(window.counts):
            edges, count = (float(low[index]), float(high[index])), int(window.counts[index])
            position = [window.first_step, window.last_step, sum(edges) / 2, *edges]
            yield [split, level, *position, count, count / total]


def _pooled(windows: list[Window], limit: int) -> list[Window]:
    """Pools neighbours to at most ``limit`` windows of about equal numbers of neighbours."""
    starts = [len(windows) * part // limit for part in range(limit + 1)]
    groups = [windows[start:end] for start, end in pairwise(starts) if end > start]
    return [reduce(Window.pooled, group) for group in groups]


class FinalSummary:
    """Collects windows for the summary that a run gets at its end.

    Args:
        journal: the run's output directory if this process continues a run; None if it began the run.
    """

    def __init__(self, journal: Path | None = None) -> None:
        self._journal = journal
        self._history = History()
        self._events: list[tuple[int, str]] = []
        self._worst = WorstOfRun()
        self._rows = 0

    def add(self, row: Row) -> None:
        """Adds one window."""
        self._rows += 1
        for key, bins in row.histograms.items():
            self._history.add(key, row.step, bins)
        self._events = [*self._events, *((row.step, event) for event in row.record.events)][-MAX_EVENTS:]
        self._worst.add(row.record)

    def send(self, run: wandb.Run, timeout: float) -> None:
        """Writes tables and events to the run's summary if this process had a window. Never raises.

        W&B asks its server before it accepts a table, on the calling thread, which an absent server would block. So
        another thread writes, and is abandoned after the timeout.

        Args:
            run: a live run.
            timeout: longest wait in seconds.
        """
        if not self._rows:
            return
        abandoned = threading.Event()
        thread = threading.Thread(target=self._send, args=(run, abandoned), name="ratioscope-wandb-table", daemon=True)
        thread.start()
        thread.join(timeout)
        if thread.is_alive():
            abandoned.set()
            log.warning("W&B: %s was not ready %.1f s after the end and is left out", TABLE, timeout)

    def _send(self, run: wandb.Run, abandoned: threading.Event) -> None:
        import wandb

        try:
            history, events, worst = self._whole_run()
            if events and not abandoned.is_set():
                run.summary[EVENTS] = [[step, event] for step, event in events]
            tokens: list[Any] = worst_rows(worst)
            if tokens and not abandoned.is_set():
                run.summary[WORST] = wandb.Table(columns=list(WORST_COLUMNS), data=tokens)
            rows: list[Any] = table_rows(history)
            if rows and not abandoned.is_set():
                run.summary[TABLE] = wandb.Table(columns=list(COLUMNS), data=rows, optional=False)
        except Exception as error:
            if not abandoned.is_set():
                log.warning("W&B: %s is left out: %s: %s", TABLE, type(error).__name__, error)

    def _whole_run(self) -> tuple[History, list[tuple[int, str]], WorstOfRun]:
        """Returns histograms, events and worst tokens of the run, from the journal if an earlier process began it."""
        if self._journal is not None:
            try:
                timeline = read_journal(self._journal)
                return timeline.history, timeline.events[-MAX_EVENTS:], timeline.worst
            except (OSError, JournalError) as error:
                log.warning("W&B: %s has only windows since the run was continued: %s", TABLE, error)
        return self._history, self._events, self._worst
