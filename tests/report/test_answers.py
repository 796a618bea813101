"""The report's sections on the cause and on other thresholds."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.cli.main import main
from ratioscope.diagnosis.read import diagnosis_of
from ratioscope.journal.reader import JournalReader
from ratioscope.report.page.page import compare_html, report_html
from ratioscope.report.verdict import cause
from ratioscope.report.verdict.verdict import verdict
from ratioscope.runs.pooled import MOST_PARTS, PooledRun
from ratioscope.runs.read import read
from tests.support.timelines import make_timeline

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("plotly")
NUMBERS = ("modified", "mean", "ess")


def record(folder: Path, rule: rs.Correction | None, windows: int = 3, shift: float = 0.0) -> Path:
    """Records a run with noisy ratios, shifted by a constant."""
    generator = torch.Generator().manual_seed(windows)
    with rs.Recorder(correction=rule, output_dir=folder, report_to="none") as recorder:
        for step in range(1, windows + 1):
            rollout = -1.0 - torch.rand(16, 40, generator=generator)
            train = rollout + 0.2 * torch.randn(16, 40, generator=generator) - shift
            mask = torch.rand(16, 40, generator=generator) < 0.9
            ids = torch.randint(0, 99, (16, 40), generator=generator)
            recorder.observe(train, rollout, mask, token_ids=ids)
            recorder.flush(step=step)
    return folder


def traces(text: str) -> list[dict[str, Any]]:
    """Returns the traces of the figure on other caps."""
    found = re.search(r'<script type="application/json" id="panels">(.*?)</script>', text, re.DOTALL)
    assert found
    figure = next(panel["figure"] for panel in json.loads(found[1]) if panel["key"] == "thresholds")
    drawn: list[dict[str, Any]] = figure["data"]
    return drawn


@pytest.mark.parametrize(
    "rule",
    [
        rs.Correction("token", "truncate", upper=1.3),
        rs.Correction("token", "mask", lower=0.7, upper=1.5),
        rs.Correction("sequence", "truncate", lower=0.2, upper=4.0),
        None,
    ],
    ids=str,
)
def test_page_has_the_numbers_of_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: rs.Correction | None
) -> None:
    """Every number of ``ratioscope sweep --json`` is a point of the page, with its interval and advice."""
    run = record(tmp_path, rule)
    text = report_html(read(run))
    modes = "token_truncate,token_mask,sequence_truncate,sequence_mask"
    assert main(["sweep", str(run), "--modes", modes, "--json"]) == 0
    swept = json.loads(capsys.readouterr().out)["outcomes"]
    points: dict[tuple[str, str, float], tuple[float, float, float]] = {}
    for trace in traces(text):
        if trace["mode"] == "markers":
            mode = trace["meta"]["choice"].replace(" ", "_")
            bars = trace["error_y"]
            for x, y, up, down in zip(trace["x"], trace["y"], bars["array"], bars["arrayminus"], strict=True):
                points[mode, trace["meta"]["number"], x] = (y, y - down, y + up)
    assert len(points) == len(NUMBERS) * len(swept)
    for outcome in swept:
        for name in NUMBERS:
            expected = tuple(outcome[name][end] for end in ("value", "low", "high"))
            assert points[outcome["mode"], name, outcome["upper"]] == pytest.approx(expected, rel=1e-9, abs=1e-15)

    assert main(["sweep", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recommendation"]["text"] in text


def test_line_of_caps_is_exact_and_one_mode_is_visible(tmp_path: Path) -> None:
    """The line's caps lie on bucket edges, where the modified fraction has no error; the run's mode is visible."""
    drawn = traces(report_html(read(record(tmp_path, rs.Correction("token", "mask", upper=2.0)))))
    assert {trace["meta"]["choice"] for trace in drawn if trace["visible"]} == {"token mask"}
    modified = [trace for trace in drawn if trace["meta"]["number"] == "modified" and trace["mode"] == "lines"]
    for low, high, line in zip(*[iter(modified)] * 3, strict=True):
        assert low["y"] == high["y"] == pytest.approx(line["y"])


def test_pools_are_those_of_the_records(tmp_path: Path) -> None:
    """Parts that are pooled while reading equal their records merged at once, worst tokens included."""
    record(tmp_path, rs.Correction("token", "truncate", upper=1.3), windows=70)
    record(tmp_path / "other", None, windows=5)
    with JournalReader(tmp_path) as first, JournalReader(tmp_path / "other") as second:
        records = [*first.records(), *second.records(), *first.records()]
    pooled = PooledRun.from_records(records)
    assert MOST_PARTS >= len(pooled.parts) > 32
    assert pooled.windows == len(records)
    remaining = iter(records)
    for part in pooled.parts:
        windows = [next(remaining) for _ in range(part.windows)]
        assert (part.first, part.last) == (windows[0].step, windows[-1].step)
        alike = len({window.correction for window in windows}) == 1
        first_one, *others = (window.summary if alike else window.summary.with_correction(None) for window in windows)
        expected, merged = first_one.merge(*others), part.summary
        assert merged is not None
        assert merged.correction == expected.correction
        for name in ("maxima", "sums", "counts", "histograms", "lengths"):
            np.testing.assert_allclose(getattr(merged, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(merged.top.pack(), expected.top.pack())
    assert next(remaining, None) is None


def test_page_and_terminal_describe_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finding has evidence, remedy and source on the page, a link from the verdict, and lines in the terminal."""
    run = record(tmp_path, rs.Correction("token", "truncate", upper=2.0), shift=0.3)
    timeline = read(run)
    assert timeline.pooled is not None
    diagnosis = diagnosis_of(timeline)
    finding = cause.grave(diagnosis)[0]
    text = report_html(timeline)
    section = text[text.index('<section id="cause">') : text.index("<h2>Key figures")]
    for part in (finding.name, finding.meaning, finding.confidence, finding.remedy, finding.source):
        assert part in section
    assert f"Not checked ({len(diagnosis.not_checked)})" in section
    assert '<a href="#cause">More</a>' in text
    first = verdict(timeline)[0]
    assert finding.name in first.text
    assert first.level in ("warning", "bad")
    assert main(["report", str(run)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{finding.level} {finding.name}: {finding.meaning}" in shown
    assert finding.remedy in shown


def test_compare_names_each_runs_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Terminal and page name the gravest finding of each run."""
    shifted = record(tmp_path / "shifted", None, shift=0.3)
    healthy = record(tmp_path / "healthy", None)
    names = [cause.gravest(diagnosis_of(read(run))) for run in (shifted, healthy)]
    assert names[0] != names[1]
    assert main(["compare", str(shifted), str(healthy)]) == 0
    shown = capsys.readouterr().out
    text = compare_html([read(shifted), read(healthy)])
    for name in names:
        assert name.split()[-1] in shown
        assert name in text


def test_page_of_scalars_names_their_limits() -> None:
    """The page of a run without a journal names the limits of scalars."""
    timeline = make_timeline(20)
    text = report_html(timeline)
    assert "Read from scalars only" in text
    assert "<summary>Not checked (" in text
    assert "scalars and even bins only, from which no other threshold follows" in text
    assert not any(line.level == "good" and line.link for line in verdict(timeline))
