"""The rules of the house: sizes, docstrings, imports in functions, and circles of imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import house  # noqa: E402
import import_graph  # noqa: E402
from import_graph import Import  # noqa: E402


def test_the_product_keeps_the_rules() -> None:
    """The script finds no breach in the project, and says so by its exit code."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / "house.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_modules_import_each_other() -> None:
    """The import graph over top-level, lazy and type-only imports has no circle but the named exception."""
    edges = import_graph.edges([ROOT / top for top in house.PRODUCT])
    assert import_graph.circles(edges, ignored=import_graph.NAMED_EXCEPTION) == []
    assert len(edges) > 500


def test_a_circle_is_found_whatever_the_kind_of_import(tmp_path: Path) -> None:
    """A lazy import and one for types only close a circle as any other does, and an ignored edge opens it."""
    package = tmp_path / "p"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("def f():\n    from p import b\n")
    (package / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.c import C\n")
    (package / "c.py").write_text("import p.a\n")
    edges = import_graph.edges([tmp_path])
    assert [set(circle) for circle in import_graph.circles(edges)] == [{"p.a", "p.b", "p.c"}]
    assert import_graph.circles(edges, ignored=("p.b", "p.c")) == []
    assert Import("p.a", "p.b", 2, lazy=True) in edges


@pytest.mark.parametrize("length", [25, 26])
def test_long_functions_are_found(length: int) -> None:
    """A body may have 25 lines; its signature and its docstring do not count."""
    text = 'def f(\n    a: int,\n) -> None:\n    """Says\n\n    more.\n    """\n' + "    a\n" * length
    breaches = list(house.sizes(Path("x.py"), "x", text))
    assert [breach.name for breach in breaches] == (["x.f"] if length > 25 else [])


def test_many_parameters_and_long_modules_are_found() -> None:
    """Nine parameters beside self are too many, and so are 251 lines."""
    names = ", ".join(f"a{index}" for index in range(9))
    text = f"class C:\n    def f(self, {names}): ...\n" + "\n" * 249
    breaches = {breach.name: breach.text for breach in house.sizes(Path("x.py"), "x", text)}
    assert "9 parameters" in breaches["x.C.f"]
    assert "251 lines" in breaches["x"]


@pytest.mark.parametrize(
    ("docstring", "clear"),
    [("The same for rows.", False), ("Whether it holds.", False), ("Its name.", False), ("Returns the name.", True)],
)
def test_unclear_docstrings_are_found(docstring: str, *, clear: bool) -> None:
    """A docstring names its subject."""
    assert (not list(house.docstrings(Path("x.py"), f'def f():\n    """{docstring}"""\n'))) is clear


@pytest.mark.parametrize(
    ("edge", "allowed"),
    [
        (Import("ratioscope.runs.read", "ratioscope.record", 3, lazy=True), False),
        (Import("ratioscope.cli.report", "ratioscope.record", 3, lazy=True), True),
        (Import("ratioscope.runs.read", "plotly", 3, lazy=False), False),
        (Import("ratioscope.report.figures.lines", "plotly", 3, lazy=False), True),
        (Import("ratioscope.journal.writer", "filelock", 3, lazy=False), True),
        (Import("ratioscope.runs.read", "filelock", 3, lazy=False), False),
        (Import("ratioscope.runs.read", "json", 3, lazy=False), True),
    ],
)
def test_imports_that_the_house_forbids_are_found(edge: Import, *, allowed: bool) -> None:
    """Our own modules are imported at the top, and what records needs torch and numpy only."""
    assert (not list(house.imports([edge]))) is allowed


def test_every_exception_is_needed() -> None:
    """The list of exceptions names what exceeds a size, with its reason, and nothing else."""
    exceeding = set()
    for top in house.PRODUCT:
        for path in (ROOT / top).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT / top).with_suffix("").parts)
            exceeding |= {breach.name for breach in house.sizes(path, module, path.read_text(encoding="utf-8"))}
    assert set(house.EXCEPTIONS) <= exceeding
    assert all(len(reason) > 10 for reason in house.EXCEPTIONS.values())


def test_names_are_dotted() -> None:
    """A method's name has its class and module in front."""
    tree = ast.parse("class C:\n    def f(self):\n        def g(): ...\n")
    assert [name for name, _ in house.functions(tree, "m")] == ["m.C.f", "m.C.f.g"]
