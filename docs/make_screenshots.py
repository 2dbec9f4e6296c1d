"""Makes the README's pictures of the page, docs/images/*.png, from an index: `python docs/make_screenshots.py INDEX`.

Needs Chromium and its driver (`apt-get install chromium chromium-driver`) and selenium (the extra `test`).
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

IMAGES = Path(__file__).with_name("images")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb")
WIDE, HIGH, FINER = 1280, 880, 1.25
RESULTS = 1160
"""As high as it takes to see the relevance cut, as a rule."""
LONGEST = 600
"""Seconds to wait for the model to load, or for the map."""

LOADED = """
const pictures = [...document.querySelectorAll("img")].filter((each) => each.getBoundingClientRect().top < innerHeight);
return pictures.every((each) => each.complete) && Boolean(document.querySelector(arguments[0]))
"""
POINT = """
// A picture of the middle of the map, with what is told of it.
const plot = document.querySelector("#view-map").plot, [x, y] = [plot.width * 0.42, plot.height * 0.45];
const far = (i) => Math.hypot(plot.at(i)[0] - x, plot.at(i)[1] - y);
const pictures = plot.points.map((_, i) => i).filter((i) => !plot.points[i].text);
plot.point(pictures.reduce((best, i) => (far(i) < far(best) ? i : best)));
"""
ELEMENT = """
// The element that adds most to the score, shown large.
const adds = (each) => parseFloat(/adds (\\S+)/.exec(each.textContent)[1]);
[...document.querySelectorAll("#why .element")].reduce((best, each) => (adds(each) > adds(best) ? each : best)).click();
"""


@contextmanager
def served(index: str) -> Iterator[str]:
    """The address of a server for the index, once it is ready."""
    command = [sys.executable, "-c", "from polysem.cli import main; main()", "serve", index, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            told = server.stdout.readline() if server.stdout else ""
            if not told:
                raise SystemExit(f"polysem serve {index} did not start.")
            address = json.loads(told)["url"]
            wait(lambda: ready(address), "the server")
            yield address
        finally:
            server.terminate()


def ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def wait(holds, what: str) -> None:
    end = time.monotonic() + LONGEST
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"Waited {LONGEST} seconds for {what} in vain.")
        time.sleep(0.2)


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if binary is None or driver is None:
        raise SystemExit("Chromium and its driver are needed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in FLAGS:
        options.add_argument(flag)
    running = webdriver.Chrome(options, Service(driver))
    # Nothing is caught half-way through a movement.
    still = [{"name": "prefers-reduced-motion", "value": "reduce"}, {"name": "prefers-color-scheme", "value": "light"}]
    running.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": still})
    try:
        yield running
    finally:
        running.quit()


def resize(browser: webdriver.Chrome, high: int) -> None:
    screen = {"width": WIDE, "height": high, "deviceScaleFactor": FINER, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)


def shoot(browser: webdriver.Chrome, out: Path, sign: str) -> None:
    """Keeps what is seen, once there is something that `sign` selects and all pictures have come."""
    wait(lambda: browser.execute_script(LOADED, sign), sign)
    time.sleep(0.3)
    Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB").save(out, optimize=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("index")
    asked.add_argument("--query", default="a rocket in space")
    asked.add_argument("--colour", choices=["slot", "label"], default="slot", help="of the map")
    asked.add_argument("--method", choices=["tsne", "pca"], default="tsne", help="of the map")
    asked.add_argument("--out", type=Path, default=IMAGES)
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with served(given.index) as address, chromium() as browser:
        resize(browser, RESULTS)
        browser.get(f"{address}/")
        browser.execute_script("location.search = new URLSearchParams({ q: arguments[0] })", given.query)
        wait(lambda: "q=" in browser.current_url, "the search")
        shoot(browser, given.out / "search.png", ".card")
        resize(browser, HIGH)
        browser.execute_script("document.querySelector(\".card [data-act='why']\").click()")
        wait(lambda: browser.execute_script(LOADED, "#why .element"), "the elements")
        browser.execute_script(ELEMENT)
        shoot(browser, given.out / "why.png", "#why .element")
        browser.get(f"{address}/#map")
        browser.refresh()
        wait(
            lambda: browser.execute_script("return document.querySelectorAll('.map-head select').length == 2"),
            "the map",
        )
        for place, value in enumerate((given.colour, given.method)):
            browser.execute_script(
                "const choice = document.querySelectorAll('.map-head select')[arguments[0]];"
                "choice.value = arguments[1]; choice.dispatchEvent(new Event('change'))",
                place,
                value,
            )
        busy = "return document.querySelector('.busy').hidden && document.querySelectorAll('.legend .line').length > 2"
        wait(lambda: browser.execute_script(busy), "the map")
        browser.execute_script(POINT)
        shoot(browser, given.out / "map.png", ".tip:not([hidden])")


if __name__ == "__main__":
    main()
