"""The commands ``report`` and ``compare``, called as from a shell."""

from __future__ import annotations

import re
import resource
import shutil
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

import ratioscope as rs
from ratioscope.cli.main import main
from ratioscope.journal.schema import DIRECTORY, FILE
from ratioscope.runs import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHROME = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")))


def record(folder: Path, windows: int = 2, noise: float = 0.1, rows: int = 4) -> Path:
    """Records a run."""
    generator = torch.Generator().manual_seed(0)
    rule = rs.Correction("token", "truncate", upper=1.2)
    with rs.Recorder(correction=rule, output_dir=folder, config={"noise": noise}) as recorder:
        recorder.open()
        for step in range(1, windows + 1):
            rollout = -1.0 - torch.rand(rows, 16, generator=generator)
            train = rollout + noise * torch.randn(rows, 16, generator=generator)
            recorder.observe(train, rollout, torch.ones(rows, 16, dtype=torch.bool))
            recorder.flush(step=step)
    return folder


def words(text: str) -> str:
    """Joins a text's words, without line breaks."""
    return " ".join(text.split())


def after(monkeypatch: pytest.MonkeyPatch, *functions: Callable[[], object]) -> list[float]:
    """Calls one function in each pause of ``--watch``, then raises Ctrl-C; returns the pauses."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > len(functions):
            raise KeyboardInterrupt
        functions[len(pauses) - 1]()

    monkeypatch.setattr("ratioscope.cli.report.sleep", pause)
    return pauses


def test_report_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report is a table in the terminal, and a page on request."""
    run, page = record(tmp_path / "run"), tmp_path / "report.html"
    assert main(["report", str(run)]) == 0
    shown = words(capsys.readouterr().out)
    assert "2 windows of training, steps 1 to 2 · token_truncate upper 1.2" in shown
    assert "Write an HTML page with: -o report.html" in shown
    assert not list(tmp_path.glob("*.html"))

    assert main(["report", str(run / DIRECTORY / FILE), "-o", str(page)]) == 0
    assert f"Written: {page}" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8").lower().startswith("<!doctype html")


def test_compare_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison has every run, the first to drift, and the settings that differ."""
    runs = [str(record(tmp_path / name, noise=noise)) for name, noise in (("calm", 0.01), ("wild", 0.3))]
    assert main(["compare", *runs, "-o", str(tmp_path / "compare.html")]) == 0
    shown = capsys.readouterr().out
    assert "Too few windows to say which run drifted first" in shown
    assert [line.split() for line in shown.splitlines() if line.startswith("user.noise")] == [
        ["user.noise", "0.01", "0.3"]
    ]
    page = (tmp_path / "compare.html").read_text(encoding="utf-8")
    assert "calm" in page
    assert "wild" in page


def test_wrong_calls_exit_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage exits with 2 and says what was expected."""
    for argv, message in (
        (["compare", str(tmp_path)], "got one run; expected two or more"),
        (["report", str(tmp_path), "--watch", "0"], "expected seconds from 0.1 on"),
        (["report", str(tmp_path), "--watch", "--png", str(tmp_path)], "does not go with --watch"),
    ):
        with pytest.raises(SystemExit) as exited:
            main(argv)
        assert exited.value.code == 2
        assert message in capsys.readouterr().err


def test_failure_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing journal, another file, or an output that is not a page gives exit code 1 and one clear line."""
    run, notes = record(tmp_path / "run"), tmp_path / "notes.txt"
    notes.write_text("mine")
    for argv, message in (
        (["report", str(tmp_path / "\x1b[31mnone")], "where no run is"),
        (["report", str(notes)], "is no journal"),
        (["compare", str(run), str(tmp_path)], "where no run is"),
        (["report", str(run), "-o", str(notes)], "is no HTML; it is left as it is"),
        (["report", str(run), "-o", str(tmp_path)], "is a folder"),
        (["report", str(run), "-o", str(tmp_path / "none" / "x.html")], "does not exist: create it"),
        (["report", str(run), "--png", str(notes)], "which is a file; expected a folder"),
    ):
        assert main(argv) == 1
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert "\x1b" not in captured.err
        assert captured.out == ""
    assert notes.read_text() == "mine"


@pytest.mark.parametrize("package", ["rich", "plotly"])
def test_missing_package_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """A missing package is reported with its extra, before anything is read."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(read, "read", lambda *_: pytest.fail("read all the same"))
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "x.html")]) == 1
    assert f'this needs {package}: pip install "ratioscope[report]"' in capsys.readouterr().err


