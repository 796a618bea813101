"""Runs the benchmarks: python -m benchmarks [observe flush memory end-to-end growth ...] [--short].

Prints one table, and writes build/bench/bench.json and bench.svg, the chart of docs/performance.md. `make bench` runs
all parts in the environment that has verl and polgrad.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "observe": "benchmarks.observe",
    "flush": "benchmarks.flush",
    "memory": "benchmarks.memory",
    "end-to-end": "benchmarks.end_to_end",
    "growth": "benchmarks.growth",
    "operations": "benchmarks.operations",
    "guard": "benchmarks.guard",
}
DEFAULT = tuple(name for name in PARTS if name != "guard")
COMMITTED = ("operations", "guard")


def main(argv: list[str] | None = None) -> int:
    """Measures the parts that the command line names; returns 1 if the guard finds a ratio above its bound."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of: {', '.join(PARTS)} (default: all but guard)")
    parser.add_argument("--short", action="store_true", help="fewer sizes, and less time for each")
    parser.add_argument("--write", action="store_true", help="operations and guard: write the committed numbers")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "bench" / "bench.json", help="JSON file of rows"
    )
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}: expected any of {', '.join(PARTS)}")

    import torch

    from benchmarks import chart, table
    from ratioscope.summary import kernels

    torch.set_num_threads(2)
    if not kernels.ready("cpu"):
        print("no kernel for the CPU: the reference implementation is measured (is numba installed?)", file=sys.stderr)
    rows = []
    for part in arguments.parts or DEFAULT:
        print(f"{part} ...", file=sys.stderr, flush=True)
        options = {"write": True} if arguments.write and part in COMMITTED else {}
        part_rows = list(importlib.import_module(PARTS[part]).run(short=arguments.short, **options))
        table.write(part_rows, arguments.output)
        rows += part_rows
    table.show(rows)
    chart.draw(table.read(arguments.output), arguments.output.with_suffix(".svg"))
    return int(any(row.subject == "guard" and row.met("reference") is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
