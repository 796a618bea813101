"""The report and the comparison in a real browser."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from ratioscope.report.page.page import compare_html, report_html
from ratioscope.runs.foreign.adopt import adopt
from ratioscope.runs.timeline import Timeline
from tests.support.browser import browser, scheme, screenshot
from tests.support.timelines import HOSTILE, make_nan_timeline, make_timeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PHONE = {"width": 390, "height": 844, "mobile": True}


@pytest.fixture(scope="module")
def desktop() -> Iterator[Chrome]:
    """Yields a browser with the width of a desktop."""
    with browser() as driver:
        driver.execute_cdp_cmd("Network.enable", {})
        driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http://*", "https://*"]})
        yield driver


def _open(driver: Chrome, text: str, folder: Path) -> float:
    """Opens a page, waits for its last figure, and checks that it loaded nothing and logged nothing.

    Returns:
        Seconds that it took.
    """
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    driver.get_log("browser")
    scheme(driver, dark=False)
    started = time.perf_counter()
    driver.get(path.as_uri())
    _wait(driver, "return document.documentElement.dataset.ready !== undefined")
    took = time.perf_counter() - started
    assert driver.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)") == []
    assert driver.get_log("browser") == []
    return took


def _wait(driver: Chrome, script: str) -> None:
    WebDriverWait(driver, 30, poll_frequency=0.05).until(lambda it: it.execute_script(script))


def _figures(driver: Chrome) -> dict[str, int]:
    """Counts the marks of each figure: lines, bars and images."""
    script = """return Object.fromEntries([...document.querySelectorAll(".plot")].map(plot => [plot.id.slice(5),
        plot.querySelectorAll(".scatterlayer .trace, .barlayer .point, .heatmaplayer image").length]))"""
    found: dict[str, int] = driver.execute_script(script)
    return found


def _background(driver: Chrome, selector: str) -> list[int]:
    script = (
        """return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]].match(/[\\d.]+/g).map(Number)"""
    )
    color: list[int] = driver.execute_script(script, selector, "fill" if "svg" in selector else "backgroundColor")
    return color


def test_report_is_drawn_in_light_and_in_dark(desktop: Chrome, tmp_path: Path) -> None:
    """Every figure has marks, and page and figures follow the colour scheme while the page is open."""
    _open(desktop, report_html(make_timeline(200, evaluations=True)), tmp_path)
    figures = _figures(desktop)
    assert len(figures) == 10
    assert all(figures.values())
    screenshot(desktop, "report-light", tmp_path, whole=True)
    assert min(_background(desktop, "body")) > 230
    scheme(desktop, dark=True)
    _wait(desktop, "return document.querySelector('#plot-kl')._fullLayout.paper_bgcolor == '#171c23'")
    assert max(_background(desktop, "body")) < 30
    _wait(desktop, "return document.querySelector('#plot-heat-token').data[1].line.color == '#ffffff'")
    screenshot(desktop, "report-dark", tmp_path, whole=True)
    scheme(desktop, dark=False)
    _wait(desktop, "return document.querySelector('#plot-kl')._fullLayout.paper_bgcolor == '#ffffff'")
    assert desktop.get_log("browser") == []


def test_third_party_log_is_drawn(desktop: Chrome, tmp_path: Path) -> None:
    """TRL's own numbers give two figures with marks, and no card about a missing figure."""
    run = Timeline(name="bare", source="trainer_state.json")
    gap, ratio = "sampling/sampling_logp_difference", "sampling/importance_sampling_ratio"
    for step in range(1, 60):
        logs = {f"{gap}/mean": 0.01, f"{gap}/max": 0.5, f"{ratio}/min": 0.5, f"{ratio}/mean": 1.0, f"{ratio}/max": 2.0}
        run.add(step, "train", 0.0, logs, {})
    _open(desktop, report_html(adopt(run)), tmp_path)
    assert _figures(desktop) == {"apart": 2, "after-the-cut": 3}
    assert not desktop.find_elements(By.CSS_SELECTOR, ".absent")
    assert "1970" not in desktop.find_element(By.TAG_NAME, "body").text
    screenshot(desktop, "report-of-another-log", tmp_path, whole=True)


