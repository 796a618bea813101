"""Third-party runs: reads their metrics as the equal or nearest ones of ratioscope, and notes the difference."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from ratioscope.metrics.metric import PREFIX
from ratioscope.runs.foreign.names import NAMES, Name
from ratioscope.runs.timeline import Curve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.runs.timeline import Timeline

EVAL = "eval/"
KNOWN = "TRL's sampling/*, verl's rollout_corr/*, slime's tis* and mis_*, NeMo-RL's, prime-rl's or open-instruct's"
"""Trainers whose metric names are known, as messages list them."""

_PREFIXES = {"train/": "", EVAL: EVAL, "eval_": EVAL}
"""Prefixes that trainers put before a key, and the timeline's prefix for each."""


def split_key(key: str) -> tuple[str, str]:
    """A timeline's prefix, and the key without the one that a trainer puts before it."""
    for theirs, prefix in _PREFIXES.items():
        if key.startswith(theirs):
            return prefix, key.removeprefix(theirs)
    return "", key


@lru_cache(maxsize=4096)
def find(key: str) -> Name | None:
    """Returns the meaning of another trainer's key; None if it is unknown.

    Args:
        key: without ``train/``.
    """
    return next((name for name in NAMES if name.pattern == key or fnmatchcase(key, name.pattern)), None)


def is_known(key: str) -> bool:
    """True if a key, as a trainer writes it, is a known statistic of the two engines."""
    return find(split_key(key)[1]) is not None


def scalars_of(row: Mapping[str, object]) -> dict[str, dict[str, float]]:
    """The finite numbers of a row that are known, by split and by a timeline's key."""
    found: dict[str, dict[str, float]] = {"train": {}, "eval": {}}
    for key, value in row.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and is_known(key):
            prefix, plain = split_key(key)
            found["eval" if prefix else "train"][prefix + plain] = float(value)
    return found


def adopt(timeline: Timeline) -> Timeline:
    """Copies third-party curves to the keys of the ratioscope metrics they stand in for, and notes their origin.

    A run with any metric of ratioscope is returned unchanged. Every curve also stays under its original key.
    """
    if any(split_key(key)[1].startswith(PREFIX) for key in timeline.scalars):
        return timeline
    found = [(key, name) for key in timeline.scalars if (name := find(split_key(key)[1])) is not None]
    for key, name in sorted(found, key=lambda pair: not pair[1].exact):
        prefix, plain = split_key(key)
        timeline.foreign[plain] = name
        known = timeline.scalars.get(prefix + name.ours)
        if name.ours and (known is None or prefix + name.ours == key):
            curve = timeline.scalars[key]
            timeline.scalars[prefix + name.ours] = Curve(curve.steps, curve.times, curve.values, origin=plain)
    return timeline


def read_as(timeline: Timeline, key: str) -> str:
    """Describes the third-party metric that a statistic was read from; empty if ratioscope logged it."""
    curve = timeline.scalars.get(key)
    return "" if curve is None else origin_text(curve.origin)


def origin_text(origin: str) -> str:
    """Describes a third-party metric and how it differs from ours; empty for an unknown or empty name."""
    name = find(origin) if origin else None
    if name is None:
        return ""
    return f"{origin} ({name.differs})" if name.differs else origin


def sentence(name: Name) -> str:
    """Describes a third-party metric in our terms, in one sentence."""
    if name.exact:
        return f"the same; {name.differs}" if name.differs else "the same"
    return f"near: {name.differs}" if name.ours else f"none of ours: {name.differs}"
