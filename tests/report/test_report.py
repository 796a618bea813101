"""Words and numbers of a report, compared with numpy on the tokens."""

from __future__ import annotations

import io
import os
import stat
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rich.console import Console

import ratioscope as rs
from ratioscope.report.page.files import write_page
from ratioscope.report.terminal import render, render_comparison
from ratioscope.report.verdict.comparison import config_differences, differences, first_to_drift, labels
from ratioscope.report.verdict.verdict import excluded, key_figures, verdict
from ratioscope.runs.read import exponents_of, read, read_many
from ratioscope.runs.timeline import Timeline
from ratioscope.text import number, percent, plain

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ROWS, TOKENS = 8, 32
MISMATCH = "ratioscope/log_ratio/abs_mean"


def record(folder: Path, noises: list[float], **settings: Any) -> tuple[Timeline, list[NDArray[np.float64]]]:
    """Records a run with the given noise of each window; returns the run as read, and its log-ratios."""
    generator = torch.Generator().manual_seed(len(noises))
    correction = settings.pop("correction", rs.Correction("token", "truncate", lower=0.9, upper=1.2))
    log_ratios: list[NDArray[np.float64]] = []
    with rs.Recorder(correction=correction, output_dir=folder, **settings) as recorder:
        recorder.open()
        for step, noise in enumerate(noises, start=1):
            rollout = -1.0 - torch.rand(ROWS, TOKENS, generator=generator)
            train = rollout + noise * torch.randn(ROWS, TOKENS, generator=generator)
            recorder.observe(train, rollout, torch.ones(ROWS, TOKENS, dtype=torch.bool))
            recorder.flush(step=10 * step)
            log_ratios.append((train - rollout).double().numpy())
    return read(folder), log_ratios


def made(values: list[float], name: str = "run", key: str = MISMATCH) -> Timeline:
    """Makes a run with one statistic."""
    timeline = Timeline(name=name)
    for step, value in enumerate(values, start=1):
        timeline.add(step, "train", 0.0, {key: value, "ratioscope/counts/tokens": 1000.0}, {})
    return timeline


def text_of(timeline: Timeline) -> str:
    """Returns all sentences of a verdict."""
    return "\n".join(line.text for line in verdict(timeline))


def levels(timeline: Timeline) -> set[str]:
    """Returns the levels of a verdict."""
    return {line.level for line in verdict(timeline)}


def printed(renderable: Any, width: int = 200) -> str:
    """Renders for a terminal of the given width, without colours."""
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_numbers_are_those_of_numpy(tmp_path: Path) -> None:
    """Verdict and table have numpy's modified fraction, mean |log-ratio|, quantiles and ESS of the tokens."""
    timeline, log_ratios = record(tmp_path / "run", [0.05, 0.3, *[0.1] * 10])
    ratios = [np.exp(each) for each in log_ratios]
    outside = [((each < 0.9).mean(), (each > 1.2).mean()) for each in ratios]
    modified = [low + high for low, high in outside]
    mismatch = [float(np.abs(each).mean()) for each in log_ratios]
    weights = [np.clip(each, 0.9, 1.2) for each in ratios]
    ess = [float(each.sum() ** 2 / (each.size * (each**2).sum())) for each in weights]

    text = text_of(timeline)
    assert f"changes {100 * modified[-1]:.3g} % of tokens at step 120" in text
    assert f": {100 * outside[-1][0]:.3g} % below 0.9 and {100 * outside[-1][1]:.3g} % above 1.2" in text
    assert f"at worst {100 * max(modified):.3g} %, at step 20" in text
    assert f"mean |log-ratio| of tokens is {mismatch[-1]:.4g} nats at step 120" in text
    assert f"leaves {100 * ess[-1]:.4g} % of the effective sample size" in text
    assert f"at worst {100 * min(ess):.4g} %, at step 20" in text

    figures = {figure.key: figure for figure in key_figures(timeline)}
    found = figures[MISMATCH]
    expected = (mismatch[-1], min(mismatch), float(np.median(mismatch)), max(mismatch))
    assert (found.latest, found.lowest, found.median, found.highest) == pytest.approx(expected, rel=1e-6)
    p99 = [float(np.exp(np.quantile(each, 0.99))) for each in log_ratios]
    assert np.log(figures["ratioscope/raw/p99"].highest or 0) == pytest.approx(np.log(max(p99)), rel=0.016)

    shown = printed(render(timeline))
    row = next(line for line in shown.splitlines() if line.startswith("Modified fraction"))
    values = (modified[-1], min(modified), float(np.median(modified)), max(modified))
    assert row.split()[2::2] == [f"{100 * value:.3g}" for value in values]
    assert "12 windows of training, steps 10 to 120 · token_truncate lower 0.9 upper 1.2" in shown
    assert "Nothing was left out." in shown


