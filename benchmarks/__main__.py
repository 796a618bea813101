"""Runs the benchmarks: python -m benchmarks [observe flush memory end-to-end growth] [--short].

Prints one table and writes build/bench/bench.json. `make bench` runs all of it in the environment that has verl and
polgrad as well.
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
    "cuda": "benchmarks.cuda",
    "operations": "benchmarks.operations",
    "profile": "benchmarks.profile",
    "guard": "benchmarks.guard",
}
COMMITTED = ("operations", "guard")


def main(argv: list[str] | None = None) -> int:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--short", action="store_true", help="fewer sizes, and less time for each")
    parser.add_argument("--write", action="store_true", help="operations and guard: commit what is measured")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "bench.json", help="where JSON goes")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}: expected any of {', '.join(PARTS)}")

    import torch

    from benchmarks import table

    torch.set_num_threads(2)
    rows = []
    for part in arguments.parts or PARTS:
        print(f"{part} ...", file=sys.stderr, flush=True)
        options = {"write": True} if arguments.write and part in COMMITTED else {}
        mine = list(importlib.import_module(PARTS[part]).run(short=arguments.short, **options))
        table.write(mine, arguments.output)
        rows += mine
    table.show(rows)
    return int(any(row.subject == "guard" and row.met("reference") is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