def test_watch_follows_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--watch`` waits for a run, displays it, and displays it again only after a change."""
    run, page = tmp_path / "run", tmp_path / "page.html"
    pages: list[int] = []

    def look() -> None:
        pages.append(page.stat().st_mtime_ns)

    pauses = after(monkeypatch, lambda: record(run, 1), look, look, lambda: record(run, 2), look)
    assert main(["report", str(run), "--watch", "3", "-o", str(page)]) == 0
    shown = words(capsys.readouterr().out)
    assert pauses == [3.0] * 6
    assert shown.count("Waiting, with a look every 3 s") == 1
    assert re.findall(r"\d windows? of training, steps \d to \d", shown) == [
        "1 window of training, steps 1 to 1",
        "2 windows of training, steps 1 to 2",
    ]
    assert pages[0] == pages[1] < pages[2]


def test_watch_survives_a_locked_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--watch`` waits for a locked journal, and fails on another program's file."""
    run = record(tmp_path / "run")
    monkeypatch.setattr("ratioscope.journal.connection.BUSY_TIMEOUT_S", 0.01)
    lock = sqlite3.connect(run / DIRECTORY / FILE, isolation_level=None)
    lock.execute("PRAGMA locking_mode = EXCLUSIVE")
    lock.execute("BEGIN EXCLUSIVE")
    after(monkeypatch, lock.close)
    assert main(["report", str(run), "--watch"]) == 0
    shown = words(capsys.readouterr().out)
    assert "Waiting, with a look every 10 s" in shown
    assert "locked" in shown
    assert "2 windows of training" in shown

    (tmp_path / "other").write_bytes(b"x" * 4096)
    assert main(["report", str(tmp_path / "other"), "--watch"]) == 1
    assert "is no journal" in capsys.readouterr().err


def test_watch_without_a_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before the first report gives exit code 1."""
    after(monkeypatch)
    assert main(["report", str(tmp_path / "none"), "--watch"]) == 1


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(not CHROME, reason="no Chrome or Chromium")
def test_every_figure_is_written_as_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--png writes each figure on white, at twice the resolution of a screen, under a plain name."""
    from PIL import Image

    run, pictures = record(tmp_path / "<b>..run", 12), tmp_path / "new" / "pictures"
    assert main(["report", str(run), "--png", str(pictures)]) == 0
    files = sorted(pictures.iterdir())
    assert f"Written: {len(files)} PNG files" in capsys.readouterr().out
    assert {"modified.png", "ess.png"} <= {file.name for file in files}
    for file in files:
        with Image.open(file) as image:
            assert image.format == "PNG"
            assert image.size == (1800, 1000)
            colors = image.convert("RGB").getcolors(1_000_000)
            assert colors is not None
            assert max(colors)[1] == (255, 255, 255)
            assert len(colors) > 50, f"{file.name} is blank"


@pytest.mark.slow
@pytest.mark.browser
def test_png_without_a_browser_names_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Chrome or Chromium the error is one line that names a remedy."""
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    assert main(["report", str(record(tmp_path / "run")), "--png", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "no Chrome or Chromium was found; install one" in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_ten_thousand_records_take_five_seconds(tmp_path: Path) -> None:
    """The report of 10 000 records, page and start-up included, takes under 5 s of processor time."""
    run = record(tmp_path / "run", 10_000, rows=16)
    command = [sys.executable, "-m", "ratioscope", "report", str(run), "-o", str(tmp_path / "report.html")]
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime)
    assert min(taken) < 5.0, taken
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
