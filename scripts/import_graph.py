"""The import graph of the product's modules: every import, also inside functions and for types only."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

import networkx as nx

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

NAMED_EXCEPTION = ("ratioscope.correction.bounds", "ratioscope.correction.presets")
"""``Correction.preset`` makes a preset by name, and presets are made of rules."""


class Import(NamedTuple):
    """One import statement's effect.

    Attributes:
        importer: module that has the statement.
        imported: module that is imported; of another distribution its full dotted name.
        line: where the statement is.
        lazy: whether it stands inside a function.
    """

    importer: str
    imported: str
    line: int
    lazy: bool


def edges(roots: Sequence[Path]) -> list[Import]:
    """Every import of every module below some source roots."""
    files = {module_of(path, root): path for root in roots for path in sorted(root.rglob("*.py"))}
    return [edge for module, path in files.items() for edge in _imports(module, path, files.keys())]


def module_of(path: Path, root: Path) -> str:
    """Dotted name of a file; that of a package for its ``__init__.py``."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(module: str, path: Path, known: Iterable[str]) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # ``from package import module`` imports the module; ``from module import name`` its module.
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [name if name in known else node.module for name in full]
        else:
            continue
        for target in dict.fromkeys(targets):
            yield Import(module, target, node.lineno, node in inside)


def circles(found: Sequence[Import], *, ignored: tuple[str, str] | None = None) -> list[list[str]]:
    """Sets of modules of which each reaches every other; none in a graph without a circle.

    Args:
        found: the edges.
        ignored: importer and imported of an edge that does not count.
    """
    graph = nx.DiGraph((edge.importer, edge.imported) for edge in found if (edge.importer, edge.imported) != ignored)
    components = [sorted(component) for component in nx.strongly_connected_components(graph)]
    return sorted(modules for modules in components if len(modules) > 1 or graph.has_edge(modules[0], modules[0]))