def test_growth_has_its_factor_and_steps(tmp_path: Path) -> None:
    """The sentence on growth has the medians of the first and last fifth, their steps and the factor."""
    timeline, log_ratios = record(tmp_path / "run", [0.02] * 5 + [0.1] * 5)
    first, last = (float(np.median([np.abs(d).mean() for d in part])) for part in (log_ratios[:3], log_ratios[-3:]))
    line = next(line for line in verdict(timeline) if "grew" in line.text)
    assert line.level == "warning"
    assert (
        f"grew {last / first:.4g} times: median {first:.4g} nats in steps 10 to 30, {last:.4g} in 80 to 100"
        in line.text
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.01] * 10, "is steady"),
        ([0.01] * 9 + [0.5], "is steady"),
        ([0.01] * 5 + [0.015] * 5, "grew 1.5 times"),
        ([0.03] * 5 + [0.01] * 5, "fell to 0.3333 times"),
        ([0.0] * 5 + [0.01] * 5, "grew from nothing"),
        ([0.01] * 4 + [0.1] * 5, None),
    ],
)
def test_growth_is_robust_and_needs_ten_windows(values: list[float], message: str | None) -> None:
    """One odd window is no growth, and nine windows are too few to say anything."""
    found = [line.text for line in verdict(made(values)) if line.text.startswith("The mismatch")]
    assert [message in text for text in found] == [True] if message else found == []


def test_run_without_windows_gets_a_warning(tmp_path: Path) -> None:
    """A run without a window gets a warning."""
    timeline, _ = record(tmp_path / "run", [])
    assert [line.level for line in verdict(timeline)] == ["warning"]
    assert "nothing can be said" in printed(render(timeline))


def test_one_record_has_no_growth(tmp_path: Path) -> None:
    """The verdict on one record has its numbers, without a worst value or growth."""
    timeline, log_ratios = record(tmp_path / "run", [0.01])
    text = text_of(timeline)
    assert f"mean |log-ratio| of tokens is {np.abs(log_ratios[0]).mean():.4g} nats at step 10" in text
    assert "worst" not in text
    assert "mismatch between" not in text


def test_nan_tokens_are_left_out_and_named(tmp_path: Path) -> None:
    """A run of NaN tokens has only bad sentences, and its tokens are counted with the reason."""
    timeline, _ = record(tmp_path / "run", [float("nan")] * 3)
    assert levels(timeline) == {"bad"}
    assert "No valid token in 3 windows" in text_of(timeline)
    assert ("tokens with a NaN log-probability", 3 * ROWS * TOKENS, "NaN is not a probability") in excluded(timeline)
    assert f"{3 * ROWS * TOKENS} tokens with a NaN log-probability" in printed(render(timeline))


def test_some_windows_without_tokens_are_counted(tmp_path: Path) -> None:
    """Windows without a valid token are counted, and so are tokens that were left out."""
    timeline, _ = record(tmp_path / "run", [0.01, float("nan"), 0.01])
    text = text_of(timeline)
    assert "No valid token in 1 of 3 windows, last at step 20" in text
    assert "256 tokens (33.3 %) had no usable log-probability" in text


def test_identical_log_probabilities_measure_nothing(tmp_path: Path) -> None:
    """Bitwise equality is bad, and no other sentence is good because of it."""
    timeline, _ = record(tmp_path / "run", [0.0] * 12)
    assert "equal to the last bit in all of 12 windows" in text_of(timeline)
    assert "bad" in levels(timeline)
    assert "good" not in levels(timeline)


