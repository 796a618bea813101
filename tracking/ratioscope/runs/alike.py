"""Reading several runs with the same bins, so that their histograms have the same axes."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from ratioscope.runs.read import read, tracker_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ratioscope.runs.timeline import Timeline


def read_alike(addresses: Sequence[str | Path]) -> list[Timeline]:
    """Reads runs; journals get, at each level, the widest bins that any of the runs has.

    What a tracker has keeps its bins: they were counted in the training.

    Raises:
        FileNotFoundError: if there is no journal, and the address names no tracker either.
        JournalError: if the file is no journal, or of a newer version.
        ImportError: if a tracker's package is missing.
        LookupError: if a tracker has no such run.
    """
    timelines = [read(address) for address in addresses]
    found = [exponents(timeline) for timeline in timelines]
    widest = {level: max(each[level] for each in found if level in each) for level in set().union(*found)}
    return [
        timeline
        if tracker_of(address) or all(own[level] == widest[level] for level in own)
        else read(address, exponents=widest)
        for address, timeline, own in zip(addresses, timelines, found, strict=True)
    ]


def exponents(timeline: Timeline) -> dict[str, int]:
    """Widths of a run's bins, ``2**exponent``, by level."""
    found = {}
    for level in ("token", "sequence"):
        for prefix in ("", "eval/"):
            with suppress(KeyError):
                edges = timeline.history.latest(f"{prefix}ratioscope/hist/{level}_log_ratio").edges
                found[level] = round(math.log2(edges[1] - edges[0]))
    return found
