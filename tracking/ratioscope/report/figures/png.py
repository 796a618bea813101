"""Writes figures as PNG files, for a paper or an issue."""

from __future__ import annotations

import html
import re
import textwrap
from typing import TYPE_CHECKING, Any

from ratioscope.extras import require
from ratioscope.report.figures.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ratioscope.report.figures.panel import Absent

WIDTH, HEIGHT, SCALE = 900, 500, 2
"""Size of a figure in pixels, and pixels of the file per pixel of the figure."""

_LINE = 150
"""Characters per line of the sentence below the title."""

_NO_BROWSER = (
    "PNG files are drawn in a browser, and no Chrome or Chromium was found; install one, for instance with "
    "`apt install chromium` or `plotly_get_chrome`, or name it in BROWSER_PATH"
)


def check_png(folder: Path) -> None:
    """Checks that figures can be written as PNG, before a run is read.

    Raises:
        ImportError: if plotly or kaleido is missing.
        FileExistsError: if the folder is a file.
    """
    require("plotly")
    require("kaleido", extra="png")
    if folder.exists() and not folder.is_dir():
        msg = f"got {folder} for PNG files, which is a file; expected a folder, which is created if it is missing"
        raise FileExistsError(msg)


def write_png(panels: Sequence[Panel | Absent], folder: Path) -> int:
    """Writes each figure on white, named by its panel's key; creates the folder if it is missing.

    Returns:
        Number of files.

    Raises:
        ImportError: if plotly or kaleido is missing.
        FileNotFoundError: if there is no browser for kaleido to draw in.
    """
    check_png(folder)
    import plotly.io

    drawn = [panel for panel in panels if isinstance(panel, Panel)]
    folder.mkdir(parents=True, exist_ok=True)
    files: list[str | Path] = [folder / f"{re.sub('[^A-Za-z0-9_-]+', '_', panel.key)}.png" for panel in drawn]
    try:
        # One call for all figures: each call starts a browser, which takes a second or two.
        plotly.io.write_images([_on_white(panel) for panel in drawn], files, width=WIDTH, height=HEIGHT, scale=SCALE)
    except Exception as error:
        # plotly replaces kaleido's error by a plain RuntimeError, so only the text identifies it.
        if "Chrome" in f"{error} {error.__context__}" and "require" in str(error):
            raise FileNotFoundError(_NO_BROWSER) from error
        raise
    return len(files)


def _on_white(panel: Panel) -> Any:
    """Returns a copy of a figure for paper: on white, with its title, without controls."""
    import plotly.graph_objects as go

    figure: Any = go.Figure(panel.figure)
    title = ", ".join([panel.title, *(_slider_text(slider) for slider in figure.layout.sliders)])
    lines = textwrap.wrap(f"{panel.sentence} {panel.note}".strip(), _LINE)
    figure.frames = figure.layout.sliders = figure.layout.updatemenus = ()
    return figure.update_layout(
        template="plotly_white",
        paper_bgcolor="white",
        plot_bgcolor="white",
        font={"color": "#1f2328"},
        # plotly interprets tags in a text; only these breaks are intended.
        title={
            "text": html.escape(title, quote=False),
            "subtitle": {"text": "<br>".join(map(html.escape, lines)), "font": {"size": 11}},
        },
        margin={"t": 84 + 15 * len(lines)},
        title_x=0.01,
        title_y=0.98,
        title_yanchor="top",
    )


def _slider_text(slider: Any) -> str:
    """Returns the text above the slider."""
    return f"{slider.currentvalue.prefix or ''}{slider.steps[slider.active or 0].label}"
