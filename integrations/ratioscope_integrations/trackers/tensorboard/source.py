"""Reader of TensorBoard event files: ratioscope's scalars, or another trainer's metrics of the mismatch.

Requires ``tensorboard``. Histograms are not read, because their empty bins at both ends were not stored.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratioscope.metrics import catalogue
from ratioscope.metrics.metric import PREFIX
from ratioscope.runs.foreign import adopt
from ratioscope.runs.foreign.config import config_of
from ratioscope.runs.timeline import Timeline
from ratioscope_integrations.trackers.points import count_windows, curves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope_integrations.trackers.points import Point

FILES = "events.out.tfevents.*"
_LEVELS = ("", "*/", "*/*/")
"""Folders that are searched: the given one and two levels below, since trainers write to ``runs/NAME`` in theirs."""
_CONFIG, _ARGUMENTS = "ratioscope/config/text_summary", "args/text_summary"
"""Tags of two texts: ratioscope's run config, and the arguments that transformers' callback writes."""


def read(rest: str) -> Timeline:
    """Reads the run whose event files are in a folder, or in the only folder below it that has any.

    Raises:
        ImportError: if ``tensorboard`` is missing.
        FileNotFoundError: if there is no event file.
        LookupError: if there are several runs, or the run has no metric of the mismatch.
    """
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError as error:
        msg = 'reading event files needs tensorboard; install it with: pip install "ratioscope[tensorboard]"'
        raise ImportError(msg) from error
    path = _find(Path(rest))
    sizes = {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 1}
    events = event_accumulator.EventAccumulator(str(path), size_guidance=sizes, purge_orphaned_data=False)
    events.Reload()
    timeline = Timeline(name=_name(path), source=f"tensorboard:{path}", config=_config(events))
    timeline.scalars = curves(_points(events))
    timeline.windows = count_windows(timeline.scalars)
    if not timeline.windows:
        msg = f"got {path}, whose event files have no statistic of the two engines; known are ratioscope's, "
        msg += f"{adopt.KNOWN}"
        raise LookupError(msg)
    return timeline


def _find(path: Path) -> Path:
    """Returns the event file, or the folder that has the event files of one run."""
    if path.is_file():
        return path
    for level in _LEVELS:
        folders = sorted({file.parent for file in path.glob(f"{level}{FILES}")})
        if len(folders) > 1:
            names = ", ".join(str(folder.relative_to(path)) for folder in folders[:8])
            msg = f"got {path}, which has the event files of {len(folders)} runs; expected one of its folders: {names}"
            raise LookupError(msg)
        if folders:
            return folders[0]
    msg = f"got {path}; expected a folder with TensorBoard's event files, {FILES}, and found none"
    raise FileNotFoundError(msg)


def _name(path: Path) -> str:
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    return folder.name


def _points(events: Any) -> Mapping[str, list[Point]]:
    """Returns points by a timeline's key: ratioscope's, or another trainer's if there are none."""
    tags = {tag: adopt.split_key(tag) for tag in events.Tags()["scalars"]}
    known = catalogue.keys("full")
    ours = {tag: key for tag, key in tags.items() if key[1] in known}
    if not any(plain.startswith(PREFIX) for _, plain in ours.values()):
        ours = {tag: key for tag, key in tags.items() if adopt.is_known(tag)}
    points: dict[str, list[Point]] = {}
    for tag, key in ours.items():
        series = [(event.step, int(1000 * event.wall_time), event.value) for event in events.Scalars(tag)]
        points.setdefault("".join(key), []).extend(point for point in series if math.isfinite(point[2]))
    return points


def _config(events: Any) -> Mapping[str, Any]:
    """Returns the run config as far as it was logged."""
    tags = events.Tags()["tensors"]
    ours = _json(events, _CONFIG) if _CONFIG in tags else {}
    return ours or (config_of(_json(events, _ARGUMENTS)) if _ARGUMENTS in tags else {})


def _json(events: Any, tag: str) -> dict[str, Any]:
    """Parses the JSON object of a text, fenced or not; empty if the text is something else."""
    text = events.Tensors(tag)[-1].tensor_proto.string_val[0].decode(errors="replace")
    try:
        value = json.loads(text.strip().removeprefix("```json").removesuffix("```"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
