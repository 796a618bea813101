"""Checks the rules of the house that no other tool checks: sizes, docstrings, imports in functions, import circles.

    python scripts/house.py             prints what breaks a rule, and exits with 1 if anything does
    python scripts/house.py circles     prints the circles of the import graph alone
    python scripts/house.py rooms       prints a table of the rooms with their lines

Who may import whom is checked by import-linter, see ``[tool.importlinter]`` in pyproject.toml.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import import_graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("tracking", "integrations")
WRITTEN = (*PRODUCT, "tests", "scripts", "benchmarks", "examples")
MOST_LINES, MOST_BODY, MOST_PARAMETERS = 250, 25, 8

EXCEPTIONS: dict[str, str] = {
    "ratioscope.recording.recorder.Recorder.__init__": "public keyword-only settings",
    "ratioscope_integrations.kernels.cpu.ratios.ratios": "one loop with named sums; two loops would read the row twice",
    "ratioscope_integrations.kernels.cpu.sums._neighbours_with_holes": "one loop with named sums",
}
"""Function or module -> the reason why it may exceed a size."""

UNCLEAR = re.compile(
    r"(The same|These|Those|That|This|Its?|As|Of|Such|Likewise|Also|They|Whose|Where|What|How|Which|Whether|Does it|He|"
    r"Nor|So|One that|Each of these)\b"
)
"""Beginnings of a docstring that cannot be understood without what stands around it."""

LAZY_ALLOWED = ("ratioscope.cli.", "ratioscope.correction.bounds")
"""Modules whose functions may import our own modules: commands, which load only what they need, and
``Correction.preset``, since presets are made of rules."""

ALLOWED_BELOW_REPORT = frozenset({"torch", "numpy", "ratioscope"})
"""Packages beside the standard library that the core may import below ``report`` and ``cli``."""
ALLOWED_IN_ONE_ROOM = {"filelock": "ratioscope.journal."}
UPPER_ROOMS = ("ratioscope.report", "ratioscope.cli")


class Breach(NamedTuple):
    """A place that breaks a rule.

    Attributes:
        place: ``path:line``, or a module's name.
        name: function or module, as :data:`EXCEPTIONS` names it.
        text: what is wrong.
    """

    place: str
    name: str
    text: str


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """Every function of a tree with its dotted name."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}.{node.name}" if isinstance(node, Function | ast.ClassDef) else prefix
        if isinstance(node, Function):
            yield name, node
        yield from functions(node, name)


def body_lines(function: Function) -> int:
    """Lines of a function from its first statement to its last, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def parameters(function: Function) -> int:
    """Number of parameters, without ``self`` and ``cls``."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def sizes(path: Path, module: str, text: str) -> Iterator[Breach]:
    """Modules, functions and parameter lists that are too long."""
    lines = len(text.splitlines())
    if lines > MOST_LINES:
        yield Breach(str(path), module, f"{lines} lines, expected at most {MOST_LINES}")
    for name, function in functions(ast.parse(text), module):
        place = f"{path}:{function.lineno}"
        if (length := body_lines(function)) > MOST_BODY:
            yield Breach(place, name, f"{name} has a body of {length} lines, expected at most {MOST_BODY}")
        if (count := parameters(function)) > MOST_PARAMETERS:
            yield Breach(place, name, f"{name} has {count} parameters, expected at most {MOST_PARAMETERS}")


def docstrings(path: Path, text: str) -> Iterator[Breach]:
    """Docstrings that begin with a word whose meaning stands elsewhere."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            found = UNCLEAR.match(ast.get_docstring(node) or "")
            if found:
                line = getattr(node, "lineno", 1)
                yield Breach(f"{path}:{line}", "", f"a docstring begins with {found[0]!r}; name its subject instead")


def imports(edges: Sequence[import_graph.Import]) -> Iterator[Breach]:
    """First-party imports inside functions, and packages that the core may not need."""
    for edge in edges:
        place = f"{edge.importer}:{edge.line}"
        first_party = edge.imported.split(".")[0] in ("ratioscope", "ratioscope_integrations")
        if edge.lazy and first_party and not edge.importer.startswith(LAZY_ALLOWED):
            yield Breach(place, edge.importer, f"imports {edge.imported} inside a function")
        outside = edge.imported.split(".")[0]
        room = ALLOWED_IN_ONE_ROOM.get(outside)
        allowed = outside in ALLOWED_BELOW_REPORT or outside in sys.stdlib_module_names
        below = edge.importer.startswith("ratioscope.") and not edge.importer.startswith(UPPER_ROOMS)
        if below and not edge.lazy and not allowed and (room is None or not edge.importer.startswith(room)):
            yield Breach(place, edge.importer, f"imports {outside}, which the core must not need")


def breaches() -> Iterator[Breach]:
    """Everything that breaks a rule, apart from the named exceptions."""
    for top in WRITTEN:
        for path in sorted((ROOT / top).rglob("*.py")):
            text, shown = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
            yield from docstrings(shown, text)
            if top in PRODUCT:
                module = ".".join(path.relative_to(ROOT / top).with_suffix("").parts)
                yield from (breach for breach in sizes(shown, module, text) if breach.name not in EXCEPTIONS)
    edges = import_graph.edges([ROOT / top for top in PRODUCT])
    yield from imports(edges)
    for circle in import_graph.circles(edges, ignored=import_graph.NAMED_EXCEPTION):
        yield Breach(" -> ".join(circle), "", "modules that import each other")


def rooms() -> Counter[str]:
    """Lines of each room, by ``package/room``."""
    found: Counter[str] = Counter()
    for top in PRODUCT:
        for path in (ROOT / top).rglob("*.py"):
            package, *rest = path.relative_to(ROOT / top).parts
            room = rest[0] if len(rest) > 1 else "(top)"
            found[f"{package}/{room}"] += len(path.read_text(encoding="utf-8").splitlines())
    return found


def main(arguments: list[str]) -> int:
    """Prints what the command line asks for."""
    if arguments == ["rooms"]:
        found = rooms()
        print("\n".join(f"{lines:6,} {room}" for room, lines in sorted(found.items())))
        print(f"{sum(found.values()):6,} in all")
        return 0
    if arguments == ["circles"]:
        edges = import_graph.edges([ROOT / top for top in PRODUCT])
        lines = [" -> ".join(circle) for circle in import_graph.circles(edges, ignored=import_graph.NAMED_EXCEPTION)]
        print("\n".join(lines) or f"no circle in {len({edge.importer for edge in edges})} modules")
        print("named exception:", " -> ".join(import_graph.NAMED_EXCEPTION))
        return int(bool(lines))
    found_breaches = list(breaches())
    for breach in found_breaches:
        print(f"{breach.place}: {breach.text}")
    print(f"{len(found_breaches)} breaches of the house's rules")
    return int(bool(found_breaches))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
