"""Reader of W&B runs, for the report and the command line.

Scalars and histograms are bitwise those that were sent. Times are those at which W&B received a row; events are the
newest hundred of a finished run; empty parts of the config are missing. Of a run without ratioscope, the trainer's own
metrics of the mismatch are read, and the config as far as TRL's arguments give it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ratioscope.metrics import catalogue
from ratioscope.runs.foreign import adopt
from ratioscope.runs.foreign.config import config_of
from ratioscope.runs.timeline import Timeline
from ratioscope.state.histogram import Bins
from ratioscope.trackers.rows import SHOWN
from ratioscope_integrations.trackers.wandb.runs import STEP_KEY
from ratioscope_integrations.trackers.wandb.summaries import TRAIN
from ratioscope_integrations.trackers.wandb.tables import EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EVAL = "eval/"
_HISTOGRAMS = frozenset(f"ratioscope/hist/{name}" for name in SHOWN)
_KEYS = catalogue.keys("full")
_STEPS = (STEP_KEY, "training/global_step", "train/step", "training_step", "step", "_step")
"""Keys of a trainer's step, the most likely first; the last is W&B's own."""


def read(rest: str) -> Timeline:
    """Reads a run.

    Args:
        rest: ``ENTITY/PROJECT/RUN``, the part of the address after ``wandb:``; ``RUN`` is the run's id.

    Raises:
        ImportError: if ``wandb`` is missing.
        ValueError: if the address has another form.
        LookupError: if there is no such run, or it has no metric of the mismatch.
        wandb.Error: if W&B refuses, for example without a login.
    """
    parts = rest.strip("/").split("/")
    if len(parts) != 3 or not all(part.strip() for part in parts):
        msg = f"got wandb:{rest}; expected wandb:ENTITY/PROJECT/RUN, as in the address of the run's page without /runs"
        raise ValueError(msg)
    run = _run("/".join(parts))
    config = _mapping(run.config.get("ratioscope")) or config_of(_mapping(run.config))
    timeline = Timeline(name=str(run.name), source=f"wandb:{rest}", config=config)
    _fill(timeline, run.scan_history())
    if not timeline.windows:
        msg = f"W&B's run {rest} has no row of ratioscope's, nor one of {adopt.KNOWN}; was it trained with "
        msg += "ratioscope reporting to W&B, or with a trainer that logs how the two engines differ?"
        raise LookupError(msg)
    events = run.summary.get(EVENTS) or ()
    timeline.events += [(int(step), str(event)) for step, event in events]
    return timeline


def _run(path: str) -> Any:
    try:
        import wandb
    except ImportError as error:
        msg = 'reading wandb:ENTITY/PROJECT/RUN needs the package wandb: pip install "ratioscope[wandb]"'
        raise ImportError(msg) from error
    api = wandb.Api()
    try:
        return api.run(path)
    except (ValueError, wandb.Error) as error:
        if "could not find run" not in str(error).lower():
            raise
        msg = f"W&B has no run {path} that you may see; check the address and `wandb login`"
        raise LookupError(msg) from error


def _fill(timeline: Timeline, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds the rows that count, in the order of steps: ratioscope's, or the trainer's if there are none."""
    own, others = _Windows(), _Windows()
    for order, row in enumerate(rows):
        step = _number(row, (STEP_KEY,))
        if step is not None:
            for split in ("train", "eval"):
                own.add(_Window(step, order, split, _time(row), *_statistics(row, split)))
        step = _number(row, _STEPS)
        if step is not None and not own:
            for split, scalars in adopt.scalars_of(row).items():
                others.add(_Window(step, order, split, _time(row), scalars, {}))
    for window in (own or others).in_order():
        timeline.add(window.step, window.split, window.time, window.scalars, window.histograms)


class _Window(NamedTuple):
    step: int
    order: int
    split: str
    time: float
    scalars: dict[str, float]
    histograms: dict[str, Bins]


class _Windows:
    """Windows that no later one supersedes.

    A window is superseded if a later one of its split has no greater step, or if a later one of the training has a
    smaller step, because the training was then resumed from before it.
    """

    def __init__(self) -> None:
        self._by_split: dict[str, list[_Window]] = {"train": [], "eval": []}

    def __bool__(self) -> bool:
        return any(self._by_split.values())

    def add(self, window: _Window) -> None:
        """Adds a window unless it is empty, and drops those that it supersedes."""
        if not window.scalars and not window.histograms:
            return
        _drop(self._by_split[window.split], window.step)
        if window.split == "train":
            _drop(self._by_split["eval"], window.step + 1)
        self._by_split[window.split].append(window)

    def in_order(self) -> list[_Window]:
        """Returns the windows in the order of steps."""
        windows = self._by_split["train"] + self._by_split["eval"]
        return sorted(windows, key=lambda window: (window.step, window.order))


def _number(row: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    """Returns the value of the first key that has a finite number."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, int | float) and math.isfinite(value):
            return int(value)
    return None


def _time(row: Mapping[str, Any]) -> float:
    return float(row.get("_timestamp") or 0.0)


def _drop(windows: list[_Window], step: int) -> None:
    """Removes windows from a step on."""
    while windows and windows[-1].step >= step:
        windows.pop()


def _statistics(row: Mapping[str, Any], split: str) -> tuple[dict[str, float], dict[str, Bins]]:
    """Returns a split's finite scalars and histograms by the timeline's keys, reported by tracker or trainer."""
    reported, prefix = (EVAL, EVAL) if split == "eval" else (TRAIN, "")
    scalars: dict[str, float] = {}
    histograms: dict[str, Bins] = {}
    for key, value in row.items():
        if not key.startswith((reported, prefix)):
            continue
        plain = key.removeprefix(reported)
        if plain in _HISTOGRAMS and (bins := _bins(value)) is not None:
            histograms[prefix + plain] = bins
        elif plain in _KEYS and isinstance(value, int | float) and math.isfinite(value):
            scalars[prefix + plain] = float(value)
    return scalars, histograms


def _bins(value: Any) -> Bins | None:
    """Reads a histogram of W&B's: with all edges, or packed as start, width and number of bins."""
    data = _mapping(value)
    counts, packed = data.get("values"), _mapping(data.get("packedBins"))
    if counts is None or not len(counts):
        return None
    if packed:
        edges = packed["min"] + packed["size"] * np.arange(packed["count"] + 1, dtype=np.float64)
    else:
        edges = np.asarray(data.get("bins"), np.float64)
    if edges.shape != (len(counts) + 1,):
        return None
    return Bins(np.rint(np.asarray(counts, np.float64)).astype(np.int64), edges)


def _mapping(value: Any) -> dict[str, Any]:
    """Copies a mapping of W&B's summary or config, whose nested mappings are not dicts; empty for anything else."""
    return dict(value.items()) if hasattr(value, "items") else {}
