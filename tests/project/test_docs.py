"""Compares the documentation with the code: tables, links, names and messages; its snippets are run."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ratioscope
import ratioscope_integrations
from ratioscope.config.snapshot import snapshot
from ratioscope_integrations.trainers.trl.settings import trl_sections

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs" / "reference"

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NEEDS_TRL = re.compile(r"ratioscope_integrations|RatioscopeCallback|GRPO")


def name(page: Path) -> str:
    """A page's path in the project."""
    return page.relative_to(ROOT).as_posix()


def snippets(page: Path) -> list[str]:
    """The Python snippets of a page, in order."""
    return [body for language, body in FENCE.findall(page.read_text(encoding="utf-8")) if language == "python"]


def anchors(page: Path) -> set[str]:
    """Anchors that a link may name on a page, made from the headings as GitHub does."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tables(script: str = "docs_tables") -> Any:
    """Loads a script that writes tables as a module."""
    path = ROOT / "scripts" / f"{script}.py"
    spec = importlib.util.spec_from_file_location(script, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_metric_tables_equal_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    """The metric tables in the README and the reference are those made from the catalogue."""
    assert tables().main(["--check"]) == 0, capsys.readouterr().err


def test_diagnosis_tables_equal_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    """The causes and thresholds in the reference of the diagnosis are those of the source."""
    assert tables("diagnosis_tables").main(["--check"]) == 0, capsys.readouterr().err


def test_check_names_an_outdated_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --check an outdated table is named, exits with 1 and stays as it is; without it the table is written."""
    script = tables()
    for page in script.PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    script.main([], root=tmp_path)
    page = tmp_path / "README.md"
    right = page.read_text(encoding="utf-8")
    wrong = right.replace("effective sample size", "effective size")
    page.write_text(wrong, encoding="utf-8")

    assert script.main(["--check"], root=tmp_path) == 1
    assert "README.md: differs from the catalogue" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == wrong

    assert script.main([], root=tmp_path) == 0
    assert page.read_text(encoding="utf-8") == right


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_have_a_target(page: Path) -> None:
    """Every relative link and image of a page leads to a file, and to an existing heading if it names one."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for target in LINK.findall(text):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    """The index leads to every page of the documentation."""
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text(encoding="utf-8"))}
    assert [name(page) for page in PAGES if page.is_relative_to(index.parent) and page not in {index, *linked}] == []


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=name)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's Python snippets run one after the other; those that need a trainer compile."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    for snippet in snippets(page):
        code = compile(snippet, name(page), "exec")
        if not NEEDS_TRL.search(snippet):
            exec(code, names)


def test_readme_shows_a_custom_loop_and_a_summary() -> None:
    """The README has runnable snippets for a recorder and for one batch."""
    runnable = [snippet for snippet in snippets(ROOT / "README.md") if not NEEDS_TRL.search(snippet)]
    assert any("rs.Recorder(" in snippet for snippet in runnable)
    assert any("rs.summarize(" in snippet for snippet in runnable)


def test_every_public_name_is_in_the_reference() -> None:
    """Every name that ratioscope exports, and the two for TRL, are in the reference."""
    reference = "\n".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    names = [*ratioscope.__all__, "RatioscopeCallback", "enable"]
    assert [each for each in names if not re.search(rf"`[^`]*\b{each}\b[^`]*`", reference)] == []


def test_documented_messages_are_in_the_code() -> None:
    """Every message that the reference quotes is in the code, except for its variable parts."""
    messages = "\n".join(
        node.value
        for package in (ratioscope, ratioscope_integrations)
        for path in Path(package.__file__ or "").parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    page = (REFERENCE / "errors-and-warnings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?`) \|", page, re.MULTILINE)
    assert len(rows) > 30
    parts = [part for row in rows for quote in re.findall(r"`([^`]+)`", row) for part in quote.split("…")]
    assert [part for part in parts if part.strip(" .=;:") not in messages] == []


def test_documented_messages_have_advice() -> None:
    """Every message that the reference quotes has advice that the message itself does not give."""
    page = (REFERENCE / "errors-and-warnings.md").read_text(encoding="utf-8")
    advice = re.findall(r"^\| `.+\| ([^|]*) \|$", page, re.MULTILINE)
    assert len(advice) > 30
    assert [each for each in advice if not each.strip() or each.startswith(("as it says", "the same"))] == []


def test_run_config_entries_are_in_the_reference() -> None:
    """Every possible entry of a run config is in its reference page."""
    page = (REFERENCE / "run-config.md").read_text(encoding="utf-8")
    config = snapshot(ratioscope.Correction("token", "mask"), None, **trl_sections(SimpleNamespace()))
    parts = [part for section, part in config.items() if isinstance(part, dict) and section != "versions"]
    nested = {key for part in parts for key in part}
    assert [each for each in sorted({*config, *nested}) if f"`{each}`" not in page] == []


def test_pictures_are_small() -> None:
    """No picture of the documentation is larger than 300 kB."""
    pictures = sorted((ROOT / "docs" / "img").iterdir())
    assert pictures
    assert [name(picture) for picture in pictures if picture.stat().st_size > 300_000] == []
