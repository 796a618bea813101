"""The report and the comparison as pages: numbers, and notices on missing data."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import time
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ratioscope.report.figures import figures
from ratioscope.report.figures.panel import Absent
from ratioscope.report.figures.style import COLORS, MAX_POINTS, run_styles, thin
from ratioscope.report.page import page
from ratioscope.report.page.page import compare_html, report_html
from ratioscope.report.terminal import render
from ratioscope.runs.history import History
from ratioscope.runs.timeline import Timeline
from ratioscope.runs.worst import TokenAt
from ratioscope.state.worst import WorstToken
from tests.support.timelines import HOSTILE, config_of, make_nan_timeline, make_timeline
from tests.support.tracker_rows import TOKENS, normal_bins

pytest.importorskip("plotly")
ORDER = ["heat-token", "fan", "modified", "histogram", "ess", "kl", "sequence", "sequence-ratio", "sequence-share"]


class _Seen(HTMLParser):
    """Elements and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.title = ""
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "title":
            self.title += data
        elif self._in not in {"script", "style"}:
            self.words += data


def _panels(text: str) -> dict[str, dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="panels">(.*?)</script>', text, re.DOTALL)
    assert found
    return {panel["key"]: panel["figure"] for panel in json.loads(found[1])}


def _numbers(values: Any) -> list[float]:
    """Decodes an array as plotly stores it."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"]).tolist()
    return list(values)


def test_page_has_the_numbers_of_the_run() -> None:
    """Each line holds exactly the steps and values of its statistic, evaluations included."""
    timeline = make_timeline(100, evaluations=True)
    drawn = 0
    for figure in _panels(report_html(timeline)).values():
        for trace in figure["data"]:
            key = trace.get("meta", {}).get("key", "")
            if trace["type"] != "scatter" or key not in timeline.scalars:
                continue
            curve = timeline.scalars[key]
            y = trace["customdata"] if "ink" in trace["meta"] else trace["y"]
            assert _numbers(trace["x"]) == curve.steps
            assert _numbers(y) == curve.values
            drawn += 1
    assert drawn > 25


def test_heat_map_has_the_shares() -> None:
    """A cell's colour is the logarithm of its share of the window, and an empty cell has none."""
    timeline = make_timeline(40)
    cells = _panels(report_html(timeline))["heat-token"]["data"][0]
    shown = np.array(_numbers(cells["z"])).reshape(65, 40)
    series = timeline.history.latest(TOKENS)
    for column, window in enumerate(series.windows):
        share = window.counts / window.counts.sum()
        assert np.nan_to_num(10 ** shown[:, column]) == pytest.approx(share, rel=1e-5)
    assert _numbers(cells["x"]) == list(range(41))


def test_slider_has_each_window_and_shows_the_newest() -> None:
    """Every stop of the slider has the counts of its window; the newest is active; bounds lie at their logarithms."""
    timeline = make_timeline(30)
    figure = _panels(report_html(timeline))["histogram"]
    (slider,) = figure["layout"]["sliders"]
    windows = timeline.history.latest(TOKENS).windows
    assert [stop["label"] for stop in slider["steps"]] == [str(window.last_step) for window in windows]
    assert slider["active"] == 29
    for stop, window in zip(slider["steps"], windows, strict=True):
        counts = [int(re.sub(r".*\(|\)|,", "", told)) for told in stop["args"][0]["customdata"][0]]
        assert counts == window.counts.tolist()
    assert figure["data"][0]["y"] == slider["steps"][-1]["args"][0]["y"][0]
    bounds = {trace["text"][1]: trace["x"][0] for trace in figure["data"] if trace.get("text")}
    assert bounds == pytest.approx({"lower 0.9": np.log(0.9), "upper 1.1": np.log(1.1)})


def test_page_is_small_complete_and_in_order() -> None:
    """A page has every figure in its order with a sentence and a definition, loads nothing, and stays under 5 MB."""
    text = report_html(make_timeline(3000))
    assert len(text.encode()) < 5e6
    assert list(_panels(text))[:9] == ORDER
    seen = _Seen(text)
    ids = {attributes.get("id") for _, attributes in seen.tags}
    for panel in figures.panels([make_timeline(5)]):
        assert panel.sentence in seen.words
        assert panel.link[1:] in ids
    loading = [(tag, attributes) for tag, attributes in seen.tags if {"src", "href"} & attributes.keys()]
    assert all((attributes.get("href") or "")[:1] == "#" or tag == "link" for tag, attributes in loading)
    library = re.search(r'id="library">([^<]*)<', text)
    assert library
    assert b"plotly.js" in gzip.decompress(base64.b64decode(library[1]))[:200]


def test_hostile_names_are_text() -> None:
    """Markup in names, configs and events stays text in the page, its title, its figures and its data."""
    timeline = make_timeline(5, name=HOSTILE, user={"note": HOSTILE, HOSTILE: HOSTILE})
    timeline.events.append((1, HOSTILE))
    plain = make_timeline(5)
    for hostile, harmless in [
        (report_html(timeline), report_html(plain)),
        (compare_html([timeline, timeline]), compare_html([plain, plain])),
    ]:
        hostile.encode()
        seen, expected = _Seen(hostile), _Seen(harmless)
        for tag in ("script", "a", "img"):
            assert [t for t, _ in seen.tags].count(tag) == [t for t, _ in expected.tags].count(tag)
        assert "<script>alert(1)</script>" in seen.words
        assert _panels(hostile).keys() == _panels(harmless).keys()
    names = {trace["name"] for trace in _panels(compare_html([timeline, plain]))["kl"]["data"]}
    assert not any("<" in name for name in names)
    assert any(name.startswith("&lt;script&gt;") for name in names)


def test_long_name_is_cut_and_kept() -> None:
    """A name of 10 000 characters is cut on the page, and complete in a title attribute."""
    name = "ж" * 10_000
    seen = _Seen(report_html(make_timeline(3, name=name)))
    assert len(seen.title) < 120
    assert max(map(len, seen.words.split())) < 300
    assert any(attributes.get("title") == name for _, attributes in seen.tags)


@pytest.mark.parametrize(
    ("timeline", "words", "keys"),
    [
        (Timeline(), "No window was recorded", []),
        (make_nan_timeline(), "Not one token was valid in any of 3 windows", ["excluded", "excluded-counts"]),
        (make_timeline(1), "One window was recorded", [*ORDER, "excluded-counts"]),
    ],
    ids=["empty", "only NaN", "one"],
)
def test_page_explains_missing_data(timeline: Timeline, words: str, keys: list[str]) -> None:
    """The page of a run without windows, without a valid token or with one window explains it."""
    text = report_html(timeline)
    assert words in _Seen(text).words
    assert list(_panels(text)) == keys
    compared = _Seen(compare_html([timeline, make_timeline(5, name="other")])).words
    assert f"{timeline.name or 'unnamed'}: {words}" in compared


def test_single_window_is_visible() -> None:
    """One window is drawn as points and without a slider, because a line of one point is invisible."""
    for key, figure in _panels(report_html(make_timeline(1))).items():
        assert "sliders" not in figure["layout"]
        for trace in figure["data"]:
            if trace["type"] == "scatter" and "key" in trace.get("meta", {}) and key != "histogram":
                assert "markers" in trace["mode"]


def test_missing_statistics_leave_out_their_figure() -> None:
    """Missing statistics are named in place of their figure; the headline's quantiles replace missing ones."""
    timeline = make_timeline(5)
    for key in list(timeline.scalars):
        if "/token/" in key or "/sequence/" in key:
            curve = timeline.scalars.pop(key)
            if "/token/" in key:
                timeline.scalars[key.replace("/token/", "/")] = curve
    timeline.history = History()
    entries = figures.drawn([timeline])
    absent = {entry.key: entry.reason for entry in entries if isinstance(entry, Absent)}
    assert {"heat-token", "histogram", "sequence", "sequence-share"} <= absent.keys()
    assert 'detail="standard"' in absent["sequence"]
    assert absent["sequence"] in _Seen(report_html(timeline)).words
    fan = next(entry for entry in figures.panels([timeline]) if entry.key == "fan")
    assert "ratioscope/raw/p50" in fan.metrics


def test_thinning_keeps_every_spike() -> None:
    """Thinning keeps at most 2 000 of 100 000 points, with both ends and the extremes of every stretch."""
    values = np.random.default_rng(0).normal(size=100_000)
    values[[31_415, 92_653]] = 50, -50
    kept = thin(values)
    assert len(kept) <= MAX_POINTS
    assert {0, 31_415, 92_653, 99_999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    for index in range(0, 100_000, 137):
        near = values[kept[abs(kept - index) <= 101]]
        assert near.min() <= values[index] <= near.max()
    assert thin(values[:MAX_POINTS]).tolist() == list(range(MAX_POINTS))
    assert len(thin(np.zeros(5000))) <= MAX_POINTS


def test_thinning_is_noted() -> None:
    """A note appears on thinned figures only."""
    notes = {n: [panel.note for panel in figures.panels([make_timeline(n)])] for n in (50, 2500)}
    assert any("Thinned to at most 2,000" in note for note in notes[2500])
    assert not any("Thinned" in note for note in notes[50])


def test_runs_are_compared_on_the_same_axes() -> None:
    """Several runs share axes with one colour each; their heat maps are placed side by side with equal axes."""
    runs = [make_timeline(60, name="same"), make_timeline(90, name="same"), make_timeline(30, name="other")]
    panels = _panels(compare_html(runs))
    heat = [panels[f"heat-token-{number}"] for number in (1, 2, 3)]
    assert [one["layout"]["xaxis"]["range"] for one in heat] == [[0, 90]] * 3
    assert len({tuple(one["layout"]["yaxis"]["range"]) for one in heat}) == 1
    lines = panels["ess"]["data"]
    assert {trace["line"]["color"] for trace in lines} == set(COLORS[:3])
    assert [trace["name"] for trace in lines if trace["showlegend"]] == [run.label for run in run_styles(runs)]
    assert len(panels["fan"]["data"]) == 3 * 3 + 2


def test_different_bins_have_their_own_axes() -> None:
    """Heat maps of runs with different bins are drawn on their own axes, and the page says so."""
    coarse = make_timeline(10, name="coarse")
    coarse.history = History()
    for step in range(1, 11):
        coarse.history.add(TOKENS, step, normal_bins(step, exponent=-4))
    notes = [panel.note for panel in figures.panels([make_timeline(10), coarse]) if panel.group == "heat-token"]
    assert len(notes) == 2
    assert all("axis is its own" in note for note in notes)


def test_sequence_mode_draws_sequence_bounds() -> None:
    """A sequence rule draws its bounds in the figures of sequence ratios only."""
    panels = {panel.key: panel.figure.data for panel in figures.panels([make_timeline(10, level="sequence")])}
    with_bounds = {key for key, data in panels.items() if any((t.text or ("", ""))[-1][:5] == "upper" for t in data)}
    assert with_bounds == {"heat-sequence", "fan", "histogram"}


@pytest.mark.slow
def test_many_runs_stay_small() -> None:
    """Twenty runs make one page under 5 MB, with all of them in it."""
    text = compare_html([make_timeline(600, name=f"run {number}") for number in range(20)])
    assert len(text.encode()) < 5e6
    assert sum(key.startswith("heat-token-") for key in _panels(text)) == 20


def test_long_history_is_pooled_evenly() -> None:
    """The columns of a long run's heat map cover about equally many windows."""
    history = History()
    for step in range(1, 5001):
        history.add(TOKENS, step, normal_bins(0))
    records = [window.records for window in history.latest(TOKENS).windows]
    assert sum(records) == 5000
    assert len(records) > 200
    assert max(records) <= 16


def test_page_is_fast() -> None:
    """A page of 10 000 windows takes under 3 s of processor time."""
    timeline = make_timeline(10_000)
    report_html(make_timeline(1))  # imports plotly
    started = time.process_time()
    report_html(timeline)
    assert time.process_time() - started < 3


def test_any_config_gives_a_page() -> None:
    """Any value in a config gives a page, because a config may come from any program."""
    rules: list[Any] = [None, "x", [], {}, {"enabled": False}, {"level": 7, "upper": "none", "lower": float("nan")}]
    for rule in rules:
        timeline = make_timeline(2)
        timeline.config = {**config_of(), "correction": rule, "versions": ["x"], "engine": None, "sampling": 3}
        assert "a run" in report_html(timeline)


def test_page_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without plotly the error says how to install it."""
    monkeypatch.setattr("ratioscope.extras.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"ratioscope\[report\]"):
        page.report_html(make_timeline(2))


def test_no_run_is_an_error() -> None:
    """A comparison without a run raises an error that says so."""
    with pytest.raises(ValueError, match="got no run"):
        compare_html([])


def test_text_is_escaped_once_on_the_page_and_never_in_the_terminal() -> None:
    """Page and terminal display markup in a split, a token and a name literally."""
    token = WorstToken(
        1.0, -1.0, -2.0, None, 5, (1,), (2,), 0, 9, 1.0, 77, 0, text="<i>", before_text="&", after_text=""
    )
    timeline = make_timeline(3, name="a & b")
    timeline.worst.tokens.append(TokenAt(2, "eval <&>", token))
    text = report_html(timeline)
    assert "<title>a &amp; b" in text
    assert "2 (eval &lt;&amp;&gt;)" in text
    assert "&amp;amp;" not in text
    console = Console(file=io.StringIO(), width=200)
    console.print(render(timeline))
    assert isinstance(console.file, io.StringIO)
    assert "2 (eval <&>)" in console.file.getvalue()
    assert "&<i>" in console.file.getvalue()
