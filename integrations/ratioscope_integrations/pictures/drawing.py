"""Drawing primitives of the pictures: canvas, text, bars and dashed lines.

PIL draws, and no plotting library: it takes a few milliseconds a picture, and text stays crisp at a chart's size. It is
imported when a picture is drawn, so that the MLflow tracker can be imported where pillow is missing.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ratioscope_integrations.pictures.scales import MIN_LOG_SHARE, named_bounds, position, visible_bounds

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image, ImageDraw, ImageFont

    from ratioscope.state.histogram import Bins
    from ratioscope_integrations.pictures.scales import Bounds

INK, MUTED, GRID, FRAME = "#1b1f24", "#5b6470", "#e4e7eb", "#9aa3ad"
_BAR, _BEYOND, BOUND = "#3d6fb4", "#e09f3e", "#d1242f"


class Box(NamedTuple):
    """Bounds a plot in pixels; right and bottom are excluded."""

    left: int
    top: int
    right: int
    bottom: int


def canvas(size: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """Makes a white square picture of this many pixels, and what draws on it."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (size, size), "white")
    return image, ImageDraw.Draw(image)


def scaled(pixels: NDArray[np.uint8], width: int, height: int, *, smooth: bool = False) -> Image.Image:
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


def reach(bins: Bins) -> str:
    """Returns the extent of the axis; pictures with equal extents can be compared."""
    return f"axis ±{len(bins.counts) // 2 * float(bins.edges[1] - bins.edges[0]):g}"


def beyond(bins: Bins) -> str:
    """Returns the numbers of values beyond the axis, in words."""
    return f"{int(bins.counts[0]):,} below, {int(bins.counts[-1]):,} above"


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
