"""Runs that ratioscope did not log: what can be concluded of them, and what cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.report.verdict.line import Line, curve
from ratioscope.text import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratioscope.runs.timeline import Timeline

_P = "ratioscope/"
_LACKS = {
    "the distribution of the raw ratios": (f"{_P}raw/p50",),
    "how many of them the correction changes": (f"{_P}modified/fraction", f"{_P}modified/high"),
    "the effective sample size": (f"{_P}ess/raw", f"{_P}ess/corrected"),
    "the KL between the engines": (f"{_P}kl/k1", f"{_P}kl/k3"),
    "how far they are apart per token": (f"{_P}log_ratio/abs_mean",),
    "what was left out, and why": (f"{_P}tokens/invalid",),
}
"""What people look for, and the statistics of which any says it."""


def lines(timeline: Timeline) -> Iterator[Line]:
    """What can be concluded of such a run, and what cannot."""
    names = ", ".join(dict.fromkeys(name.framework for name in timeline.foreign.values()))
    near = sum(name.relation == "near" for name in timeline.foreign.values())
    told = f"Not ratioscope's own log: {count(len(timeline.foreign), 'number')} of {names}"
    stand = f", {near} of which stand in for ratioscope's and differ as the table says" if near else ""
    yield Line("note", f"{told}{stand}.")
    lacks = [what for what, keys in _LACKS.items() if not any(curve(timeline, key) for key in keys)]
    if lacks:
        yield Line("note", f"Not in this log, so that nothing is said of it: {'; '.join(lacks)}.")
