"""Writes the tables of the README and the reference: metrics, presets, and names of third-party metrics.

python scripts/docs_tables.py            writes them
python scripts/docs_tables.py --check    changes nothing; exits with 1 if a table is out of date
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ratioscope import CATALOGUE
from ratioscope.runs.foreign.adopt import sentence
from ratioscope.runs.foreign.names import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- metrics: written by scripts/docs_tables.py -->"
END = "<!-- metrics: end -->"


def headline_table() -> str:
    """Table of the statistics that enter the trainer's own log."""
    return table(("key", "meaning"), ((code(m.key), cell(m.meaning)) for m in CATALOGUE if m.detail == "headline"))


def full_table() -> str:
    """Table of every statistic, with the smallest detail level that includes it."""
    return table(("key", "detail", "meaning"), ((code(m.key), m.detail, cell(m.meaning)) for m in CATALOGUE))


def names_table() -> str:
    """Table of third-party metric names and their equivalents."""
    rows = ((n.framework, code(n.pattern), code(n.ours) if n.ours else "–", cell(sentence(n))) for n in NAMES)
    return table(("logged by", "its key", "ours", "the definitions"), rows)


def presets_page() -> str:
    """Generated part of the page on presets."""
    return str(runpy.run_path(str(Path(__file__).with_name("preset_tables.py")))["page"]())


PAGES: dict[str, Callable[[], str]] = {
    "README.md": headline_table,
    "docs/reference/metrics.md": full_table,
    "docs/reference/names-from-elsewhere.md": names_table,
    "docs/reference/presets.md": presets_page,
}
"""Generated content by page."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """Formats text as code."""
    return f"`{text}`"


def cell(text: str) -> str:
    """Escapes the characters that Markdown would interpret in a table cell."""
    return text.replace("|", "\\|").replace("*", "\\*")


def rendered(text: str, content: str) -> str:
    """Replaces the table of a page.

    Raises:
        ValueError: if the page lacks the markers of the table.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        msg = f"got a page without markers; expected {BEGIN!r} and, below it, {END!r}"
        raise ValueError(msg)
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{after}"


def main(argv: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Writes the tables, or names those that are out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a table is out of date")
    check = parser.parse_args(argv).check
    outdated: list[str] = []
    for name, content in PAGES.items():
        page = root / name
        text = page.read_text(encoding="utf-8")
        wanted = rendered(text, content())
        if text != wanted:
            outdated.append(name)
            if not check:
                page.write_text(wanted, encoding="utf-8")
    for name in outdated:
        done = "differs from the catalogue; run: python scripts/docs_tables.py" if check else "written"
        print(f"{name}: {done}", file=sys.stderr if check else sys.stdout)
    return int(check and bool(outdated))


if __name__ == "__main__":
    sys.exit(main())
