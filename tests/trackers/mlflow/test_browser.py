"""Views of two runs in MLflow's own pages, on a real server and in a real browser."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope_integrations.trackers.mlflow.panels import write_view
from tests.support.browser import browser, screenshot
from tests.support.faults import MlflowServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.trackers]

EXPERIMENT = "grpo"
STEPS = 14
RUNS = {"bf16": (0.05, 1.2), "fp8": (0.25, 2.0)}
"""Noise between the engines and upper bound, by the run's name."""
WAIT_S = 90.0

COLORS = """
const image = arguments[0], canvas = document.createElement('canvas');
canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
const context = canvas.getContext('2d');
context.drawImage(image, 0, 0);
const data = context.getImageData(0, 0, canvas.width, canvas.height).data, colors = new Set();
for (let i = 0; i < data.length; i += 4) colors.add(data[i] >> 4 << 8 | data[i + 1] >> 4 << 4 | data[i + 2] >> 4);
return colors.size;
"""
"""How many clearly different colours a picture has; a blank one has one."""


@dataclass
class Page:
    """The browser at the server.

    Attributes:
        driver: the browser.
        url: of the server.
        experiment: its id.
        runs: ids by name.
        view: address of the shared view.
    """

    driver: Chrome
    url: str
    experiment: str
    runs: dict[str, str]
    view: str

    def open(self, path: str) -> None:
        """Opens a page completely; a new fragment would not reload it."""
        self.driver.get("about:blank")
        self.driver.get(path)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Waits until the condition returns a true value, and returns it."""
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(self.driver, WAIT_S, ignored_exceptions=[StaleElementReferenceException])
        return waiting.until(lambda _: condition(), f"{what} did not come")

    def all(self, selector: str) -> list[WebElement]:
        """Elements by CSS selector."""
        return list(self.driver.find_elements("css selector", selector))

    def card(self, title: str) -> WebElement:
        """The chart with this title, scrolled into view."""
        from selenium.webdriver.common.by import By

        path = f"//*[@data-testid='experiment-view-compare-runs-card' and .//*[text()='{title}']]"
        found = self.wait(lambda: self.driver.find_elements(By.XPATH, path), f"the chart {title}")[0]
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        element: WebElement = found
        return element

    def enlarge(self, card: WebElement) -> WebElement:
        """Opens the dialog that displays a single chart."""
        button = card.find_element("css selector", "[data-component-id='fullscreen_button_chartcard']")
        self.driver.execute_script("arguments[0].click()", button)
        dialog: WebElement = self.wait(lambda: self.all("[role='dialog']"), "the enlarged chart")[0]
        return dialog

    def lines(self, parent: WebElement) -> set[str]:
        """Returns the paths of the charts' lines in an element; MLflow draws each twice, one over the other."""
        drawn = parent.find_elements("css selector", ".scatterlayer .js-line")
        return {path for line in drawn if "L" in (path := line.get_attribute("d") or "")}

    def pictures(self, parent: WebElement, n: int) -> list[int]:
        """Number of colours of each picture in an element, once there are ``n`` of them."""

        def loaded() -> list[WebElement] | None:
            images = parent.find_elements("css selector", "img")
            widths = [self.driver.execute_script("return arguments[0].naturalWidth", image) for image in images]
            return images if len(images) >= n and all(widths) else None

        images = self.wait(loaded, f"{n} pictures")
        return [self.driver.execute_script(COLORS, image) for image in images]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A server with two runs and the shared view."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("served")
    server = MlflowServer(folder)
    kept = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME")}
    os.environ |= {"MLFLOW_TRACKING_URI": server.url, "MLFLOW_EXPERIMENT_NAME": EXPERIMENT}
    try:
        for name, (noise, upper) in RUNS.items():
            train(folder / name, name, noise=noise, upper=upper)
        client = MlflowClient(server.url)
        found = client.get_experiment_by_name(EXPERIMENT)
        assert found is not None
        runs = {run.info.run_name: run.info.run_id for run in client.search_runs([found.experiment_id])}
        with browser(width=1600, height=2200) as driver:
            driver.get(server.url)
            # MLflow's assistant would open at the first visit and cover a third of the page.
            for name, value in (("fab.autoOpenedOnFirstLoad_v1", "true"), ("panelOpen_v1", "false")):
                driver.execute_script(f"localStorage.setItem('mlflow.assistant.{name}', '{value}')")
            yield Page(driver, server.url, found.experiment_id, runs, write_view(EXPERIMENT, server.url))
    finally:
        server.kill()
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def train(out: Path, name: str, *, noise: float, upper: float) -> None:
    """Records a run whose mismatch grows."""
    rule = rs.Correction(level="token", action="truncate", lower=0.5, upper=upper)
    generator = torch.Generator().manual_seed(0)
    recorder = rs.Recorder(
        report_to="mlflow", correction=rule, output_dir=out, run_name=name, config={"dtype": name}, close_timeout=120.0
    )
    for step in range(1, STEPS + 1):
        rollout = -3 * torch.rand(16, 128, generator=generator) - 1.0
        train = rollout + noise * (1 + step / STEPS) * torch.randn(16, 128, generator=generator)
        recorder.observe(train, rollout, torch.ones(16, 128, dtype=torch.bool))
        recorder.flush(step=step)
    recorder.close()
    assert not recorder.incidents.counts


