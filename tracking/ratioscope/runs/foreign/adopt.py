"""Runs that somebody else logged: which of their numbers are ours, which stand in for ours, and which are neither."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from ratioscope.runs.foreign.names import NAMES, Name
from ratioscope.runs.timeline import Curve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.runs.timeline import Timeline

EVAL = "eval/"
OWN = "ratioscope/"
KNOWN = "TRL's sampling/*, verl's rollout_corr/*, slime's tis* and mis_*, NeMo-RL's, prime-rl's or open-instruct's"
"""Whose names are known, in a few words."""

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
    """Puts numbers that somebody else logged where ours would be, and notes whose they are.

    A run with any number of ours stays as it is. Each curve stays under its own name as well.
    """
    if any(split_key(key)[1].startswith(OWN) for key in timeline.scalars):
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
    """A name of somebody else's, and in what it differs from ours; empty for no name."""
    name = find(origin) if origin else None
    if name is None:
        return ""
    return f"{origin} ({name.differs})" if name.differs else origin


def sentence(name: Name) -> str:
    """Describes a third-party metric in our terms, in one sentence."""
    if name.exact:
        return f"the same; {name.differs}" if name.differs else "the same"
    return f"near: {name.differs}" if name.ours else f"none of ours: {name.differs}"
