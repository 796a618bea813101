"""A run read back from W&B: what was logged there is enough for the report's figures.

Scalars and histograms are those that were sent, to the last bit. Times are those at which W&B was given a row, events
are the newest hundred of a run that was ended, and empty parts of the config are not there. Of a run without
ratioscope, whatever its trainer logged of the two engines is read, and the config as far as TRL's arguments say it.
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
from ratioscope_integrations.trackers.wandb.summaries import TRAIN
from ratioscope_integrations.trackers.wandb.tables import EVENTS
from ratioscope_integrations.trackers.wandb.tracker import STEP_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EVAL = "eval/"
_HISTOGRAMS = frozenset(f"ratioscope/hist/{name}" for name in SHOWN)
_KEYS = catalogue.keys("full")
_STEPS = (STEP_KEY, "training/global_step", "train/step", "training_step", "step", "_step")
"""Where trainers keep their step, the likeliest first; the last is W&B's own."""


def read(rest: str) -> Timeline:
    """Reads a run.

    Args:
        rest: ``ENTITY/PROJECT/RUN``, the run by its id; what the address has after ``wandb:``.

    Raises:
        ImportError: if ``wandb`` is missing.
        ValueError: if the address has another form.
        LookupError: if there is no such run, or it has nothing of the two engines.
        wandb.Error: if W&B cannot be asked, as without a login.
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
    """Adds the live rows in the order of their steps: ratioscope's, or of a run without any those of its trainer."""
    own, others = _Live(), _Live()
    for place, row in enumerate(rows):
        step = _number(row, (STEP_KEY,))
        if step is not None:
            for split in ("train", "eval"):
                own.add(row, step, place, split, *_statistics(row, split))
        step = _number(row, _STEPS)
        if step is not None and not own:
            for split, scalars in adopt.scalars_of(row).items():
                others.add(row, step, place, split, scalars, {})
    for window in (own or others).windows():
        timeline.add(window.step, window.split, window.time, window.scalars, window.histograms)


class _Live:
    """Rows that no later one supersedes.

    A row is dead if a later row of its split has no greater step, or one of the training has a smaller one: the
    training was resumed from before it.
    """

    def __init__(self) -> None:
        self._live: dict[str, list[_Window]] = {"train": [], "eval": []}

    def __bool__(self) -> bool:
        return any(self._live.values())

    def add(
        self,
        row: Mapping[str, Any],
        step: int,
        place: int,
        split: str,
        scalars: dict[str, float],
        histograms: dict[str, Bins],
    ) -> None:
        """Appends a row's part of a split, if there is any."""
        if not scalars and not histograms:
            return
        _drop(self._live[split], step)
        if split == "train":
            _drop(self._live["eval"], step + 1)
        time = float(row.get("_timestamp") or 0.0)
        self._live[split].append(_Window(step, place, split, time, scalars, histograms))

    def windows(self) -> list[_Window]:
        """In the order of their steps."""
        return sorted(self._live["train"] + self._live["eval"], key=lambda window: (window.step, window.place))


def _number(row: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    """The first of these that is a finite number."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, int | float) and math.isfinite(value):
            return int(value)
    return None


class _Window(NamedTuple):
    step: int
    place: int
    split: str
    time: float
    scalars: dict[str, float]
    histograms: dict[str, Bins]


def _drop(windows: list[_Window], step: int) -> None:
    """Removes those from a step on."""
    while windows and windows[-1].step >= step:
        windows.pop()


def _statistics(row: Mapping[str, Any], split: str) -> tuple[dict[str, float], dict[str, Bins]]:
    """A split's finite scalars and histograms by the timeline's keys, whoever reported them."""
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
    """A histogram as W&B gives it back: with all edges, or packed as start, width and number of bins."""
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
    """W&B's summary and config hand nested mappings out as objects of their own."""
    return dict(value.items()) if hasattr(value, "items") else {}
