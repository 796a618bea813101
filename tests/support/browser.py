"""A headless Chromium for the tests that look at a page."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium import webdriver

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Names of browsers to look for."""

SCREENSHOTS = "RATIOSCOPE_SCREENSHOTS"
"""Environment variable with a folder for all screenshots; by default each test chooses one."""


def program() -> str:
    """Returns the path of the browser.

    Raises:
        FileNotFoundError: if there is none.
    """
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    msg = f"got no browser under {', '.join(PROGRAMS)}; browser tests need Chromium and chromedriver on the PATH"
    raise FileNotFoundError(msg)


@contextmanager
def browser(
    *, width: int = 1400, height: int = 1000, dark: bool = False, mobile: bool = False
) -> Iterator[webdriver.Chrome]:
    """Yields a browser that keeps its console's messages for ``driver.get_log("browser")``.

    Args:
        width: width of the page, in CSS pixels.
        height: height of the page, in CSS pixels.
        dark: whether the preferred colour scheme is dark.
        mobile: whether to emulate a phone, whose page may be narrower than a window can be.
    """
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program()
    flags = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars")
    for flag in (*flags, f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chromedriver = shutil.which("chromedriver")
    driver = webdriver.Chrome(options=options, service=Service(chromedriver) if chromedriver else Service())
    try:
        driver.set_page_load_timeout(60)
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme(driver, dark=dark)
        yield driver
    finally:
        driver.quit()


def scheme(driver: webdriver.Chrome, *, dark: bool) -> None:
    """Switches the preferred colour scheme."""
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def screenshot(driver: webdriver.Chrome, name: str, folder: Path, *, whole: bool = False) -> Path:
    """Saves a screenshot as ``name.png``.

    Args:
        driver: the browser.
        name: name of the file without its suffix.
        folder: folder of the file, unless ``RATIOSCOPE_SCREENSHOTS`` names another.
        whole: whether to include the full height of the page.
    """
    import base64
    from pathlib import Path

    target = Path(os.environ.get(SCREENSHOTS) or folder)
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"{name}.png"
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
    path.write_bytes(base64.b64decode(taken["data"]))
    return path
