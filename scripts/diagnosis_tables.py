"""Writes the tables of docs/reference/diagnosis.md: causes, thresholds, and rates of right findings.

python scripts/diagnosis_tables.py               writes the causes and the thresholds
python scripts/diagnosis_tables.py --simulate    also simulates the rates, which takes minutes
python scripts/diagnosis_tables.py --check       changes nothing; exits with 1 if causes or thresholds are out of date
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ratioscope.diagnosis import CAUSES  # noqa: E402
from ratioscope.diagnosis import thresholds as limits  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE = "docs/reference/diagnosis.md"


def causes() -> str:
    """Table of every cause."""
    lines = ["| cause | what it is | what shows it | remedy | source |", "| --- | --- | --- | --- | --- |"]
    for cause in CAUSES:
        shows = " ".join((inspect.getdoc(cause.check) or "").split())
        cells = (f"`{cause.name}`", cause.meaning, shows, cause.remedy, cause.source)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def thresholds() -> str:
    """Table of every threshold with its reason, in the order of the source."""
    lines = ["| threshold | value | reason |", "| --- | --- | --- |"]
    for names, reason in _constants(ast.parse(inspect.getsource(limits)).body):
        values = ", ".join(str(getattr(limits, name)) for name in names)
        text = " ".join(reason.split()).replace("|", "\\|")
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {values} | {text} |")
    return "\n".join(lines)


def rates() -> str:
    """Table of the false alarms of healthy runs and the first findings of faulty ones, by simulation."""
    from tests.support.scenarios import SCENARIOS
    from tests.support.trials import FAULTY_RUNS, HEALTHY_RUNS, HELD_OUT, false_alarms, named

    alarms = false_alarms(range(HEALTHY_RUNS), stream=HELD_OUT)
    lines = [
        f"Of {HEALTHY_RUNS:,} healthy runs {len(alarms)} raised anything above info.",
        "",
        "| fault | strength | runs | first finding | otherwise |",
        "| --- | --- | --- | --- | --- |",
    ]
    for index, scenario in enumerate(SCENARIOS):
        counts = named(index)
        right = counts.pop(scenario.cause, 0)
        others = ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "–"
        lines.append(f"| `{scenario.cause}` | {scenario.strength} | {FAULTY_RUNS} | {right} | {others} |")
    return "\n".join(lines)


def _constants(body: list[ast.stmt]) -> Iterator[tuple[list[str], str]]:
    """Yields names that are assigned together, with the docstring below them."""
    for statement, following in pairwise(body):
        if not isinstance(statement, ast.Assign) or not isinstance(following, ast.Expr):
            continue
        target = statement.targets[0]
        names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
        if isinstance(following.value, ast.Constant):
            yield names, str(following.value.value)


def rendered(text: str, name: str, content: str) -> str:
    """Replaces one table of a page.

    Raises:
        ValueError: if the page lacks the markers of the table.
    """
    begin, end = f"<!-- {name}: written by scripts/diagnosis_tables.py -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        msg = f"got a page without markers; expected {begin!r} and, below it, {end!r}"
        raise ValueError(msg)
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def main(argv: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Writes the tables, or checks whether they are out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a table is out of date")
    parser.add_argument("--simulate", action="store_true", help="also simulate the rates of right findings")
    arguments = parser.parse_args(argv)
    simulated = rates() if arguments.simulate else None
    page = root / PAGE
    text = page.read_text(encoding="utf-8")
    wanted = rendered(rendered(text, "causes", causes()), "thresholds", thresholds())
    if simulated is not None:
        wanted = rendered(wanted, "rates", simulated)
    if text == wanted:
        return 0
    if arguments.check:
        print(f"{PAGE}: differs from the source; run: python scripts/diagnosis_tables.py", file=sys.stderr)
        return 1
    page.write_text(wanted, encoding="utf-8")
    print(f"{PAGE}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
