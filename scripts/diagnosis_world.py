"""Prints how often the diagnosis is right on the world of tests/support/world.

    python scripts/diagnosis_world.py                          every kind, seeds 0 and 1
    python scripts/diagnosis_world.py --first 1000 --seeds 5   rates to report
    python scripts/diagnosis_world.py --kind "top_p 0.9"       one kind, with evidence

Seeds 0 to 99 are for tuning thresholds. Rates are reported on seeds from 1000 on; no threshold may be chosen with them.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import torch  # noqa: E402
from tests.support.world.judge import Verdict, judge  # noqa: E402
from tests.support.world.kinds import FAULTS, HEALTHY  # noqa: E402

KINDS = FAULTS | HEALTHY
SIDES = ("config unknown", "config recorded")
OUTCOMES = ("right", "wrong", "nothing", "healthy", "warning", "error")


def judged(task: tuple[str, int]) -> tuple[str, int, tuple[Verdict, Verdict]]:
    """Verdicts on one training, for a pool of processes."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    name, seed = task
    return name, seed, judge(KINDS[name], seed)


def describe(verdict: Verdict) -> str:
    """Text of the findings above info, with their evidence."""
    said = [item for item in verdict.diagnosis.findings if item.level != "info"]
    lines = [f"    {item.level.upper()} {item.name} ({item.confidence}): {item.evidence}" for item in said]
    return "\n".join(lines) or "    nothing above info"


def is_misjudged(verdict: Verdict) -> bool:
    """True if the outcome is not what it should be."""
    if not verdict.right:
        return verdict.outcome != "healthy" or verdict.stopped is not None
    return verdict.outcome != "right" or bool(verdict.wrong_errors)


def tables(results: list[tuple[str, int, tuple[Verdict, Verdict]]]) -> None:
    """Prints the confusion tables, without and with the recorded config."""
    for side, title in enumerate(SIDES):
        for group, kinds in (("faults", FAULTS), ("healthy", HEALTHY)):
            some = [verdicts[side] for name, _, verdicts in results if name in kinds]
            counts = Counter(verdict.outcome for verdict in some)
            parts = [f"{name} {counts[name]}" for name in OUTCOMES if counts[name]]
            wrong = sum(bool(verdict.wrong_errors) for verdict in some)
            stopped = sum(verdict.stopped is not None for verdict in some)
            text = f"stopped {stopped}" if kinds is HEALTHY else f"a wrong cause at ERROR {wrong}"
            print(f"{title}, {len(some)} {group}: {', '.join(parts)}; {text}")


def details(results: list[tuple[str, int, tuple[Verdict, Verdict]]]) -> None:
    """Prints the misjudged trainings, healthy ones first."""
    for name, seed, verdicts in sorted(results, key=lambda item: (item[0] in FAULTS, item[:2])):
        for title, verdict in zip(SIDES, verdicts, strict=True):
            if is_misjudged(verdict):
                truth = " or ".join(sorted(verdict.right)) or "healthy"
                stop = f", stopped at window {verdict.stopped}" if verdict.stopped is not None else ""
                print(f"* {name}, seed {seed}, {title}: {verdict.outcome} (truth: {truth}{stop})\n{describe(verdict)}")


def main() -> None:
    """Judges the chosen kinds and prints tables and misjudged trainings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="only this kind; may be repeated")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    tasks = [(name, seed) for name in arguments.kind or KINDS for seed in seeds]
    with ProcessPoolExecutor(arguments.processes) as pool:
        results = list(pool.map(judged, tasks))
    print(f"seeds {seeds.start} to {seeds.stop - 1}, {len(tasks)} trainings")
    tables(results)
    details(results)


if __name__ == "__main__":
    main()