def test_unmodified_batch_is_not_called_good(tmp_path: Path) -> None:
    """A correction without effect is a note, never good."""
    timeline, _ = record(tmp_path / "run", [0.001])
    assert [line.level for line in verdict(timeline) if "changes 0 %" in line.text] == ["note"]


def test_missing_correction_is_noted(tmp_path: Path) -> None:
    """The verdict of a run without a correction says that none is applied."""
    timeline, _ = record(tmp_path / "run", [0.01], correction=None)
    assert "No correction: ratios are only watched." in text_of(timeline)


@pytest.mark.parametrize(("fraction", "level"), [(0.05, "note"), (0.2, "warning"), (0.6, "bad")])
def test_levels_follow_the_modified_fraction(fraction: float, level: str) -> None:
    """A tenth of the batch is a warning, a half is bad."""
    timeline = made([0.01])
    timeline.add(1, "train", 0.0, {"ratioscope/modified/fraction": fraction}, {})
    assert [line.level for line in verdict(timeline) if "correction changes" in line.text] == [level]


def test_one_sequence_that_carries_the_batch_is_named(tmp_path: Path) -> None:
    """An effective sample of about one sequence is bad in a sequence mode."""
    rule = rs.Correction("sequence", "truncate", upper=1e30)
    timeline, log_ratios = record(tmp_path / "run", [3.0], correction=rule)
    ratios = np.exp(log_ratios[0].sum(axis=1))
    effective = float(ratios.sum() ** 2 / (ratios**2).sum())
    assert effective < 1.5, "the example is none"
    line = next(line for line in verdict(timeline) if "One sequence carries" in line.text)
    assert line.level == "bad"
    assert f"worth {effective:.4g} of 8 sequences" in line.text


def test_weights_that_differ_from_the_rule_come_first(tmp_path: Path) -> None:
    """Weights that differ from the rule give the first two sentences, the cause and the windows."""
    with rs.Recorder(correction=rs.Correction("token", "truncate", upper=1.2), output_dir=tmp_path) as recorder:
        logps = -torch.rand(ROWS, TOKENS) - 1.0
        mask = torch.ones(ROWS, TOKENS, dtype=torch.bool)
        recorder.observe(logps + 0.01, logps, mask, applied=torch.full((ROWS, TOKENS), 7.0))
        recorder.flush(step=3)
    cause, windows = verdict(read(tmp_path))[:2]
    assert (cause.level, windows.level) == ("bad", "bad")
    assert "not_applied" in cause.text
    assert "in 1 window, last at step 3" in windows.text


def test_untrusted_names_are_text() -> None:
    """Terminal sequences, markup and reversed text in names and values have no effect; long ones are cut."""
    name = "\x1b[31mred\x1b]0;title\x07[bold]x[/bold]\u202eevil\n<script>"
    timeline = made([0.01] * 12, name)
    timeline.config = {"user": {name: "\x1b[2J" + "v" * 10_000}}
    timeline.events.append((3, f"odd {name}"))
    other = made([0.01] * 12, "n" * 10_000)
    for shown in (printed(render(timeline)), printed(render_comparison([timeline, other]))):
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
        assert "red[bold]x[/bold]" in shown
        assert len(shown) < 12_000


def test_labels_are_short_and_unique() -> None:
    """Long names lose their middle and equal ones are numbered."""
    names = ["a", "a", "a (1)", "x" * 5000 + "1", "x" * 5000 + "2", ""]
    found = labels([made([], name) for name in names])
    assert len(set(found)) == len(names)
    assert max(map(len, found)) <= 40
    assert [label[-1] for label in found[3:5]] == ["1", "2"]


def test_configs_differ_by_dotted_key() -> None:
    """Only settings that differ are listed; a missing setting is "not set"."""
    runs = [made([], "a"), made([], "b")]
    runs[0].config = {"correction": {"upper": 2.0, "mode": "x"}, "user": {"a": None}}
    runs[1].config = {"correction": {"upper": 3.0, "mode": "x"}, "user": {}}
    found = {each.key: each.values for each in config_differences(runs)}
    assert found == {"correction.upper": ("2.0", "3.0"), "user": ("not set", "{}"), "user.a": ("null", "not set")}


