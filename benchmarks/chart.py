"""Chart of docs/performance.md: time of each contender over TRL's, by tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from benchmarks.observe import FULL, HEADLINE, LONGEST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.harness import Row

_TIMES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
WIDTH, HEIGHT = 900, 480

Curves = dict[str, dict[int, float]]


def curves(rows: Sequence[Row]) -> Curves:
    """Milliseconds by contender and number of tokens, for padded float32 batches with the longest completions."""
    times: Curves = {}
    for row in rows:
        shape = re.fullmatch(r"(\d+)x(\d+) padded float32", row.case)
        if row.subject != "observe" or shape is None or row.value is None:
            continue
        width, tokens = int(shape[2]), int(shape[1]) * int(shape[2])
        if width == min(tokens, LONGEST):
            times.setdefault(row.name, {})[tokens] = row.value
    return times


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Draws the chart.

    Returns:
        False if TRL's block was not measured, or if there is no Chromium to draw with.
    """
    import plotly.graph_objects as go

    times = curves(rows)
    base = times.get("TRL", {})
    if not base:
        return False
    figure = go.Figure()
    for name, curve in times.items():
        sizes = sorted(set(curve) & set(base))
        ours = name in (FULL, HEADLINE)
        figure.add_scatter(
            x=sizes,
            y=[curve[size] / base[size] for size in sizes],
            name=f"ratioscope, {name}" if ours else name,
            mode="lines+markers",
            line={"width": 3 if ours else 1.5, "dash": "solid" if ours else "dot"},
        )
    ticks = sorted(base)
    figure.update_layout(
        template="plotly_white",
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 70, "r": 20, "t": 40, "b": 60},
        title="Time for one batch over that of TRL's own block, which makes five numbers",
        xaxis={
            "type": "log",
            "title": "tokens",
            "tickvals": ticks,
            "ticktext": [f"2^{tick.bit_length() - 1}" for tick in ticks],
        },
        yaxis={"type": "log", "title": "times TRL's", "tickvals": _TIMES, "ticktext": [f"{time:g}" for time in _TIMES]},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        figure.write_image(path)
    except (RuntimeError, ValueError, OSError) as error:
        print(f"no chart: {str(error).splitlines()[0]}")
        return False
    return True
