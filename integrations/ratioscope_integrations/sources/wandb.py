"""A run read back from W&B: what was logged there is enough for the report's figures.

Scalars and histograms are those that were sent, to the last bit. Times are those at which W&B was given a row, events
are the newest hundred of a run that was ended, and empty parts of the config are not there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ratioscope import metrics
from ratioscope.histogram import Bins
from ratioscope.timeline import Timeline
from ratioscope.trackers.rows import SHOWN
from ratioscope_integrations.trackers.wandb import STEP_KEY
from ratioscope_integrations.trackers.wandb_metrics import TRAIN
from ratioscope_integrations.trackers.wandb_table import EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EVAL = "eval/"
_HISTOGRAMS = frozenset(f"ratioscope/hist/{name}" for name in SHOWN)
_KEYS = metrics.keys("full")


def read(rest: str) -> Timeline:
    """Reads a run.

    Args:
        rest: ``ENTITY/PROJECT/RUN``, the run by its id; what the address has after ``wandb:``.

    Raises:
        ImportError: if ``wandb`` is missing.
        ValueError: if the address has another form.
        LookupError: if there is no such run, or it has nothing of ratioscope's.
        wandb.Error: if W&B cannot be asked, as without a login.
    """
    parts = rest.strip("/").split("/")
    if len(parts) != 3 or not all(part.strip() for part in parts):
        msg = f"got wandb:{rest}; expected wandb:ENTITY/PROJECT/RUN, as in the address of the run's page without /runs"
        raise ValueError(msg)
    run = _run("/".join(parts))
    timeline = Timeline(name=str(run.name), source=f"wandb:{rest}", config=_mapping(run.config.get("ratioscope")))
    _fill(timeline, run.scan_history())
    if not timeline.windows:
        msg = f"W&B's run {rest} has no row of ratioscope's; was it trained with ratioscope reporting to W&B?"
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
    """Adds the live rows in the order of their steps.

    A row is dead if a later row of its split has no greater step, or one of the training has a smaller one: the
    training was resumed from before it.
    """
    live: dict[str, list[_Window]] = {"train": [], "eval": []}
    for place, row in enumerate(rows):
        step = row.get(STEP_KEY)
        if not isinstance(step, int | float) or not math.isfinite(step):
            continue
        for split in ("train", "eval"):
            scalars, histograms = _statistics(row, split)
            if not scalars and not histograms:
                continue
            _drop(live[split], int(step))
            if split == "train":
                _drop(live["eval"], int(step) + 1)
            window = _Window(int(step), place, split, float(row.get("_timestamp") or 0.0), scalars, histograms)
            live[split].append(window)
    for window in sorted(live["train"] + live["eval"], key=lambda window: (window.step, window.place)):
        timeline.add(window.step, window.split, window.time, window.scalars, window.histograms)


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
