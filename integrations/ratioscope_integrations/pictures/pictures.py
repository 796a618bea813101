"""Pictures of log-ratio distributions for trackers without a histogram type, drawn in milliseconds.

All scales except the step axis are fixed by the bins' edges, so that pictures of different windows and runs with the
same edges can be compared side by side. Shares have a logarithmic scale from 0.001 % to 100 %: a correction removes a
small share, which would be invisible on a linear scale.

PIL draws, and no plotting library: it takes a few milliseconds a picture, and text stays crisp at a chart's size. It is
imported when a picture is drawn, so that the MLflow tracker can be imported where pillow is missing.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ratioscope_integrations.pictures.scales import (
    MIN_LOG_SHARE,
    PALETTE,
    heat_cells,
    log_ratio_label,
    named_bounds,
    percent_label,
    position,
    ratio_label,
    step_label,
    tick_step,
    ticks,
    visible_bounds,
    window_starts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from PIL import Image, ImageDraw, ImageFont

    from ratioscope.state.histogram import Bins
    from ratioscope_integrations.pictures.scales import Bounds

SIZE = 480
"""Width and height in pixels: trackers display pictures in square cells."""
INK, MUTED, GRID, FRAME = "#1b1f24", "#5b6470", "#e4e7eb", "#9aa3ad"
_BAR, _BEYOND, BOUND = "#3d6fb4", "#e09f3e", "#d1242f"


class Box(NamedTuple):
    """Bounds a plot in pixels; right and bottom are excluded."""

    left: int
    top: int
    right: int
    bottom: int


# MLflow displays these pictures at 256 pixels and hides the lowest sixth of one on a card. So letters are large, and
# the axes end above that part.
_BARS = Box(80, 66, 464, 336)
_HEAT = Box(66, 80, 402, 340)


def histogram_picture(bins: Bins, *, title: str, bounds: Bounds) -> Image.Image:
    """Draws bars over the log-ratio, labelled in ratios too.

    Args:
        bins: the window's bins; the outer two hold values beyond the axis and have another colour.
        title: one line, about 50 characters.
        bounds: the correction's smallest and largest ratio, drawn as lines; ``(None, None)`` for none.

    Returns:
        A square RGB picture.
    """
    image, draw = canvas(SIZE)
    write(draw, (14, 10), title, size=20)
    write(draw, (14, 36), f"n = {bins.total:,}   share per bin, log scale   {reach(bins)}", color=MUTED)
    box = _BARS
    for exponent in range(MIN_LOG_SHARE, 1):
        y = share_y(box, exponent)
        draw.line([(box.left, y), (box.right - 1, y)], fill=GRID)
        write(draw, (box.left - 6, y), percent_label(exponent), anchor="rm", color=MUTED)
    draw_bars(draw, box, bins)
    draw.line([(box.left, box.bottom), (box.right - 1, box.bottom)], fill=FRAME)
    low, high = float(bins.edges[0]), float(bins.edges[-1])
    step = tick_step(high - low)
    for tick in ticks(low, high, step):
        x = position(tick, low, high, box.left, box.right)
        draw.line([(x, box.bottom), (x, box.bottom + 4)], fill=FRAME)
        write(draw, (x, box.bottom + 7), log_ratio_label(tick, step), anchor="ma")
        write(draw, (x, box.bottom + 26), ratio_label(tick, step), anchor="ma", color=MUTED)
    write(draw, (6, box.bottom + 9), "log-ratio", size=13)
    write(draw, (6, box.bottom + 28), "ratio", size=13, color=MUTED)
    for name, value, bound in visible_bounds(bounds, low, high):
        x = position(bound, low, high, box.left, box.right)
        dashes(draw, (x, box.top), (x, box.bottom))
        side, anchor = (-5, "ra") if name == "lower" else (5, "la")
        write(draw, (x + side, box.top + 3), f"{name} {value:g}", anchor=anchor, color=BOUND, halo=True)
    write(draw, (14, 424), f"beyond the axis: {beyond(bins)}", color=MUTED)
    note_hidden(draw, (14, 448), bounds, low, high)
    return image


def heatmap_picture(columns: Sequence[Bins], steps: Sequence[int], *, title: str, bounds: Bounds) -> Image.Image:
    """Draws a whole training: step to the right, log-ratio upwards, colour for the share of the window.

    Args:
        columns: bins of each window, all with the same edges.
        steps: the last step of each window, ascending; a window reaches back to the one before it.
        title: one line, about 50 characters.
        bounds: as for :func:`histogram_picture`.

    Returns:
        A square RGB picture.

    Raises:
        ValueError: if there is no column, a step is missing, or the edges differ.
    """
    _check_columns(columns, steps)
    image, draw = canvas(SIZE)
    write(draw, (14, 10), title, size=20)
    n = sum(bins.total for bins in columns)
    write(draw, (14, 36), f"n = {n:,}   share of its step, per bin   {reach(columns[0])}", color=MUTED)
    box, edges = _HEAT, columns[0].edges
    starts = window_starts(steps)
    cells = heat_cells(np.stack([bins.counts for bins in columns]), starts, box.right - box.left)
    image.paste(_scaled(cells, box.right - box.left, box.bottom - box.top), (box.left, box.top))
    draw.rectangle([box.left - 1, box.top - 1, box.right, box.bottom], outline=FRAME)
    _heat_axes(draw, box, edges, (float(starts[0]), float(starts[-1])))
    low, high = float(edges[0]), float(edges[-1])
    for name, value, bound in visible_bounds(bounds, low, high):
        y = position(bound, high, low, box.top, box.bottom)
        dashes(draw, (box.left, y), (box.right, y))
        place, anchor = (y + 3, "ra") if name == "lower" else (y - 5, "rd")
        write(draw, (box.right - 5, place), f"{name} {value:g}", anchor=anchor, color=BOUND, halo=True)
    _legend(image, draw, box)
    note_hidden(draw, (14, 448), bounds, low, high)
    return image


def reach(bins: Bins) -> str:
    """Returns the extent of the axis; pictures with equal extents can be compared."""
    return f"axis ±{len(bins.counts) // 2 * float(bins.edges[1] - bins.edges[0]):g}"


def beyond(bins: Bins) -> str:
    """Returns the numbers of values beyond the axis, in words."""
    return f"{int(bins.counts[0]):,} below, {int(bins.counts[-1]):,} above"


def canvas(size: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """Makes a white square picture of this many pixels, and what draws on it."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (size, size), "white")
    return image, ImageDraw.Draw(image)


