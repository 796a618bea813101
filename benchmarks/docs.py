"""What docs/performance.md shows of a run of the benchmarks: a block of tables, and a chart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import table
from benchmarks.observe import FULL, HEADLINE, LONGEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.harness import Row

ROOT = Path(__file__).resolve().parent.parent
PAGE, CHART = ROOT / "docs" / "performance.md", ROOT / "docs" / "img" / "performance-observe.svg"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
PEERS = ("TRL", "verl", "polgrad", "numpy.histogram", "wandb.Histogram")
_TIMES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
WIDTH, HEIGHT = 900, 480


def publish(rows: Sequence[Row]) -> None:
    """Writes the block into the page, and the chart beside it where there is a Chromium to draw it."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(replaced(text, render(rows)), encoding="utf-8")
    draw(rows, CHART)


def replaced(text: str, block: str) -> str:
    """A page with another block between the markers.

    Raises:
        ValueError: if the page has not exactly one place for it.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after:
        msg = f"got a page without one block from {BEGIN} to {END}; expected exactly one"
        raise ValueError(msg)
    return f"{before}{BEGIN}\n\n{block.strip()}\n\n{END}{after}"


def render(rows: Sequence[Row]) -> str:
    """The block: one table for each part that was run."""
    parts = (_targets, _observe, _flush, _shares, _growth, _end_to_end)
    return "\n\n".join(text for part in parts if (text := "\n".join(part(rows))))


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    if not lines:
        return
    yield "| " + " | ".join(head) + " |"
    yield "| --- |" + " ---: |" * (len(head) - 1)
    yield from ("| " + " | ".join(line) + " |" for line in lines)


def _of(rows: Sequence[Row], subject: str) -> list[Row]:
    return [row for row in rows if row.subject == subject]


def _targets(rows: Sequence[Row]) -> Iterator[str]:
    lines = []
    for row in rows:
        for name, limit in row.targets.items():
            if row.subject == "guard":
                continue
            own = name == "value"
            got = row.value if own else row.ratios.get(name)
            unit = f" {table.UNITS.get(row.unit, row.unit)}".rstrip() if own else f" × {name}"
            met = {True: "yes", False: "**no**", None: "not measured"}[row.met(name)]
            shown = "-" if got is None else f"{got:.3g}{unit}"
            lines.append((f"{row.subject}, {row.case}: {row.name}", f"≤ {limit:g}{unit}", shown, met))
    lines += [(f"{row.subject}, {row.case}: {row.name}", "", row.note, "") for row in rows if row.value is None]
    if lines:
        yield "**Targets**\n"
        yield from _table(("what", "target", "measured", "met"), lines)


def _observe(rows: Sequence[Row]) -> Iterator[str]:
    lines = [
        (row.case, row.name, *(f"{row.ratios[peer]:.2f}" if peer in row.ratios else "-" for peer in PEERS))
        for row in _of(rows, "observe")
        if row.name in (FULL, HEADLINE) and row.value is not None
    ]
    if lines:
        yield "**Observing one batch: our time over that of others**\n"
        yield from _table(("batch", "ours", *PEERS), lines)
        yield "\n![Time of each over TRL's block, by tokens](img/performance-observe.svg)"


def _flush(rows: Sequence[Row]) -> Iterator[str]:
    mine = [row for row in _of(rows, "flush") if row.case.startswith("one process") and row.value is not None]
    wholes = {row.case: row.value for row in mine if row.name == "whole"}
    lines = [
        (row.case, row.name, f"{100.0 * (row.value or 0.0) / (wholes[row.case] or 1.0):.1f} %")
        for row in mine
        if row.name != "whole"
    ]
    if lines:
        yield "**A flush by stage, of the whole** (pack and unpack are parts of the merge)\n"
        yield from _table(("where", "stage", "share"), lines)


def _shares(rows: Sequence[Row]) -> Iterator[str]:
    lines = []
    for row in rows:
        many = row.subject == "flush" and not row.case.startswith("one process")
        if not many and row.subject != "memory":
            continue
        told = "; ".join(f"{ratio:.3g} × {name}" for name, ratio in row.ratios.items())
        if not told and row.unit == "bytes":
            told = f"{row.value:.0f} bytes"
        if told:
            lines.append((f"{row.subject}, {row.case}", row.name, told))
    if lines:
        yield "**Merging over ranks, and memory**\n"
        yield from _table(("where", "what", "measured"), lines)


def _growth(rows: Sequence[Row]) -> Iterator[str]:
    lines = [(row.case, row.name, f"{row.value:.2f}", row.note) for row in _of(rows, "growth")]
    if lines:
        yield "**Growth: the fitted exponent**\n"
        yield from _table(("what grows", "what", "exponent", "wanted"), lines)


def _end_to_end(rows: Sequence[Row]) -> Iterator[str]:
    lines = [
        (
            row.case,
            row.name,
            "; ".join(f"{ratio:.3g} × {name}" for name, ratio in row.ratios.items()) or table.value(row),
        )
        for row in _of(rows, "end to end")
        if row.value is not None and (row.ratios or row.unit == "bytes")
    ]
    if lines:
        yield "**A run as a whole**\n"
        yield from _table(("where", "what", "measured"), lines)


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Draws everybody's time over TRL's, by tokens, for padded float32 rows as long as they get."""
    import plotly.graph_objects as go

    curves: dict[str, dict[int, float]] = {}
    for row in _of(rows, "observe"):
        shape = re.fullmatch(r"(\d+)x(\d+) padded float32", row.case)
        if shape is None or row.value is None:
            continue
        width, tokens = int(shape[2]), int(shape[1]) * int(shape[2])
        if width == min(tokens, LONGEST):
            curves.setdefault(row.name, {})[tokens] = row.value
    base = curves.get("TRL", {})
    if not base:
        return False
    figure = go.Figure()
    for name, curve in curves.items():
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
            "ticktext": [f"2^{t.bit_length() - 1}" for t in ticks],
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
