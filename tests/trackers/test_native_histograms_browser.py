"""The pages of trackio and TensorBoard display our histograms and scalars of two runs at once."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import browser, screenshot
from tests.support.local_server import environment, free_port, served, wait_for
from tests.support.readback import read_trackio

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.trackers]

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("bf16 & <b>near</b>", "fp8-far")
WINDOWS = 20
HISTOGRAMS = [f"ratioscope/hist/{name}_log_ratio" for name in ("corrected", "sequence", "token")]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, in trackio's database and in event files."""
    folder = tmp_path_factory.mktemp("pair")
    command = [sys.executable, str(ROOT / "tests" / "support" / "trackio_scenarios.py"), "pair", str(folder)]
    subprocess.run(command, check=True, env=environment(folder), cwd=folder, capture_output=True, timeout=120)
    return folder


def said_errors(driver: Any) -> list[str]:
    """Returns the errors of the page's own scripts."""
    return [entry["message"] for entry in driver.get_log("browser") if "Uncaught" in entry["message"]]


COLORED = """
const [canvas, shades] = arguments;
const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
const near = (i) => shades.some((shade) => shade.every((value, k) => Math.abs(pixels[i + k] - value) < 8));
let count = 0;
for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] > 60 && near(i)) count++;
return count;
"""
"""How many pixels of a canvas have one of some colours, translucent or not."""
OPACITY = 0.55
"""Of trackio's bars where there are several runs."""


def test_trackio_overlays_the_histograms_of_two_runs(pair: Path, tmp_path: Path) -> None:
    """Each of our histograms is one plot with bars of both runs; scalars are lines of both; names are text."""
    port = free_port()
    show = ("trackio.cli", "show", "--project", "ratioscope")
    with (
        served(*show, port=port, folder=pair, GRADIO_SERVER_PORT=str(port)) as address,
        browser(width=1400, height=1000) as driver,
    ):
        driver.get(f"{address}/?project=ratioscope")
        (fraction,) = wait_for(lambda: plots(driver, "fraction"))
        wait_for(lambda: all(count > 50 for count in colored(driver, fraction)))
        assert not driver.find_elements("xpath", "//b[text()='near']")
        screenshot(driver, "trackio-scalars", tmp_path)

        driver.find_element("css selector", "input[placeholder*='ndcg']").send_keys("ratioscope/hist/")
        wait_for(lambda: not plots(driver, "fraction"))
        (tokens,) = wait_for(lambda: plots(driver, HISTOGRAMS[-1]))
        wait_for(lambda: all(count > 50 for count in colored(driver, tokens)))
        stored = {run.name: run.rows[-1] for run in read_trackio(pair / "trackio").values()}
        for key in HISTOGRAMS:
            drawn = bars(driver, plots(driver, key)[0])
            assert drawn == {name: (row["step"], row[key]["values"]) for name, row in stored.items()}
        screenshot(driver, "trackio-histograms", tmp_path)
        assert not said_errors(driver)


def plots(driver: Any, title: str) -> list[Any]:
    """Plots with this title."""
    path = f"//*[contains(concat(' ', @class), ' plot-container')][.//*[normalize-space(text())='{title}']]"
    return list(driver.find_elements("xpath", path))


def colored(driver: Any, plot: Any) -> list[int]:
    """Counts the pixels of each run's colour in a plot, by the order of NAMES."""
    canvases = plot.find_elements("tag name", "canvas")
    legend = {
        item.text: rgb(item.find_element("css selector", ".legend-dot").value_of_css_property("background-color"))
        for item in plot.find_elements("css selector", ".legend-item")
    }
    if not canvases or set(legend) != set(NAMES):
        return [0]
    return [
        driver.execute_script(COLORED, canvases[0], [legend[name], *(over(legend[name], legend[it]) for it in NAMES)])
        for name in NAMES
    ]


def rgb(color: str) -> list[int]:
    """The channels of a CSS colour."""
    return [int(channel) for channel in re.findall(r"\d+", color)[:3]]


def over(top: list[int], bottom: list[int]) -> list[float]:
    """The colour of one translucent bar upon another."""
    share = 1 / (2 - OPACITY)
    return [share * one + (1 - share) * other for one, other in zip(top, bottom, strict=True)]


KEEP_DOWNLOAD = """
window.downloaded = null;
const original = URL.createObjectURL;
URL.createObjectURL = (blob) => { blob.text().then((text) => { window.downloaded = text; }); return original(blob); };
"""


def bars(driver: Any, plot: Any) -> dict[str, tuple[int, list[int]]]:
    """Returns step and counts of each run in a plot, from the CSV that the page exports."""
    driver.execute_script(KEEP_DOWNLOAD)
    driver.execute_script("arguments[0].click()", plot.find_element("css selector", "button[title*='CSV']"))
    text: str = wait_for(lambda: driver.execute_script("return window.downloaded"))
    found: dict[str, tuple[int, list[int]]] = {}
    for line in csv.DictReader(io.StringIO(text)):
        found.setdefault(line["run"], (int(line["step"]), []))[1].append(int(line["count"]))
    return found


RIDGES = """
const found = [];
const walk = (root) => {
  for (const element of root.querySelectorAll('*')) {
    if (element.tagName === 'TF-HISTOGRAM-LOADER') {
      const chart = element.shadowRoot.querySelector('vz-histogram-timeseries');
      const lines = chart ? [...chart.shadowRoot.querySelectorAll('.outline')] : [];
      found.push([element.run, element.tag, lines.filter((line) => line.getBBox().height > 1).length]);
    }
    if (element.shadowRoot) walk(element.shadowRoot);
  }
};
walk(document);
return found;
"""
"""Run, tag and number of ridges that are not flat, for each histogram of the page."""


def test_tensorboard_shows_the_histograms_of_two_runs(pair: Path, tmp_path: Path) -> None:
    """Each of our histograms is drawn for both runs, with a ridge for every window; names are text."""
    port = free_port()
    board = ("tensorboard.main", "--host", "127.0.0.1", "--logdir", pair / "out", "--port", str(port))
    runs = [path.parent.relative_to(pair / "out").as_posix() for path in pair.rglob("events.out.tfevents.*")]
    expected = sorted([run, name, WINDOWS] for run in runs for name in HISTOGRAMS)
    assert len(expected) == 6
    with served(*board, port=port, folder=pair) as address, browser(width=1400, height=1000) as driver:
        driver.get(f"{address}/#histograms")
        wait_for(lambda: sorted(driver.execute_script(RIDGES)) == expected, 60)
        time.sleep(1)  # the charts fade in
        screenshot(driver, "tensorboard-histograms", tmp_path)

        driver.get(f"{address}/?tagFilter=ratioscope%2Fhist%2F#timeseries")
        cards = "histogram-card tb-histogram svg path"
        wait_for(lambda: len(driver.find_elements("css selector", cards)) >= WINDOWS * 2, 60)
        text = driver.find_element("tag name", "body").text
        assert "bf16 & <b>near<_b>" in text.replace("\n", " ")
        time.sleep(1)
        screenshot(driver, "tensorboard-timeseries", tmp_path)
        assert not said_errors(driver)
