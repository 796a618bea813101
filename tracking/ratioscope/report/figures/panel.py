"""Panel: one figure of the report with its texts. Absent: the reason why a figure is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Panel:
    """A figure with the texts that a reader needs to understand it.

    Attributes:
        key: stable name, such as ``"modified"``.
        title: a few words.
        sentence: content of the figure, in one sentence.
        link: address of the definitions, ``#definition-...`` within the page.
        figure: a ``plotly.graph_objects.Figure`` without a template, readable on white and on black.
        metrics: keys of the displayed statistics or histograms.
        note: changes made to the data for display, such as thinning; empty for none.
        group: name of a group of panels that are placed side by side; empty for none.
        tall: whether it needs more height than others.
        run: name of the displayed run, in a group.
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
        key: key of the missing panel.
        title: title of the missing panel.
        reason: one sentence.
        group: group of the missing panel.
    """

    key: str
    title: str
    reason: str
    group: str = ""


def link_of(key: str) -> str:
    """Returns the address of a panel's definitions within the page."""
    return f"#definition-{key}"