def _scaled(pixels: NDArray[np.uint8], width: int, height: int, *, smooth: bool = False) -> Image.Image:
    """Scales an array ``(rows, columns, 3)`` to a picture; mixes neighbouring colours only if ``smooth``."""
    from PIL import Image

    return Image.fromarray(pixels).resize((width, height), None if smooth else Image.Resampling.NEAREST)


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Returns PIL's own font of this size; cached, because making it takes longer than a picture."""
    from PIL import ImageFont

    return ImageFont.load_default(size=size)


def write(
    draw: ImageDraw.ImageDraw,
    place: tuple[int, int],
    text: str,
    *,
    anchor: str = "la",
    size: int = 16,
    color: str = INK,
    halo: bool = False,
) -> None:
    """Writes a line of text; ``halo`` makes it readable on any colour."""
    width = 3 if halo else 0
    draw.text(place, text, fill=color, font=font(size), anchor=anchor, stroke_width=width, stroke_fill="white")


def draw_bars(draw: ImageDraw.ImageDraw, box: Box, bins: Bins) -> None:
    """Draws a bar for each bin with values; the height is the logarithm of the bin's share."""
    n, total = len(bins.counts), max(bins.total, 1)
    for index in np.flatnonzero(bins.counts):
        x0 = box.left + round(int(index) * (box.right - box.left) / n)
        x1 = box.left + round((int(index) + 1) * (box.right - box.left) / n) - 2
        top = share_y(box, math.log10(bins.counts[index] / total))
        outer = index in (0, n - 1)
        draw.rectangle([x0, min(top, box.bottom - 2), max(x0, x1), box.bottom - 1], fill=_BEYOND if outer else _BAR)