def test_differences_have_one_value_per_run() -> None:
    """Key figures have one value per run, and None for a missing one."""
    found = {each.label: each.values for each in differences([made([0.1, 0.3]), made([], "b")])}
    assert found["Mean |log-ratio|, nats, latest"] == (0.3, None)
    assert found["Mean |log-ratio|, nats, median"] == (pytest.approx(0.2), None)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([[1.0] * 10 + [3.0] * 10, [1.0] * 6 + [2.5] * 9], "run (2) drifted first, from step 7 on: its"),
        (
            [[1.0] * 20, [1.0] * 10 + [2.5] * 10],
            "Only run (2) drifted, from step 11 on: its mean |log-ratio| is 2.5 times",
        ),
        ([[1.0] * 10 + [99.0] + [1.0] * 9, [1.0] * 20], "No run drifted"),
        ([[1.0] * 20, [1.0] * 9], "Too few windows with a mean |log-ratio| to judge run (2)."),
        ([[1.0] * 9, []], "Too few windows to say which run drifted first"),
        ([[0.0] * 5 + [0.1] * 5, [1.0] * 10], "up from nothing"),
    ],
)
def test_first_to_drift(runs: list[list[float]], message: str) -> None:
    """The run that first stays above twice its beginning is named; a single odd window is no drift."""
    assert message in first_to_drift([made(values) for values in runs])


def test_runs_with_different_noise_get_the_same_axes(tmp_path: Path) -> None:
    """Journals are read with the widest bins of all runs, and no token is lost."""
    addresses = [tmp_path / "calm", tmp_path / "wild"]
    alone = [record(address, [noise] * 3)[0] for address, noise in zip(addresses, (0.001, 0.5), strict=True)]
    assert exponents_of(alone[0]) != exponents_of(alone[1])
    together = read_many(addresses)
    for key in ("token", "sequence", "corrected"):
        series = [each.history.latest(f"ratioscope/hist/{key}_log_ratio") for each in together]
        np.testing.assert_array_equal(series[0].edges, series[1].edges)
        assert [sum(int(window.counts.sum()) for window in each.windows) for each in series] == [
            3 * ROWS * (1 if key == "sequence" else TOKENS)
        ] * 2


def test_page_is_written_whole_with_the_users_umask(tmp_path: Path) -> None:
    """A page replaces its older self, with the rights that the umask gives, and leaves nothing beside it."""
    before = os.umask(0o027)
    try:
        for content in ("<!doctype html>1", "<!DOCTYPE HTML>2"):
            write_page(tmp_path / "page.html", content)
    finally:
        os.umask(before)
    assert (tmp_path / "page.html").read_text() == "<!DOCTYPE HTML>2"
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half-way neither harms the old page nor leaves its part behind."""
    page = tmp_path / "page.html"
    write_page(page, "<html>old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_page(page, "<html>new")
    assert page.read_text() == "<html>old"
    assert list(tmp_path.iterdir()) == [page]


def test_only_pages_are_overwritten(tmp_path: Path) -> None:
    """A file that is no page is never overwritten; a folder, or a missing folder, raises an error that says so."""
    for name, content in (("journal.sqlite", b"SQLite format 3\0"), ("notes.html", b"my notes")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileExistsError, match="is no HTML; it is left as it is"):
            write_page(tmp_path / name, "<html>")
        assert (tmp_path / name).read_bytes() == content
    with pytest.raises(FileExistsError, match="is a folder"):
        write_page(tmp_path, "<html>")
    with pytest.raises(FileNotFoundError, match="does not exist: create it"):
        write_page(tmp_path / "none" / "page.html", "<html>")


def test_numbers_are_short_and_honest() -> None:
    """Missing values are a dash; a fraction strictly between 0 and 1 is never displayed as 0 or 100 %."""
    assert [number(value) for value in (None, 0.0, 1.23456, 12345.6, 1e-9, 3e9, float("inf"))] == [
        "–",
        "0",
        "1.235",
        "12346",
        "1.000e-09",
        "3.000e+09",
        "∞",
    ]
    assert [percent(value) for value in (None, 0.0, 1e-7, 0.01234, 0.98967, 0.999999, 1.0)] == [
        "–",
        "0 %",
        "< 0.001 %",
        "1.23 %",
        "98.97 %",
        "> 99.99 %",
        "100 %",
    ]
    assert plain("a" * 100, 9) == "aaaa…aaaa"
