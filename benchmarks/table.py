"""Printed table of results, and the JSON file that stores them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WIDTH = 180
"""Columns of the output where it is no terminal."""
UNITS = {"x": "", "exponent": "", "count": ""}


def value(row: Row) -> str:
    """Formats the value with its unit."""
    if row.value is None:
        return "-"
    unit = UNITS.get(row.unit, row.unit)
    return f"{row.value:.4g} {unit}".rstrip()


def verdict(row: Row) -> str:
    """Names each target with ``met``, ``NOT met`` or ``not measured``."""
    words = {True: "met", False: "NOT met", None: "not measured"}
    return "; ".join(
        f"{'' if name == 'value' else name + ' '}<= {limit:g}: {words[row.met(name)]}"
        for name, limit in row.targets.items()
    )


def show(rows: Sequence[Row]) -> None:
    """Prints all rows as one table: medians, ratios, targets."""
    table = Table(title="ratioscope benchmarks: medians, and ratios within the same run (below 1 is less)")
    table.add_column("case")
    table.add_column("what")
    table.add_column("median", justify="right")
    table.add_column("over that of", overflow="fold")
    table.add_column("target", overflow="fold")
    last = ""
    for row in rows:
        case = f"{row.subject} {row.case}".rstrip()
        if last not in ("", case):
            table.add_section()
        beside = "  ".join(f"{name} {ratio:.3g}" for name, ratio in row.ratios.items())
        table.add_row("" if case == last else case, row.name, value(row), beside or row.note, verdict(row))
        last = case
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(table)


def write(rows: Sequence[Row], path: Path) -> None:
    """Writes rows to a file, in place of its rows of the same parts."""
    new = {row.subject for row in rows}
    kept = [row for row in read(path) if row.subject not in new] if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in [*kept, *rows]], indent=1) + "\n")


def read(path: Path) -> list[Row]:
    """Reads the rows of a file."""
    return [Row(**row) for row in json.loads(path.read_text())]