def _heat_axes(draw: ImageDraw.ImageDraw, box: Box, edges: NDArray[np.float64], span: tuple[float, float]) -> None:
    low, high = float(edges[0]), float(edges[-1])
    step = tick_step(high - low)
    for tick in ticks(low, high, step):
        y = position(tick, high, low, box.top, box.bottom)
        draw.line([(box.left - 5, y), (box.left - 2, y)], fill=FRAME)
        draw.line([(box.right + 1, y), (box.right + 4, y)], fill=FRAME)
        write(draw, (box.left - 8, y), log_ratio_label(tick, step), anchor="rm")
        write(draw, (box.right + 8, y), ratio_label(tick, step), anchor="lm", color=MUTED)
    write(draw, (box.left - 8, box.top - 6), "log-ratio", anchor="rd", size=13)
    write(draw, (box.right + 8, box.top - 6), "ratio", anchor="ld", size=13, color=MUTED)
    step = max(tick_step(span[1] - span[0]), 1.0)
    for tick in ticks(*span, step):
        x = position(tick, *span, box.left, box.right)
        draw.line([(x, box.bottom + 1), (x, box.bottom + 4)], fill=FRAME)
        write(draw, (x, box.bottom + 7), step_label(tick), anchor="ma")
    write(draw, (box.left - 8, box.bottom + 7), "step", anchor="ra")


def _legend(image: Image.Image, draw: ImageDraw.ImageDraw, box: Box) -> None:
    top, bottom = box.bottom + 50, box.bottom + 64
    strip = _scaled(PALETTE[None], box.right - box.left, bottom - top, smooth=True)
    image.paste(strip, (box.left, top))
    for exponent in range(MIN_LOG_SHARE, 1):
        x = position(exponent, MIN_LOG_SHARE, 0, box.left, box.right)
        draw.line([(x, bottom), (x, bottom + 3)], fill=FRAME)
        write(draw, (x, bottom + 5), percent_label(exponent), anchor="ma", size=13, color=MUTED)


def note_hidden(
    draw: ImageDraw.ImageDraw, place: tuple[int, int], bounds: Bounds, low: float, high: float, *, size: int = 16
) -> None:
    """Names the bounds that lie outside the axis."""
    visible = {name for name, _, _ in visible_bounds(bounds, low, high)}
    hidden = [f"{name} {value:g}" for name, value in named_bounds(bounds) if name not in visible]
    if hidden:
        write(draw, place, f"outside the axis: {', '.join(hidden)}", size=size, color=BOUND)


def dashes(draw: ImageDraw.ImageDraw, start: tuple[int, int], end: tuple[int, int]) -> None:
    """Draws a dashed line, horizontal or vertical, two pixels wide."""
    length = max(end[0] - start[0], end[1] - start[1])
    right, down = int(end[0] > start[0]), int(end[1] > start[1])
    for offset in range(0, length, 10):
        stop = min(offset + 6, length) - 1
        x, y = start[0] + right * offset, start[1] + down * offset
        draw.rectangle([x, y, x + (right * (stop - offset) or 1), y + (down * (stop - offset) or 1)], fill=BOUND)


def share_y(box: Box, log_share: float) -> int:
    """Returns the vertical pixel of a share, given its log10."""
    return position(max(log_share, MIN_LOG_SHARE), 0.0, MIN_LOG_SHARE, box.top, box.bottom)


def _check_columns(columns: Sequence[Bins], steps: Sequence[int]) -> None:
    if not columns or len(columns) != len(steps):
        msg = f"got {len(columns)} columns and {len(steps)} steps; expected one step a column and at least one"
        raise ValueError(msg)
    if any(not np.array_equal(bins.edges, columns[0].edges) for bins in columns):
        msg = "got columns with different edges; expected the same edges in one picture. Draw one picture per edges."
        raise ValueError(msg)
