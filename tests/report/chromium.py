"""A page open in real Chromium, driven by selenium, where both are installed."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import pytest

PATIENCE = 10.0  # seconds; a guard against hanging, not a measurement


@final
class Tab:
    """One tab of a browser without a window."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, *, width: int = 1280, dark: bool = False) -> float:
        """Open a page and wait until it says that it is ready; how many seconds that took."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.prefer(dark=dark)
        begin = time.perf_counter()
        self.driver.get(path.as_uri())
        self.until("return document.documentElement.dataset.ready === 'yes'")
        return time.perf_counter() - begin

    def ensure(self, path: Path) -> None:
        """Open a page unless it is open, in whatever state it is."""
        if self.driver.current_url != path.as_uri():
            self.open(path)

    def prefer(self, *, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [scheme, still]})

    def emulate_paper(self) -> None:
        """Apply the styles for print until the next page is opened."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str) -> None:
        """Wait for something to become true."""
        end = time.monotonic() + PATIENCE
        while not self.run(script):
            assert time.monotonic() < end, f"not within {PATIENCE} s: {script}; {self.complaints()}"
            time.sleep(0.02)

    def complaints(self) -> list[str]:
        """What the console holds."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def click(self, selector: str) -> None:
        """With a mouse, after scrolling there."""
        element = self.find(selector)
        self.run("arguments[0].scrollIntoView({ block: 'center' })", element)
        element.click()

    def press(self, selector: str, *keys: str) -> None:
        """Keys to the element that has the focus, as from a keyboard."""
        element = self.find(selector)
        self.run("arguments[0].focus()", element)
        for key in keys:
            element.send_keys(key)

    def rows(self) -> list[list[str]]:
        """The cells of the rows that the table of secrets has on the page."""
        return self.run(
            "return [...document.querySelectorAll('#secrets-rows tbody tr:not(.spacer)')]"
            ".map(row => [...row.cells].map(cell => cell.textContent))"
        )

    def search(self, words: str) -> str:
        """Type into the search box; the number of rows that the page then tells."""
        before = self.run("return document.getElementById('found').textContent")
        self.run(
            "const find = document.getElementById('find'); find.value = arguments[0];"
            "find.dispatchEvent(new Event('input'))",
            words,
        )
        self.until(f"return document.getElementById('found').textContent !== {before!r}")
        return self.run("return document.getElementById('found').textContent")


@contextmanager
def chromium() -> Iterator[Tab]:
    """A browser; the test is skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed; the page was not tried in a browser")
    os.environ["SE_OFFLINE"] = "true"  # selenium must not fetch a browser of its own
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Tab(started)
    finally:
        started.quit()