def test_page_fits_a_phone(tmp_path: Path) -> None:
    """On a phone no page is wider than the screen, even with a long name; wide tables scroll by themselves."""
    run = make_timeline(60, name="a_very_long_name_without_a_space_" * 9)
    with browser(**PHONE) as driver:
        pages = {"report": report_html(run), "compare": compare_html([run, make_timeline(60, name="b" * 99)])}
        for name, text in pages.items():
            _open(driver, text, tmp_path)
            widths = driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
            assert widths == [390, 390]
            rights = "return [...document.querySelectorAll('.plot')].map(plot => plot.getBoundingClientRect().right)"
            assert max(driver.execute_script(rights)) <= 390
            screenshot(driver, f"{name}-phone", tmp_path, whole=True)


def test_slider_moves_the_histogram(desktop: Chrome, tmp_path: Path) -> None:
    """The slider opens at the newest window; elsewhere it shows that window's counts."""
    timeline = make_timeline(40)
    _open(desktop, report_html(timeline), tmp_path)
    assert _slider(desktop) == ["step 40", _hover_text(timeline, 39)]
    groove = desktop.find_element(By.CSS_SELECTOR, "#plot-histogram .slider-rail-touch-rect")
    desktop.execute_script("arguments[0].scrollIntoView({block: 'center'})", groove)
    ActionChains(desktop).move_to_element_with_offset(groove, 2 - int(groove.rect["width"]) // 2, 0).click().perform()
    _wait(desktop, "return document.querySelector('#plot-histogram').layout.sliders[0].active == 0")
    assert _slider(desktop) == ["step 1", _hover_text(timeline, 0)]
    screenshot(desktop, "report-slider", tmp_path)


def _slider(driver: Chrome) -> list[Any]:
    script = """const plot = document.querySelector("#plot-histogram");
        return [plot.querySelector(".slider-label").textContent, plot.data[0].customdata[32]]"""
    found: list[Any] = driver.execute_script(script)
    return found


def _hover_text(timeline: Any, index: int) -> str:
    counts = timeline.history.latest("ratioscope/hist/token_log_ratio").windows[index].counts
    return f"{100 * counts[32] / counts.sum():.3g} % ({counts[32]})"


def test_hover_displays_the_numbers(desktop: Chrome, tmp_path: Path) -> None:
    """Hovering a heat map displays step, ratio and share; hovering lines displays the step and each value."""
    _open(desktop, report_html(make_timeline(20)), tmp_path)
    heat = _hover(desktop, "heat-token", y=0.47)
    assert "step" in heat
    assert "ratio" in heat
    assert "%" in heat or "p50" in heat
    lines = _hover(desktop, "modified")
    assert "step" in lines
    assert "above upper" in lines
    assert "below lower" in lines
    screenshot(desktop, "report-hover", tmp_path)


def _hover(driver: Chrome, key: str, *, y: float = 0.5) -> str:
    """Returns the hover text at a height of a figure."""
    plot = driver.find_element(By.CSS_SELECTOR, f"#plot-{key} .nsewdrag")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    ActionChains(driver).move_to_element_with_offset(plot, 7, int((y - 0.5) * plot.rect["height"])).perform()
    script = f"return document.querySelector('#plot-{key} .hoverlayer').textContent"
    _wait(driver, script)
    found: str = driver.execute_script(script)
    return found


def test_hostile_names_are_not_executed(desktop: Chrome, tmp_path: Path) -> None:
    """A run named like a script keeps that name, also inside figures, and creates no script, link or image."""
    runs = [make_timeline(30, name=name) for name in (HOSTILE, "<img src=x onerror=alert(2)>", "ж漢" * 5000)]
    _open(desktop, compare_html(runs), tmp_path)
    legend = desktop.execute_script("return document.querySelector('#plot-kl .legend').textContent")
    assert "<script>alert(1)" in legend
    assert "<img src=x" in legend
    assert desktop.execute_script("return document.querySelectorAll('main img, main script, svg a').length") == 0
    screenshot(desktop, "compare-hostile", tmp_path, whole=True)
    _open(desktop, report_html(runs[0]), tmp_path)
    assert "<script>alert(1)</script>" in desktop.title
    assert "<script>alert(1)</script>" in desktop.find_element(By.TAG_NAME, "h1").text


def test_comparison_is_drawn(desktop: Chrome, tmp_path: Path) -> None:
    """A comparison of four runs draws all heat maps and lines, side by side on a desktop."""
    runs = [make_timeline(n, name=f"run {n}", level=level) for n in (40, 80) for level in ("token", "sequence")]
    _open(desktop, compare_html(runs), tmp_path)
    figures = _figures(desktop)
    assert all(figures.values())
    assert len([key for key in figures if key.startswith("heat-token-")]) == 4
    tops = [plot.rect["y"] for plot in desktop.find_elements(By.CSS_SELECTOR, "[id^=plot-heat-token-]")]
    assert tops[0] == tops[1]
    screenshot(desktop, "compare", tmp_path, whole=True)


def test_missing_data_is_explained(desktop: Chrome, tmp_path: Path) -> None:
    """The page of a run without a valid token names this, and draws the exclusions."""
    _open(desktop, report_html(make_nan_timeline()), tmp_path)
    assert "Not one token was valid" in desktop.find_element(By.TAG_NAME, "main").text
    assert _figures(desktop).keys() == {"excluded", "excluded-counts"}
    screenshot(desktop, "report-only-nan", tmp_path, whole=True)


def test_page_works_in_a_sandboxed_frame(desktop: Chrome, tmp_path: Path) -> None:
    """The figures are drawn in a frame that permits scripts only, as trackers use it."""
    inner = tmp_path / "inner.html"
    inner.write_text(report_html(make_timeline(20)), encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text('<iframe src="inner.html" sandbox="allow-scripts" width="1200" height="900"></iframe>')
    desktop.get(outer.as_uri())
    desktop.switch_to.frame(0)
    _wait(desktop, "return document.documentElement.dataset.ready !== undefined")
    assert all(_figures(desktop).values())
    desktop.switch_to.default_content()


@pytest.mark.parametrize("how", ["off", "old"])
def test_page_without_figures_keeps_the_rest(how: str, tmp_path: Path) -> None:
    """Without scripts, or in an old browser, the page explains the missing figures and keeps its tables."""
    text = report_html(make_timeline(20))
    path = tmp_path / "page.html"
    path.write_text(
        text if how == "off" else text.replace("<body>", "<body><script>delete self.DecompressionStream</script>")
    )
    with browser() as driver:
        if how == "off":
            driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        driver.get(path.as_uri())
        shown = driver.find_element(By.TAG_NAME, "main").text
        assert ("need JavaScript" if how == "off" else "lacks DecompressionStream") in shown
        assert "Modified fraction" in shown


def test_a_hundred_thousand_windows_open_in_5_s(desktop: Chrome, tmp_path: Path) -> None:
    """A run of 100 000 windows is drawn to its last figure within 5 s, its extremes included."""
    timeline = make_timeline(100_000)
    spike = timeline.scalars["ratioscope/kl/k3"].values
    spike[77_777] = 9.0
    text = report_html(timeline)
    assert len(text) < 5e6
    # The fastest of four: the machine may be at other work.
    assert any(_open(desktop, text, tmp_path) < 5 for _ in range(4))
    assert desktop.execute_script("return Math.max(...document.querySelector('#plot-kl')._fullData[0].y)") == 9
    screenshot(desktop, "report-100000", tmp_path, whole=True)


def test_keyboard_reaches_tables(desktop: Chrome, tmp_path: Path) -> None:
    """A scrolling table takes the focus, so that the keyboard can scroll it."""
    _open(desktop, report_html(make_timeline(5)), tmp_path)
    reached = set()
    for _ in range(8):  # a link and what folds out come before
        ActionChains(desktop).send_keys(Keys.TAB).perform()
        reached.add(desktop.execute_script("return document.activeElement.className"))
    assert "table" in reached
