"""TensorBoard: scalars, raw histograms and the config, in the trainer's event file if there is one.

Requires ``tensorboard``. A second writer in the trainer's folder would appear as a second, half-empty run.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.incidents import log
from ratioscope.runs.worst import COLUMNS, WorstTables
from ratioscope.trackers.base import Tracker, grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ratioscope.event import Event
    from ratioscope.state.histogram import Bins
    from ratioscope.trackers.base import Row, RunContext

_FLOAT32_MAX = float(np.finfo(np.float32).max)
"""A larger scalar would arrive as infinity."""

_MARKUP = frozenset("&<>|`*_[]()!#\\~")
"""Characters with a meaning in Markdown or HTML."""


class TensorBoardTracker(Tracker):
    """Writes through the ``SummaryWriter`` of the trainer's callback, else through a new one."""

    name = "tensorboard"
    package = "tensorboard"

    def __init__(self) -> None:
        self._reporter: object | None = None
        self._writer: Any = None
        self._owned = False
        self._location = "no run yet"
        self._worst = WorstTables()
        self._warned = False

    def open(self, run: RunContext) -> bool:
        """Uses the trainer's writer or another framework's, else opens one under ``output_dir`` (``runs`` without one).

        Returns:
            False if the trainer reports to TensorBoard and has no writer yet.
        """
        self._reporter = run.reporter
        if run.live is not None:
            self._writer = run.live
        elif run.reporter is None:
            self._writer = _own_writer(run)
            self._owned = True
        else:
            self._writer = getattr(run.reporter, "tb_writer", None)
        if self._writer is None:
            return False
        self._location = f"tensorboard --logdir {shlex.quote(str(_log_dir(self._writer)))}"
        self._writer.add_text("ratioscope/config", f"```json\n{json.dumps(run.config, indent=2, default=str)}\n```")
        return True

    def write(self, row: Row) -> None:
        """Sends one window."""
        writer = self._current_writer()
        if writer is None:
            return
        # All in one event: a writer queues ten, and adding an eleventh waits for the disk.
        values = _summary_of(writer)()
        for key, value in {**row.scalars, **grouped(row.logs)}.items():
            if abs(value) <= _FLOAT32_MAX:
                values.value.add(tag=key, simple_value=value)
            elif not self._warned:
                self._warned = True
                log.warning("TensorBoard holds float32: %s=%g of step %d is left out", key, value, row.step)
        for key, bins in row.histograms.items():
            if bins.total:
                values.value.add(tag=key, histo=_raw_histogram(bins))
        writer._get_file_writer().add_summary(values, row.step, walltime=row.time)  # opens a file if it has none
        if worst := self._worst.due(row.record):
            writer.add_text("ratioscope/worst_tokens", _markdown(worst), row.step, walltime=row.time)
        if self._owned:
            writer.flush()  # otherwise held back for two minutes, although this row now counts as delivered

    def alert(self, event: Event) -> None:
        """Writes an event as text, below earlier events of its finding."""
        writer = self._current_writer()
        if writer is not None:
            text = f"**{event.line}**\n\n{event.text}"
            writer.add_text(f"ratioscope/events/{event.name}", text, event.step, walltime=event.time)
            writer.flush()

    def close(self) -> None:
        """Closes the writer if the tracker owns it; the trainer closes its own."""
        writer, self._writer, self._reporter = self._writer, None, None
        if writer is not None and self._owned:
            writer.close()

    def where(self) -> str:
        """Returns the command that shows the run."""
        return self._location

    def _current_writer(self) -> Any:
        """Returns the trainer's current writer; it closes one at the end of a training and may open another later."""
        if self._reporter is None:
            if self._writer is not None and getattr(self._writer, "file_writer", self._writer) is None:
                self._owned = True  # closed by its owner, a writer opens a new file by itself
            return self._writer
        writer = getattr(self._reporter, "tb_writer", None)
        if writer is None:
            # A closed SummaryWriter opens a new file in the same folder by itself, which nothing else would close.
            self._owned = True
            return self._writer
        self._owned = False
        self._writer = writer
        return writer


def _summary_of(writer: Any) -> Any:
    """Returns the message class of a writer's package: torch's, or tensorboardX, the fallback of transformers."""
    package = "tensorboardX" if type(writer).__module__.startswith("tensorboardX") else "tensorboard.compat"
    return import_module(f"{package}.proto.summary_pb2").Summary


def _own_writer(run: RunContext) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    name = _folder_name(run.run_name or "") or time.strftime("%Y-%m-%d_%H-%M-%S")
    root = run.output_dir if run.output_dir is not None else Path("runs")
    return SummaryWriter(log_dir=str(root / "ratioscope" / name))


def _folder_name(run_name: str) -> str:
    """Makes a run's name safe as the name of one folder: without slashes or outer dots, at most 200 bytes."""
    name = re.sub(r"[/\\\x00-\x1f]+", "_", run_name).strip(". ")
    return name.encode()[:200].decode(errors="ignore")


def _log_dir(writer: Any) -> str:
    """Returns a writer's folder; tensorboardX has no ``get_logdir``."""
    return str(writer.get_logdir() if hasattr(writer, "get_logdir") else writer.logdir)


def _markdown(rows: Iterable[Sequence[str | int | float | None]]) -> str:
    """Returns a Markdown table in which texts are escaped."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: str | float | None) -> str:
    if isinstance(value, str):
        return "".join(f"&#{ord(c)};" if c in _MARKUP else c for c in value)
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _raw_histogram(bins: Bins) -> dict[str, Any]:
    """Returns the fields of a ``HistogramProto``, without the empty bins at both ends.

    TensorBoard uses ``min`` as the left edge of the first non-empty bin and ``max`` as the right edge of the last one.
    Both are bin edges here, so that an outlier does not stretch a bin.
    """
    occupied = np.flatnonzero(bins.counts)
    first, last = int(occupied[0]), int(occupied[-1])
    counts, edges = bins.counts[first : last + 1], bins.edges[first : last + 2]
    middles = (edges[:-1] + edges[1:]) / 2
    return {
        "min": float(edges[0]),
        "max": float(edges[-1]),
        "num": bins.total,
        "sum": float(counts @ middles),
        "sum_squares": float(counts @ middles**2),
        "bucket_limit": edges[1:].tolist(),
        "bucket": counts.tolist(),
    }