def test_shared_view_shows_both_runs_quantiles(page: Page, tmp_path: Path) -> None:
    """The view opens by its address, with five quantiles of each run on one logarithmic axis."""
    page.open(page.view)
    page.wait(lambda: "Raw ratio: quantiles" in page.driver.find_element("css selector", "body").text, "the view")
    keys = [f"ratioscope/token/raw/{name}" for name in ("p01", "p05", "p50", "p95", "p99")]
    title = " vs ".join(keys)
    page.wait(lambda: len(page.lines(page.card(title))) == 2 * len(keys), "the lines")
    page.wait(
        lambda: len(page.lines(page.card("ratioscope/modified/low vs ratioscope/modified/high"))) == 4, "both sides"
    )
    screenshot(page.driver, "mlflow-view", tmp_path)
    dialog = page.enlarge(page.card(title))
    page.wait(lambda: len(page.lines(dialog)) == 2 * len(keys), "the enlarged lines")
    page.wait(lambda: "bf16 (ratioscope/token/raw/p99)" in dialog.text, "the legend")
    ticks = [float(tick.text) for tick in dialog.find_elements("css selector", ".ytick") if tick.text]
    assert min(ticks) < 1.0 < max(ticks)
    screenshot(page.driver, "mlflow-fan", tmp_path)


def test_image_charts_are_there_side_by_side(page: Page, tmp_path: Path) -> None:
    """Heat map and histogram are not blank where the chart opens, and enlarged they display both runs."""
    for key in ("ratioscope/log_ratio_over_training", "ratioscope/log_ratio"):
        page.open(page.view)
        card = page.card(key)
        assert min(page.pictures(card, 1)) > 8
        screenshot(page.driver, f"mlflow-card-{key.rpartition('/')[2]}", tmp_path)
        dialog = page.enlarge(card)
        assert min(page.pictures(dialog, len(RUNS))) > 8
        assert "No image logged" not in dialog.text
        assert all(name in dialog.text for name in RUNS)
        screenshot(page.driver, f"mlflow-{key.rpartition('/')[2]}", tmp_path)


def test_table_is_a_grid_of_steps_and_runs(page: Page, tmp_path: Path) -> None:
    """The table view opens with a row for each shared step and a picture of each run in it."""
    page.open(f"{page.url}/#/experiments/{page.experiment}/runs?compareRunsMode=ARTIFACT")
    screenshot(page.driver, "mlflow-table", tmp_path)
    page.wait(lambda: "token_log_ratio" in page.driver.find_element("css selector", "body").text, "the table")
    body = page.driver.find_element("css selector", "body")
    assert min(page.pictures(body, 2 * 4)) > 4
    lines = body.text.split("\n")
    assert [line for line in lines if line in ("1", "2", "5", "10", "14")][:4] == ["1", "2", "5", "10"]
    assert "Group by:" in lines
    screenshot(page.driver, "mlflow-table", tmp_path)


def test_compare_page_shows_differences_and_reports(page: Page, tmp_path: Path) -> None:
    """The compare page marks differing bounds, and its artifact pane displays both reports with figures."""
    from selenium.webdriver.common.by import By

    runs = ",".join(f'"{run}"' for run in page.runs.values())
    page.open(f'{page.url}/#/compare-runs?runs=[{runs}]&experiments=["{page.experiment}"]')
    page.wait(lambda: "ratioscope.correction.upper" in page.driver.find_element("css selector", "body").text, "params")
    screenshot(page.driver, "mlflow-compare", tmp_path)

    def choose(name: str) -> None:
        path = f"//*[text()='{name}']"
        entry = page.wait(lambda: page.driver.find_elements(By.XPATH, path), f"{name} among the artifacts")[0]
        page.driver.execute_script("arguments[0].scrollIntoView({block: 'start'}); arguments[0].click()", entry)

    choose("ratioscope_token_log_ratio.png")
    body = page.driver.find_element("css selector", "body")
    assert min(page.pictures(body, len(RUNS))) > 8
    screenshot(page.driver, "mlflow-compare-picture", tmp_path)
    choose("ratioscope_report.html")
    frames = page.wait(lambda: len(page.all("iframe")) == len(RUNS) and page.all("iframe"), "both reports")
    screenshot(page.driver, "mlflow-compare-report", tmp_path)
    for frame in frames:
        page.driver.switch_to.frame(frame)
        try:
            plots = page.wait(lambda: page.all(".js-plotly-plot .main-svg"), "the report's figures")
            assert plots
            text = page.driver.find_element("css selector", "body").text
            assert any(name in text for name in RUNS)
        finally:
            page.driver.switch_to.default_content()
    screenshot(page.driver, "mlflow-compare-report", tmp_path)
