"""A figure of the report, or the reason why it is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Panel:
    """A figure with what a reader needs to understand it.

    Attributes:
        key: stable name, such as ``"modified"``.
        title: a few words.
        sentence: what the figure shows, in one sentence.
        link: address of the definitions, ``#definition-...`` within the page.
        figure: a ``plotly.graph_objects.Figure`` without a template, readable on white and on black.
        metrics: keys of the statistics that it shows, or of the histograms.
        note: what was done to the data to draw it, such as thinning; empty if nothing was.
        group: panels of one group stand side by side.
        tall: whether it needs more height than others.
        run: name of the run that it shows, where others stand beside it.
    """

    key: str
    title: str
    sentence: str
    link: str
    figure: Any
    metrics: tuple[str, ...] = ()
    note: str = ""
    group: str = ""
    tall: bool = False
    run: str = ""


@dataclass(frozen=True)
class Absent:
    """A figure that cannot be drawn.

    Attributes:
        key: as of the panel.
        title: as of the panel.
        reason: one sentence.
        group: as of the panel.
    """

    key: str
    title: str
    reason: str
    group: str = ""


def link_of(key: str) -> str:
    """Address of a panel's definitions within the page."""
    return f"#definition-{key}"
