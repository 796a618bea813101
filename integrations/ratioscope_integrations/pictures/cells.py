"""Pictures of log-ratio distributions for the cells of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope_integrations.pictures.pictures import (
    BOUND,
    FRAME,
    GRID,
    MUTED,
    Box,
    beyond,
    canvas,
    dashes,
    draw_bars,
    font,
    note_hidden,
    reach,
    share_y,
    write,
)
from ratioscope_integrations.pictures.scales import (
    MIN_LOG_SHARE,
    log_ratio_label,
    percent_label,
    position,
    tick_step,
    ticks,
    visible_bounds,
)

if TYPE_CHECKING:
    from PIL import Image

    from ratioscope.state.histogram import Bins
    from ratioscope_integrations.pictures.scales import Bounds

CELL_SIZE = 700
"""Width and height in pixels."""

# MLflow displays the picture in a square of half this size, and only its upper half until it is clicked.
_CELL = Box(16, 44, 684, 268)


def cell_picture(bins: Bins, *, title: str, bounds: Bounds) -> Image.Image:
    """Draws bars over the log-ratio for a cell of a table: wide, short, and with few and large letters.

    Args:
        bins: the window's bins; the outer two hold values beyond the axis and have another colour.
        title: a few words.
        bounds: the correction's smallest and largest ratio, drawn as lines; ``(None, None)`` for none.

    Returns:
        A square RGB picture, with the axis in the middle and only text below it.
    """
    image, draw = canvas(CELL_SIZE)
    box = _CELL
    write(draw, (box.left, 6), title, size=28)
    write(draw, (box.right, 6), f"n = {bins.total:,}", anchor="ra", size=28, color=MUTED)
    for exponent in range(MIN_LOG_SHARE, 1):
        y = share_y(box, exponent)
        draw.line([(box.left, y), (box.right - 1, y)], fill=GRID)
    draw_bars(draw, box, bins)
    draw.line([(box.left, box.bottom), (box.right - 1, box.bottom)], fill=FRAME, width=2)
    low, high = float(bins.edges[0]), float(bins.edges[-1])
    step = tick_step(high - low)
    for tick in ticks(low, high, step):
        x = position(tick, low, high, box.left, box.right)
        draw.line([(x, box.bottom), (x, box.bottom + 6)], fill=FRAME, width=2)
        label = log_ratio_label(tick, step)
        half = draw.textlength(label, font=font(28)) / 2
        write(draw, (round(min(max(x, half), CELL_SIZE - half)), box.bottom + 10), label, anchor="ma", size=28)
    for _, value, bound in visible_bounds(bounds, low, high):
        x = position(bound, low, high, box.left, box.right)
        dashes(draw, (x, box.top), (x, box.bottom))
        write(draw, (x + 5, box.top + 3), f"{value:g}", color=BOUND, size=28, halo=True)
    words = (
        "log-ratio to the right, share per bin upwards",
        f"logarithmic scale, lines at {percent_label(MIN_LOG_SHARE)} to {percent_label(0)}",
        f"{reach(bins)}   beyond it: {beyond(bins)}",
    )
    for index, line in enumerate(words):
        write(draw, (box.left, 400 + 40 * index), line, size=26, color=MUTED)
    note_hidden(draw, (box.left, 540), bounds, low, high, size=26)
    return image
