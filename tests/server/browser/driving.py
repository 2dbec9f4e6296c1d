"""Chromium without a window, driven as a person would: what is on the page, keys, the mouse, and what it asked for."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from waiting import LONG

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# The sandbox needs rights that a container or root does not have; the pages here are our own.
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb")
DESKTOP, PHONE = (1280, 860), (360, 740)


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    binary = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no browser to test the page in: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options, Service(driver))
    running.set_script_timeout(LONG)
    try:
        yield running
    finally:
        running.quit()


class Page:
    """The page of a server at `origin`."""

    def __init__(self, driver: webdriver.Chrome, origin: str) -> None:
        self.driver, self.origin = driver, origin

    def open(self, path: str = "/", size: tuple[int, int] = DESKTOP, **media: str) -> None:
        """media: what the system prefers, as prefers_color_scheme="dark"."""
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": self.origin, "storageTypes": "all"})
        screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(f"{self.origin}{path}")

    def leave(self) -> None:
        self.js("sessionStorage.clear()")  # it belongs to the tab, which the next test goes on with
        self.driver.get("about:blank")

    # ------------------------------------------------------------------------------------------ looking
    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        """The first that is shown, waited for."""
        return self.until(lambda: next((each for each in self.all(css) if each.is_displayed()), None), css)

    def text(self, css: str) -> str:
        """Of the first that is shown, waited for; it may be drawn anew while it is read."""
        return self.until(lambda: [each.text for each in self.all(css) if each.is_displayed()], css)[0]

    def js(self, code: str, *given: Any) -> Any:
        return self.driver.execute_script(code, *given)

    def until(self, holds: Callable[[], Any], what: str = "") -> Any:
        end = time.monotonic() + LONG
        while True:
            try:
                if found := holds():
                    return found
            except StaleElementReferenceException:
                pass  # drawn anew meanwhile: look again
            assert time.monotonic() < end, f"it did not come about: {what}\n{self.console()}"
            time.sleep(0.03)

    @property
    def address(self) -> str:
        """Path, query and fragment."""
        return self.driver.current_url.removeprefix(self.origin)

    def captions(self) -> list[str]:
        return self.js("return [...document.querySelectorAll('.card .caption')].map((each) => each.textContent)")

    def results(self, least: int = 1) -> list[str]:
        """The captions of the results, once the answer to the last search is there."""
        done = "return document.querySelector('#results').getAttribute('aria-busy') === 'false'"
        self.until(lambda: len(self.captions()) >= least and self.js(done), f"{least} results")
        return self.captions()

    def focused(self) -> str:
        """What has the focus, told by its name or its text."""
        return self.js(
            "const at = document.activeElement;"
            "return at.getAttribute('aria-label') || at.id || at.textContent.trim() || at.tagName"
        )

    # ------------------------------------------------------------------------------------------ doing
    def click(self, css: str) -> None:
        found = self.one(css)
        self.js("arguments[0].scrollIntoView({ block: 'center' })", found)  # not below the bar on top
        found.click()

    def keys(self, *keys: str) -> None:
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def type(self, text: str) -> None:
        self.one("#text").send_keys(text)

    def give(self, path: Path) -> None:
        """Choose a file, as in the dialog that the button opens."""
        self.js("document.querySelector('#file').hidden = false")
        self.all("#file")[0].send_keys(str(path))

    # ------------------------------------------------------------------------------------------ watching
    def console(self) -> list[str]:
        """Complaints of the browser since the last look."""
        return [f"{each['level']}: {each['message']}" for each in self.driver.get_log("browser")]

    def asked_hosts(self) -> set[str]:
        """Where the page sent requests since the last look."""
        hosts = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = urlsplit(message["params"]["request"]["url"])
                if address.scheme not in ("data", "blob", "about", "chrome"):
                    hosts.add(f"{address.scheme}://{address.netloc}")
        return hosts
